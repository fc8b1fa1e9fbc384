//! Dispatch of tasks: which ones to claim, and the sandbox of each claimed one.
//!
//! A claim has two transactions. The first chooses the task and moves it to `claiming`. The second creates the sandbox, only
//! if the task still has the version of the claim; so a claim that was given up cannot start the task twice.

use super::Work;
use super::create::{create_first_sandbox, create_next_sandbox};
use super::sandbox_plan::{plan_next_sandbox, plan_sandbox, prepare_request};
use super::sessions::lock_session;
use super::task_work::{
    apply_task_trigger, fail_attempt, log_event, place_in_queue, release_file_waiters, task_progress, write_task,
};
use crate::auth::Caller;
use crate::auth::access::ClientCaller;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::NewSandbox;
use atoll_api::events::EventData;
use atoll_core::id::{SandboxId, SessionId, TaskId};
use atoll_core::principal::{Principal, user_of_actor};
use atoll_core::sandbox::{AgentLimits, EndPolicy, ProviderKind, Reason, SandboxState};
use atoll_core::session::SessionState;
use atoll_core::task::{Choice, FailureVerdict, PickUpFact, TaskState, TaskTrigger, TaskWait, choose_next};
use atoll_core::time::Timestamp;
use atoll_store::tasks::{self, TaskAttempt, TaskRow};
use atoll_store::tokens::{self, TokenHolder};
use atoll_store::{Tx, messages, sandboxes, sessions, task_queue, users};
use std::time::Duration;

/// Claims, and other moves of the queue, in one transaction. A fuller queue takes further transactions.
const MAX_MOVES: usize = 64;
/// Pause before a task whose session is busy is looked at again.
const BUSY_PAUSE: Duration = Duration::from_secs(2);
/// Added to a task's time limit for its sandbox's own: the task's comes first, because it warns.
const SANDBOX_TIMEOUT_MARGIN_S: u32 = 300;

/// A task that this server has claimed. The number fences the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskClaim {
    pub id: TaskId,
    pub number: i64,
}

/// The result of a look at the queue.
#[derive(Debug, Default)]
pub struct QueuePass {
    pub claims: Vec<TaskClaim>,
    /// There is more to do at once.
    pub is_partial: bool,
}

/// Moves waiting tasks whose time has come, and claims tasks for the free slots.
pub async fn claim_tasks(work: &mut Work<'_>, server_id: &str) -> Result<QueuePass> {
    task_queue::lock_queue(work.tx).await?;
    let mut pass = QueuePass::default();
    let mut moves = release_due_tasks(work).await?;
    if let Some(holder) = task_queue::find_released_holder(work.tx).await? {
        release_file_waiters(work, holder).await?;
        moves += 1;
    }
    let limits = work.config.orchestrator.limits();
    loop {
        if moves >= MAX_MOVES {
            pass.is_partial = true;
            return Ok(pass);
        }
        let active = task_queue::list_active_tasks(work.tx).await?;
        if active.len() >= limits.overall {
            return Ok(pass);
        }
        let candidates = task_queue::list_candidates(work.tx).await?;
        let Some(choice) = choose_next(&candidates, &active, &limits, work.steady) else { return Ok(pass) };
        moves += 1;
        match choice {
            Choice::WaitForFiles { task, holder } => {
                let Some(mut task) = tasks::lock_task(work.tx, task).await? else { continue };
                (task.wait, task.holder_id, task.level_due_at) = (Some(TaskWait::Files), Some(holder), None);
                write_task(work, &mut task).await?;
            }
            Choice::Claim(id) => pass.claims.extend(claim_task(work, id, server_id).await?),
        }
    }
}

/// Claims one task, unless the quota of its provider is used up.
async fn claim_task(work: &mut Work<'_>, id: TaskId, server_id: &str) -> Result<Option<TaskClaim>> {
    let Some(mut task) = tasks::lock_task(work.tx, id).await? else { return Ok(None) };
    if let Some(until) = task_queue::find_quota(work.tx, task.provider, work.steady).await? {
        task.available_at = Some(until);
        place_in_queue(work, &mut task, TaskWait::Quota);
        write_task(work, &mut task).await?;
        return Ok(None);
    }
    task.claim += 1;
    task.claimed_by = Some(server_id.to_owned());
    task.claim_expires_at = Some(work.steady + work.config.orchestrator.claim_timeout);
    apply_task_trigger(work, &mut task, TaskTrigger::Claimed, TaskWait::BackOff).await?;
    Ok(Some(TaskClaim { id, number: task.claim }))
}

