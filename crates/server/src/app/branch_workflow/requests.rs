//! Requests about branch workflows and pull requests.

use super::{new_row, restart_row, store_and_schedule};
use crate::app::sandbox_plan::check_repo;
use crate::app::sessions::lock_session;
use crate::app::ticket_work::{choose_ticket_branch, require_unblocked};
use crate::app::tickets::lock_ticket;
use crate::app::views::cut_page;
use crate::auth::Caller;
use crate::auth::access::{CanList, CanSee, CanWork, ClientCaller};
use crate::cursor::decode_id;
use crate::extract::page_size;
use crate::forge_access::connect_forge;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Code, Problem, Result};
use crate::repositories::{self, BranchPlacement, CredentialScope};
use crate::state::App;
use atoll_api::{
    BranchWorkflow, BranchWorkflowProgress, BranchWorkflowQuery, FinishBranchWorkflow, MergeBranchWorkflow, Page,
    PullRequestFacts, PullRequestListQuery, PullRequestView, StartBranchWorkflow,
};
use atoll_core::branch_workflow::WorkflowGoal;
use atoll_core::git_settings::Publication;
use atoll_core::id::{SessionId, TicketId, UserId};
use atoll_core::pull_request::{MergeMethod, PullRequestState, PullRequestStatus, decide_merge};
use atoll_core::ticket::TicketStep;
use atoll_store::branch_workflows::{self as rows, BranchWorkflowRow, PullRequestFilter};
use atoll_store::tickets::{self, TicketRow};
use atoll_store::{Tx, projects, sandboxes, sessions};
use std::time::Duration;

/// Time limit of a forge that answers while a client waits.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// Creates the branch of a ticket before any sandbox works on it.
pub async fn start_workflow(
    app: &App,
    client: ClientCaller,
    key: IdempotencyKey,
    request: StartBranchWorkflow,
) -> Result<JsonResponse> {
    let access = CanWork::<TicketId>::authorize(app, client.0, request.ticket_id).await?;
    if let Some(replay) = app.find_replay(&access.caller, &key).await? {
        return Ok(replay);
    }
    let (id, project) = (access.id, access.project);
    let (ticket, own) = app
        .read(async move |tx| {
            let ticket = tickets::find_ticket(tx, id).await?.ok_or_else(|| Problem::not_found("ticket"))?;
            let own = projects::find_project(tx, project).await?.and_then(|project| project.repo);
            Ok((ticket, own))
        })
        .await?;
    require_unblocked(&ticket)?;
    let repo = request.repo.or(own).ok_or_else(|| Problem::invalid("repo: the project has no repository; name one"))?;
    check_repo(&repo, &access.caller)?;
    let branch = choose_ticket_branch(&ticket, repo.branch.clone())?;
    let repo = atoll_core::sandbox::Repo { branch: Some(branch), ..repo };
    let scope = CredentialScope { project, requester: access.caller.user() };
    let mut repo = repositories::resolve_repository(app, scope, repo, String::new()).await?.repo;
    if let BranchPlacement::Taken { free } =
        repositories::place_branch(app, repo.clone(), ticket.branch == repo.branch).await?
    {
        repo.branch = Some(free);
        repositories::place_branch(app, repo.clone(), false).await?;
    }
    app.write_once(&access.caller, key, async move |work| {
        let mut ticket = lock_ticket(work, id).await?;
        ticket.branch = repo.branch;
        ticket.status = ticket.status.after_step(TicketStep::Start);
        ticket.updated_at = work.now;
        tickets::update_ticket(work.tx, &ticket).await?;
        JsonResponse::created(view_ticket_workflow(work.tx, ticket).await?)
    })
    .await
}

/// The session that a request names, and the caller's right to work in it.
async fn find_target(
    app: &App,
    caller: Caller,
    ticket: Option<TicketId>,
    session: Option<SessionId>,
) -> Result<CanWork<SessionId>> {
    match (ticket, session) {
        (None, Some(session)) => CanWork::authorize(app, caller, session).await,
        (Some(ticket), None) => {
            let access = CanWork::<TicketId>::authorize(app, caller, ticket).await?;
            let id = access.id;
            let row = app.read(async move |tx| Ok(tickets::find_ticket(tx, id).await?)).await?;
            let session = row.and_then(|ticket| ticket.session_id).ok_or_else(|| {
                Problem::invalid("ticket_id: no sandbox has worked on the ticket; `atoll run --ticket KEY` starts one")
            })?;
            CanWork::authorize(app, access.caller, session).await
        }
        (Some(_), Some(_)) | (None, None) => Err(Problem::invalid("name a `ticket_id` or a `session_id`")),
    }
}

