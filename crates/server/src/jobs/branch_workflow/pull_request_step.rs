//! The step `pull_request`: opens the pull request of the branch, or updates the open one.
//!
//! No undo: a person decides about an open pull request.

use super::step_report::{StepFailure, StepReport, StepResult};
use crate::app::branch_workflow::pull_request_text::{PullRequestText, load_text};
use crate::forge_access::{ForgeConnection, connect_forge};
use crate::repositories::BranchRepository;
use crate::state::App;
use atoll_api::events::{EventData, GitPullRequestOpened};
use atoll_core::pull_request::PullRequestState;
use atoll_core::ticket::TicketStep;
use atoll_forges::{NewPullRequest, PullRequest};
use atoll_store::branch_workflows::{BranchWorkflowRow, StoredPullRequest, WorkflowRecord};

/// Commits that the body of a pull request lists.
const MAX_LISTED_COMMITS: usize = 30;

pub(super) async fn open_pull_request(app: &App, row: &BranchWorkflowRow, record: &mut WorkflowRecord) -> StepResult {
    let described = record.pull_request.as_ref().filter(|pull| pull.described_commit == record.remote_commit);
    if described.is_some_and(|pull| pull.state == PullRequestState::Open) {
        return Ok(StepReport::finished());
    }
    let text = load_text(app, row, list_commits(app, row, record).await?).await?;
    // Last, because another use of the credential can renew it.
    let connection = connect(app, row, record).await?;
    let (pull, is_new) = open_or_update(&connection, record, &text).await?;
    record.pull_request = Some(StoredPullRequest {
        number: pull.number,
        url: pull.url.clone(),
        title: text.title.clone(),
        state: pull.state,
        described_commit: record.remote_commit.clone(),
    });
    let PullRequest { number, url, branch, base, .. } = pull;
    let opened = GitPullRequestOpened { number, url, title: text.title, branch, base };
    let event = if is_new { EventData::GitPrCreated(opened) } else { EventData::GitPrUpdated(opened) };
    Ok(StepReport { ticket: Some(TicketStep::OpenPullRequest), ..StepReport::with_events(vec![event]) })
}

pub(super) async fn connect(
    app: &App,
    row: &BranchWorkflowRow,
    record: &WorkflowRecord,
) -> Result<ForgeConnection, StepFailure> {
    let url = record.repo.url.as_deref().unwrap_or_default();
    Ok(connect_forge(app, url, row.requested_by).await?)
}

async fn list_commits(app: &App, row: &BranchWorkflowRow, record: &WorkflowRecord) -> Result<Vec<String>, StepFailure> {
    let repository = BranchRepository::connect(app, row, &record.repo).await?;
    let (base, head) = (record.repo.base.clone().unwrap_or_default(), record.remote_commit.clone().unwrap_or_default());
    Ok(repository.run(move |own| Ok(own.mirror.repository()?.list_subjects(&base, &head, MAX_LISTED_COMMITS)?)).await?)
}

/// Returns the pull request, and true if this workflow had none before.
async fn open_or_update(
    connection: &ForgeConnection,
    record: &WorkflowRecord,
    text: &PullRequestText,
) -> Result<(PullRequest, bool), StepFailure> {
    let ForgeConnection { forge, repository, .. } = connection;
    let failed = |error| StepFailure::of_forge(connection, &error);
    let own = record.pull_request.as_ref().filter(|pull| pull.state == PullRequestState::Open);
    let branch = record.repo.branch.clone().unwrap_or_default();
    let base = record.repo.target.clone().unwrap_or_default();
    let found = match own {
        Some(own) => Some(forge.read_pull_request(repository, own.number).await.map_err(failed)?),
        // An earlier attempt may have opened it.
        None => forge.find_pull_request(repository, &branch).await.map_err(failed)?,
    };
    let open = found.filter(|pull| pull.state == PullRequestState::Open && pull.base == base);
    match open {
        Some(open) => {
            let updated = forge.update_pull_request(repository, open.number, &text.title, &text.body).await;
            Ok((updated.map_err(failed)?, own.is_none()))
        }
        None => {
            let new = NewPullRequest { title: text.title.clone(), body: text.body.clone(), branch, base };
            Ok((forge.create_pull_request(repository, &new).await.map_err(failed)?, true))
        }
    }
}