/// Releases stale claims, tasks whose pause is over, and tasks whose deadline has come nearer. Returns their number.
async fn release_due_tasks(work: &mut Work<'_>) -> Result<usize> {
    let most = i64::try_from(MAX_MOVES).unwrap_or(i64::MAX);
    let stale = task_queue::list_stale_claims(work.tx, work.steady).await?;
    let mut moves = release_claims(work, stale).await?;
    for mut task in task_queue::list_available_tasks(work.tx, work.steady, most).await? {
        task.available_at = None;
        place_in_queue(work, &mut task, TaskWait::BackOff);
        write_task(work, &mut task).await?;
        moves += 1;
    }
    for mut task in task_queue::list_due_levels(work.tx, work.now, most).await? {
        place_in_queue(work, &mut task, TaskWait::BackOff);
        write_task(work, &mut task).await?;
        moves += 1;
    }
    Ok(moves)
}

async fn release_claims(work: &mut Work<'_>, claims: Vec<TaskRow>) -> Result<usize> {
    let count = claims.len();
    for mut task in claims {
        apply_task_trigger(work, &mut task, TaskTrigger::ClaimReleased, TaskWait::BackOff).await?;
    }
    Ok(count)
}

/// Releases the claims that an earlier run of this server left: none of them has a sandbox.
pub async fn release_own_claims(work: &mut Work<'_>, server_id: &str) -> Result<usize> {
    task_queue::lock_queue(work.tx).await?;
    let claims = task_queue::list_claims_of(work.tx, server_id).await?;
    release_claims(work, claims).await
}

/// Records that a provider's quota is used up: its tasks wait.
pub async fn record_quota(app: &App, provider: ProviderKind, detail: String, until: Option<Timestamp>) -> Result<()> {
    app.write(async move |work| {
        let pause = until.map_or(work.config.orchestrator.quota_pause, |until| until.elapsed_since(work.now));
        Ok(task_queue::set_quota(work.tx, provider, work.steady + pause, &detail).await?)
    })
    .await
}

/// Creates the sandbox of a claimed task. On a problem, the task fails, waits or returns to the queue.
pub async fn assign_task(app: &App, claim: TaskClaim) -> Result<()> {
    let problem = match try_assign(app, claim).await {
        Ok(()) => return Ok(()),
        Err(problem) => problem,
    };
    match problem.code {
        // Nothing can be stored now: the claim expires.
        Code::StoreUnavailable | Code::DiskFull | Code::ShuttingDown => return Err(problem),
        _ => {}
    }
    app.write(async move |work| {
        let Some(mut task) = lock_claimed(work.tx, claim).await? else { return Ok(()) };
        if matches!(problem.code, Code::SessionBusy | Code::SandboxBusy | Code::Conflict) {
            let verdict = FailureVerdict::Wait { after: BUSY_PAUSE };
            apply_task_trigger(work, &mut task, TaskTrigger::AttemptFailed { verdict }, TaskWait::BackOff).await?;
            return Ok(());
        }
        let is_temporary = problem.is_server_error();
        tracing::info!(task = %task.id, code = problem.code.as_str(), detail = %problem.detail, "failed to create a task's sandbox");
        let code = if is_temporary { "provider_unreachable" } else { "request_refused" };
        let detail = format!("{}: {}", problem.code.as_str(), problem.detail);
        fail_attempt(work, &mut task, None, Reason::new(code, detail)).await.map(drop)
    })
    .await
}

/// Locks the task if the claim is still its claim.
async fn lock_claimed(tx: &mut dyn Tx, claim: TaskClaim) -> Result<Option<TaskRow>> {
    let task = tasks::lock_task(tx, claim.id).await?;
    Ok(task.filter(|task| task.claim == claim.number && task.phase.state == TaskState::Claiming))
}

async fn try_assign(app: &App, claim: TaskClaim) -> Result<()> {
    let loaded = app.read(async move |tx| load_claim(tx, claim).await).await?;
    let Some((task, caller, prompt, session, spent_usd)) = loaded else { return Ok(()) };
    let new = sandbox_request(&task, prompt, session, spent_usd)?;
    let request = prepare_request(app, ClientCaller(caller), new).await?;
    app.write(async move |work| {
        let mut locked = match request.session {
            Some(id) => Some(lock_session(work, id).await?),
            None => None,
        };
        let Some(mut task) = lock_claimed(work.tx, claim).await? else { return Ok(()) };
        let created = match &mut locked {
            None => {
                let plan = plan_sandbox(work, request).await?;
                create_first_sandbox(work, plan).await?
            }
            Some(session) => {
                require_exported(work.tx, session.last_sandbox_id).await?;
                let plan = plan_next_sandbox(work, session, request).await?;
                create_next_sandbox(work, session, plan).await?
            }
        };
        let sandbox = created.sandbox.id;
        task.session_id = Some(created.sandbox.session_id);
        task.provider = created.sandbox.provider;
        task.details.feedback = None;
        for fact in [PickUpFact::SandboxSet, PickUpFact::StatusWritten] {
            let picked_up = TaskTrigger::PickedUp { fact, sandbox };
            apply_task_trigger(work, &mut task, picked_up, TaskWait::BackOff).await?;
        }
        let attempt = TaskAttempt {
            number: 0,
            sandbox_id: Some(sandbox),
            started_at: work.now,
            ended_at: None,
            outcome: None,
            class: None,
            reason: None,
        };
        tasks::insert_attempt(work.tx, task.id, &attempt).await?;
        let row = sandboxes::find_sandbox(work.tx, sandbox).await?;
        let mut row = row.ok_or_else(|| Problem::not_found("sandbox"))?;
        log_event(work, &mut row, EventData::TaskAssigned(task_progress(&task))).await
    })
    .await
}