/// Publishes the branch of a session. A failed workflow continues.
pub async fn finish_workflow(
    app: &App,
    client: ClientCaller,
    key: IdempotencyKey,
    request: FinishBranchWorkflow,
) -> Result<JsonResponse> {
    let goal = match request.publish.unwrap_or(Publication::PullRequest) {
        Publication::None => return Err(Problem::invalid("publish: `push` or `pull_request`")),
        Publication::Push => WorkflowGoal::Push,
        Publication::PullRequest => WorkflowGoal::PullRequest,
    };
    let access = find_target(app, client.0, request.ticket_id, request.session_id).await?;
    request_goal(app, access, key, goal, None).await
}

/// Merges the pull request of a session as soon as its checks and reviews allow it. Opens it first if there is none.
pub async fn merge_workflow(
    app: &App,
    client: ClientCaller,
    key: IdempotencyKey,
    request: MergeBranchWorkflow,
) -> Result<JsonResponse> {
    let access = find_target(app, client.0, request.ticket_id, request.session_id).await?;
    request_goal(app, access, key, WorkflowGoal::Merge, request.method).await
}

async fn request_goal(
    app: &App,
    access: CanWork<SessionId>,
    key: IdempotencyKey,
    goal: WorkflowGoal,
    method: Option<MergeMethod>,
) -> Result<JsonResponse> {
    let (id, requester): (SessionId, Option<UserId>) = (access.id, access.caller.user());
    app.write_once(&access.caller, key, async move |work| {
        let session = lock_session(work, id).await?;
        let mut row = match rows::find_workflow(work.tx, id).await? {
            Some(row) => restart_row(work, row, goal),
            None => {
                let sandbox = match session.last_sandbox_id {
                    Some(id) => sandboxes::find_sandbox(work.tx, id).await?,
                    None => None,
                };
                let sandbox = sandbox.ok_or_else(|| Problem::not_found("sandbox"))?;
                let detail = "the session has no repository with a URL, so its branch cannot be pushed";
                let no_repository = || Problem::new(Code::NoRepository, detail);
                let repo = sandbox.settings.repo.clone().filter(|repo| repo.url.is_some()).ok_or_else(no_repository)?;
                new_row(work, &session, &sandbox, &repo, goal, None)
            }
        };
        row.requested_by = requester.or(row.requested_by);
        row.record.merge_method = method.unwrap_or(row.record.merge_method);
        store_and_schedule(work, &row).await?;
        JsonResponse::ok(load_workflow(work.tx, id).await?)
    })
    .await
}

pub async fn read_status(app: &App, client: ClientCaller, query: BranchWorkflowQuery) -> Result<BranchWorkflow> {
    match (query.ticket, query.session) {
        (None, Some(session)) => {
            let access = CanSee::<SessionId>::authorize(app, client.0, session).await?;
            app.read(async move |tx| load_workflow(tx, access.id).await).await
        }
        (Some(ticket), None) => {
            let access = CanSee::<TicketId>::authorize(app, client.0, ticket).await?;
            app.read(async move |tx| {
                let ticket = tickets::find_ticket(tx, access.id).await?.ok_or_else(|| Problem::not_found("ticket"))?;
                view_ticket_workflow(tx, ticket).await
            })
            .await
        }
        (Some(_), Some(_)) | (None, None) => Err(Problem::invalid("name a `ticket` or a `session`")),
    }
}

async fn load_workflow(tx: &mut dyn Tx, id: SessionId) -> Result<BranchWorkflow> {
    let session = sessions::find_session(tx, id).await?.ok_or_else(|| Problem::not_found("session"))?;
    let ticket = tickets::find_session_ticket(tx, id).await?.map(|ticket| ticket.key);
    let progress = rows::find_workflow(tx, id).await?.map(view_progress);
    let (project_id, branch) = (session.project_id, session.branch);
    Ok(BranchWorkflow { project_id, ticket, session_id: Some(id), branch, progress })
}

async fn view_ticket_workflow(tx: &mut dyn Tx, ticket: TicketRow) -> Result<BranchWorkflow> {
    let progress = match ticket.session_id {
        Some(session) => rows::find_workflow(tx, session).await?.map(view_progress),
        None => None,
    };
    let TicketRow { project_id, key, session_id, branch, .. } = ticket;
    Ok(BranchWorkflow { project_id, ticket: Some(key), session_id, branch, progress })
}

fn view_progress(row: BranchWorkflowRow) -> BranchWorkflowProgress {
    let record = row.record;
    BranchWorkflowProgress {
        goal: record.progress.goal,
        step: record.progress.step,
        state: record.progress.state,
        reason: record.reason,
        repo: record.repo.url.unwrap_or_default(),
        target: record.repo.target.unwrap_or_default(),
        pushed_commit: record.remote_commit,
        pull_request: record.pull_request.map(|pull| PullRequestFacts {
            number: pull.number,
            url: pull.url,
            title: pull.title,
            state: pull.state,
        }),
        conflicts: record.conflict.map(|conflict| conflict.paths).unwrap_or_default(),
        flagged: record.flagged,
        updated_at: row.updated_at,
    }
}

pub async fn list_pull_requests(
    app: &App,
    access: CanList,
    query: PullRequestListQuery,
) -> Result<Page<PullRequestView>> {
    let limit = page_size(query.limit, 50, 200)?;
    let before = decode_id::<SessionId>("pull-requests", query.cursor.as_deref())?;
    let filter =
        PullRequestFilter { visible_projects: access.projects.as_filter(), project: query.project, state: query.state };
    app.read(async move |tx| {
        let found = rows::list_pull_requests(tx, &filter, before.as_deref(), limit + 1).await?;
        let page = cut_page("pull-requests", found, limit, |row| row.session_id.to_string());
        let mut items = Vec::with_capacity(page.items.len());
        for row in page.items {
            items.extend(view_pull_request(tx, row).await?);
        }
        Ok(Page { items, next_cursor: page.next_cursor })
    })
    .await
}

/// A pull request with what the forge reports about it now.
pub async fn read_pull_request(app: &App, access: CanSee<SessionId>) -> Result<PullRequestView> {
    let id = access.id;
    let not_found = || Problem::not_found("pull request");
    let (row, view) = app
        .read(async move |tx| {
            let row = rows::find_workflow(tx, id).await?.ok_or_else(not_found)?;
            let view = view_pull_request(tx, row.clone()).await?.ok_or_else(not_found)?;
            Ok((row, view))
        })
        .await?;
    if view.state != PullRequestState::Open {
        return Ok(view);
    }
    let asked = tokio::time::timeout(STATUS_TIMEOUT, read_forge_status(app, &row, view.number)).await;
    match asked {
        Ok(Ok(status)) => {
            let merge = Some(decide_merge(&status));
            Ok(PullRequestView { state: status.state, status: Some(status), merge, ..view })
        }
        Ok(Err(problem)) => {
            tracing::debug!(detail = problem.detail, "failed to read the status of a pull request");
            Ok(view)
        }
        Err(_) => Ok(view),
    }
}

async fn read_forge_status(app: &App, row: &BranchWorkflowRow, number: u64) -> Result<PullRequestStatus> {
    let url = row.record.repo.url.as_deref().unwrap_or_default();
    let connection = connect_forge(app, url, row.requested_by).await?;
    let status = connection.forge.read_status(&connection.repository, number).await;
    status.map_err(|error| connection.problem(&error))
}

async fn view_pull_request(tx: &mut dyn Tx, row: BranchWorkflowRow) -> Result<Option<PullRequestView>> {
    let Some(pull) = row.record.pull_request else { return Ok(None) };
    let ticket = tickets::find_session_ticket(tx, row.session_id).await?.map(|ticket| ticket.key);
    Ok(Some(PullRequestView {
        session_id: row.session_id,
        project_id: row.project_id,
        ticket,
        number: pull.number,
        url: pull.url,
        title: pull.title,
        state: pull.state,
        repo: row.record.repo.url.unwrap_or_default(),
        branch: row.record.repo.branch.unwrap_or_default(),
        target: row.record.repo.target.unwrap_or_default(),
        status: None,
        merge: None,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }))
}