/// Refuses to continue a session whose last sandbox still exports its work.
async fn require_exported(tx: &mut dyn Tx, last: Option<SandboxId>) -> Result<()> {
    let Some(last) = last else { return Ok(()) };
    match sandboxes::find_sandbox(tx, last).await? {
        Some(row) if row.state == SandboxState::Completing => {
            Err(Problem::new(Code::SessionBusy, "the session's last sandbox still exports its results"))
        }
        Some(_) | None => Ok(()),
    }
}

type LoadedClaim = (TaskRow, Caller, Option<String>, Option<SessionId>, f64);

/// Reads what the request for a claimed task's sandbox depends on.
async fn load_claim(tx: &mut dyn Tx, claim: TaskClaim) -> Result<Option<LoadedClaim>> {
    let task = tasks::find_task(tx, claim.id).await?;
    let Some(task) = task.filter(|task| task.claim == claim.number && task.phase.state == TaskState::Claiming) else {
        return Ok(None);
    };
    let caller = find_creator(tx, &task).await?;
    let session = match task.session_id {
        Some(id) => sessions::find_session(tx, id).await?.filter(|session| session.state == SessionState::Open),
        None => None,
    };
    let has_messages = match &session {
        Some(session) => messages::has_open_messages(tx, session.id).await?,
        None => false,
    };
    let spent_usd = session.as_ref().map_or(0.0, |session| session.cost_micros as f64 / 1e6);
    let prompt = choose_prompt(&task, session.is_some(), has_messages);
    Ok(Some((task, caller, prompt, session.map(|session| session.id), spent_usd)))
}

/// The creator of the task, with the rights of today.
async fn find_creator(tx: &mut dyn Tx, task: &TaskRow) -> Result<Caller> {
    let gone = || Problem::forbidden("the user or the token that created the task no longer exists");
    let token = task.details.token.ok_or_else(gone)?;
    let principal = match user_of_actor(&task.owner) {
        Some(user) => {
            let role = users::find_user(tx, user).await?.ok_or_else(gone)?.role;
            Principal::User { token, user, role }
        }
        None => match tokens::find_token(tx, token).await?.ok_or_else(gone)?.holder {
            TokenHolder::Service { role, project } => Principal::Service { token, role, project },
            TokenHolder::User { .. } | TokenHolder::Worker { .. } => return Err(gone()),
        },
    };
    Ok(Caller { principal, is_local: task.details.is_local, sign_in: None })
}

/// The first message of the next attempt. Without one, the agent gets the messages that wait in the session.
fn choose_prompt(task: &TaskRow, has_session: bool, has_messages: bool) -> Option<String> {
    let details = &task.details;
    if let Some(feedback) = &details.feedback {
        return Some(format!("Atoll: a validation refused your work on this task. Feedback: {feedback}"));
    }
    let describe = || match &details.description {
        Some(description) => format!("{}\n\n{description}", details.title),
        None => details.title.clone(),
    };
    match (has_session, has_messages, &details.error) {
        (false, _, _) | (true, false, None) => Some(describe()),
        (true, true, _) => None,
        (true, false, Some(error)) => Some(format!(
            "{}\n\nAtoll: an earlier attempt at this task ended early ({}: {}). Look at what is there and continue.",
            describe(),
            error.code,
            error.detail.lines().next().unwrap_or_default()
        )),
    }
}

/// Builds the request for a task's sandbox.
fn sandbox_request(
    task: &TaskRow,
    prompt: Option<String>,
    session: Option<SessionId>,
    spent_usd: f64,
) -> Result<NewSandbox> {
    let mut new: NewSandbox = serde_json::from_value(task.details.sandbox.clone().into()).map_err(Problem::internal)?;
    if let Some(budget) = task.details.budget_usd {
        let left = budget - spent_usd;
        if left <= 0.0 {
            let detail = format!("the task's budget of ${budget} is used up");
            return Err(Problem::new(Code::Invalid, detail));
        }
        let limits = new.limits.unwrap_or_default();
        let cost_usd = Some(limits.cost_usd.map_or(left, |own| own.min(left)));
        new.limits = Some(AgentLimits { cost_usd, ..limits });
    }
    new.title = Some(task.details.title.clone());
    new.prompt = prompt;
    new.project_id = Some(task.project_id);
    new.session_id = session;
    new.ticket_id = task.ticket_id;
    new.end = Some(EndPolicy::WhenDone);
    new.timeout_s = Some(task.details.timeout_s.saturating_add(SANDBOX_TIMEOUT_MARGIN_S));
    Ok(new)
}
