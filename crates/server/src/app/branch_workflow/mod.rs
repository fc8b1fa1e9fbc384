//! Branch workflows: `atoll_core::branch_workflow::next` decides; this module stores the progress, logs events, moves the
//! ticket and the sandbox, and hands conflicts to the agent. `jobs::branch_workflow` runs the steps.
//!
//! While its results are being published, a sandbox stays `completing`, so that its files are there if that fails.

pub mod dependants;
pub mod published_work;
pub mod pull_request_text;
pub mod requests;

use super::inbox::{self, MessageDraft};
use super::messages::queue_for_session;
use super::sessions::lock_session;
use super::{Work, lifecycle, ticket_work};
use crate::jobs::branch_workflow::StepReport;
use crate::problem::{Problem, Result};
use crate::repositories::BranchRepository;
use crate::state::App;
use atoll_api::events::{EventData, GitMergeWaiting, GitPushFlagged, GitStepFailed};
use atoll_core::branch_workflow::{
    StepOutcome, WorkflowEffect, WorkflowGoal, WorkflowProgress, WorkflowState, WorkflowStep, next,
};
use atoll_core::event::EventSource;
use atoll_core::git_settings::{GitSettings, UpdateMethod};
use atoll_core::id::{SessionId, UserId};
use atoll_core::job::JobKind;
use atoll_core::lifecycle::Trigger;
use atoll_core::message::{Delivery, MessageType};
use atoll_core::pull_request::{MergeMethod, PullRequestLink};
use atoll_core::sandbox::{Outcome, Reason, Repo, ResultsState, SandboxState};
use atoll_store::branch_workflows::{self as rows, BranchWorkflowRow, WorkflowRecord};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::SessionRow;
use atoll_store::{Tx, jobs};

/// The sender of messages about conflicts.
const MESSAGE_SENDER: &str = "atoll";
const MAX_REASON_CHARS: usize = 500;
/// The reason code of a sandbox whose results are on the branch, but could not be published.
const UNPUBLISHED: &str = "results_unpublished";
/// Paths that a message or an event names.
const MAX_NAMED_PATHS: usize = 50;

/// Begins or continues the workflow after the results of a sandbox are on the session's branch. Returns true if the sandbox
/// waits for it.
pub async fn publish_results(
    work: &mut Work<'_>,
    session: &SessionRow,
    sandbox: &SandboxRow,
    has_commits: bool,
) -> Result<bool> {
    let git = sandbox.settings.git.unwrap_or_default();
    let known = rows::find_workflow(work.tx, session.id).await?;
    let waits_for_agent = known.as_ref().is_some_and(|row| row.record.progress.state == WorkflowState::WaitingAgent);
    let is_published = known.as_ref().is_some_and(|row| row.record.remote_commit.is_some());
    let goal = match WorkflowGoal::from_settings(&git) {
        Some(goal) => goal,
        // The branch is at the remote already, so the new commits follow.
        None if waits_for_agent || is_published => WorkflowGoal::Push,
        None => return Ok(false),
    };
    if !has_commits && !waits_for_agent {
        return Ok(false);
    }
    // Only successful work leaves the server by itself.
    if sandbox.ending != Some(Outcome::Succeeded) || session.branch.is_none() {
        return Ok(false);
    }
    let Some(repo) = sandbox.settings.repo.as_ref().filter(|repo| repo.url.is_some()) else { return Ok(false) };
    let actor = sandbox.created_by.as_deref().and_then(|actor| actor.strip_prefix("user:"));
    let requester = actor.and_then(|user| user.parse().ok());
    let row = match known {
        Some(row) => restart_row(work, row, goal),
        None => new_row(work, session, sandbox, repo, goal, requester),
    };
    store_and_schedule(work, &row).await?;
    Ok(true)
}

fn new_row(
    work: &Work<'_>,
    session: &SessionRow,
    sandbox: &SandboxRow,
    repo: &Repo,
    goal: WorkflowGoal,
    requested_by: Option<UserId>,
) -> BranchWorkflowRow {
    let GitSettings { merge_method, update, .. } = sandbox.settings.git.unwrap_or_default();
    let record = WorkflowRecord {
        progress: WorkflowProgress::start(goal),
        repo: Repo { branch: session.branch.clone(), ..repo.clone() },
        merge_method: merge_method.unwrap_or(MergeMethod::Squash),
        update: update.unwrap_or(UpdateMethod::Merge),
        remote_commit: None,
        pull_request: None,
        conflict: None,
        reason: None,
        flagged: Vec::new(),
        flagged_commit: None,
        merged_head: None,
        dependants: None,
    };
    BranchWorkflowRow {
        session_id: session.id,
        project_id: session.project_id,
        sandbox_id: sandbox.id,
        requested_by,
        record,
        created_at: work.now,
        updated_at: work.now,
    }
}

/// The row at the begin of another round.
fn restart_row(work: &Work<'_>, mut row: BranchWorkflowRow, goal: WorkflowGoal) -> BranchWorkflowRow {
    let before = row.record.progress.clone();
    match before.state {
        WorkflowState::Running | WorkflowState::Waiting => row.record.progress.goal = before.goal.max(goal),
        WorkflowState::WaitingAgent | WorkflowState::Done | WorkflowState::Failed => {
            row.record.progress = before.restart(goal);
            row.record.reason = None;
        }
    }
    if before.is_merged() && before.state == WorkflowState::Done {
        // Work after the merge gets another pull request.
        row.record.progress.goal = goal;
        (row.record.pull_request, row.record.merged_head, row.record.remote_commit) = (None, None, None);
    }
    row.updated_at = work.now;
    row
}

async fn store_and_schedule(work: &mut Work<'_>, row: &BranchWorkflowRow) -> Result<()> {
    rows::put_workflow(work.tx, row).await?;
    jobs::schedule_job(work.tx, JobKind::BranchWorkflow, row.sandbox_id, work.steady).await?;
    work.out.jobs = true;
    Ok(())
}

/// True if the session's ended work is being published, and its sandbox waits for that.
pub async fn holds_sandbox(tx: &mut dyn Tx, sandbox: &SandboxRow) -> Result<bool> {
    if sandbox.results != ResultsState::Taken {
        return Ok(false);
    }
    let row = rows::find_workflow(tx, sandbox.session_id).await?;
    Ok(row.is_some_and(|row| row.record.progress.holds_sandbox()))
}

/// Runs the current step at once, because the forge reported a change.
pub async fn wake_workflow(work: &mut Work<'_>, session: SessionId) -> Result<()> {
    let row = rows::find_workflow(work.tx, session).await?;
    let Some(row) = row.filter(|row| row.record.progress.state == WorkflowState::Waiting) else { return Ok(()) };
    jobs::schedule_job(work.tx, JobKind::BranchWorkflow, row.sandbox_id, work.steady).await?;
    work.out.jobs = true;
    Ok(())
}

/// Publishes the results of a failed sandbox again, if that was its failure.
pub async fn retry_publication(work: &mut Work<'_>, sandbox: &SandboxRow) -> Result<bool> {
    if sandbox.reason.as_ref().is_none_or(|reason| reason.code != UNPUBLISHED) {
        return Ok(false);
    }
    let Some(row) = rows::find_workflow(work.tx, sandbox.session_id).await? else { return Ok(false) };
    let goal = row.record.progress.goal;
    let row = restart_row(work, row, goal);
    store_and_schedule(work, &row).await?;
    Ok(true)
}

/// Stores what a step must know if it runs again, before the step changes a branch.
pub async fn store_record(app: &App, session: SessionId, record: &WorkflowRecord) -> Result<()> {
    let record = record.clone();
    app.write(async move |work| {
        lock_session(work, session).await?;
        put_record(work, session, record).await
    })
    .await
}

/// Replaces what a step changes of a locked session's workflow. A request may have changed the rest while the step ran.
async fn put_record(work: &mut Work<'_>, session: SessionId, record: WorkflowRecord) -> Result<()> {
    let Some(mut row) = rows::find_workflow(work.tx, session).await? else { return Ok(()) };
    let WorkflowRecord { progress, merge_method, .. } = row.record;
    row.record = WorkflowRecord { progress, merge_method, ..record };
    Ok(rows::put_workflow(work.tx, &row).await?)
}

/// Reports flagged files before they are pushed.
pub async fn report_flagged(app: &App, session: SessionId, record: &WorkflowRecord, count: usize) -> Result<()> {
    let flagged = GitPushFlagged {
        branch: record.repo.branch.clone().unwrap_or_default(),
        commit: record.flagged_commit.clone().unwrap_or_default(),
        paths: record.flagged.clone(),
        count,
    };
    let commit = record.flagged_commit.clone();
    let paths = record.flagged.clone();
    app.write(async move |work| {
        let session = lock_session(work, session).await?;
        let Some(mut row) = rows::find_workflow(work.tx, session.id).await? else { return Ok(()) };
        (row.record.flagged, row.record.flagged_commit) = (paths, commit);
        rows::put_workflow(work.tx, &row).await?;
        log_events(work, &session, vec![EventData::GitPushFlagged(flagged)]).await
    })
    .await
}

/// The message that asks the agent to resolve a conflict.
pub fn conflict_message(repo: &Repo, paths: &[String], excerpt: &str) -> String {
    let (branch, target) = (repo.branch.as_deref().unwrap_or_default(), repo.target.as_deref().unwrap_or_default());
    let named: String = paths.iter().take(MAX_NAMED_PATHS).map(|path| format!("- {path}\n")).collect();
    format!(
        "The branch {branch} conflicts with {target}. The last commit of your workspace is the merge of both, with \
         conflict markers (<<<<<<<, =======, >>>>>>>) in these files:\n{named}\nA file without markers is binary, or one \
         side renamed or deleted it: decide what it must be. Resolve each conflict so that the intent of both sides stays, \
         remove the markers, check your work, and commit.\n\n{excerpt}"
    )
}

/// Stores what a step did, and what follows.
pub async fn store_step(
    app: &App,
    before: BranchWorkflowRow,
    record: WorkflowRecord,
    report: StepReport,
) -> Result<WorkflowEffect> {
    let is_conflict = report.outcome == StepOutcome::Conflict;
    let (session, kept) = (before.session_id, record.clone());
    match write_step(app, session, record, report).await {
        Err(problem) if is_conflict && !problem.is_server_error() => {
            undo_conflict(app, &before, &kept).await?;
            let detail = format!("the agent cannot resolve the conflict with the base: {}", problem.detail);
            let reason = Some(Reason::new("conflict_undelivered", detail));
            let failed = StepReport { outcome: StepOutcome::Refused, reason, ..StepReport::finished() };
            let restored = WorkflowRecord { conflict: None, repo: before.record.repo, ..kept };
            write_step(app, session, restored, failed).await
        }
        stored => stored,
    }
}

/// Returns the branch to its commit before the conflict.
async fn undo_conflict(app: &App, before: &BranchWorkflowRow, record: &WorkflowRecord) -> Result<()> {
    let (Some(conflict), Some(branch)) = (record.conflict.clone(), record.repo.branch.clone()) else { return Ok(()) };
    let connected = BranchRepository::connect(app, before, &record.repo).await?;
    let undone = connected
        .run(move |own| Ok(own.mirror.repository()?.move_branch(&branch, &conflict.commit, &conflict.previous)?));
    undone.await.map(drop).map_err(Problem::internal)
}

async fn write_step(
    app: &App,
    session: SessionId,
    mut record: WorkflowRecord,
    report: StepReport,
) -> Result<WorkflowEffect> {
    app.write(async move |work| {
        let mut session = lock_session(work, session).await?;
        let Some(mut row) = rows::find_workflow(work.tx, session.id).await? else { return Ok(WorkflowEffect::Rest) };
        // A request may have changed these while the step ran.
        record.progress.goal = row.record.progress.goal;
        record.merge_method = row.record.merge_method;
        let (progress, effect) = next(&record.progress, report.outcome, work.steady);
        let reason = report.reason.map(|reason| {
            let detail = work.redact_text(row.project_id, reason.detail);
            Reason { detail: lifecycle::truncate_text(&detail, MAX_REASON_CHARS), ..reason }
        });
        let mut events = report.events;
        if let Some(reason) = &reason {
            let is_news = row.record.reason.as_ref() != Some(reason);
            events.extend(failure_event(&record, &progress, effect, reason, is_news));
        }
        let is_over = progress.state == WorkflowState::Done;
        record.progress = progress;
        record.reason = reason.filter(|_| !is_over);
        row.record = record;
        row.updated_at = work.now;
        rows::put_workflow(work.tx, &row).await?;
        log_events(work, &session, events).await?;
        if let Some(pull) = row.record.pull_request.clone() {
            let link = PullRequestLink { number: pull.number, url: pull.url, state: pull.state };
            ticket_work::record_pull_request(work, session.id, link).await?;
        }
        if let Some(step) = report.ticket {
            ticket_work::move_ticket(work, session.id, step).await?;
        }
        release_sandbox(work, &mut session, &row.record).await?;
        if let Some(content) = report.message.filter(|_| row.record.progress.state == WorkflowState::WaitingAgent) {
            let sender = Some(MESSAGE_SENDER.to_owned());
            let draft = MessageDraft { content, message_type: MessageType::System, delivery: Delivery::Queue, sender };
            queue_for_session(work, session.id, draft).await?;
        }
        Ok(effect)
    })
    .await
}

/// The event about a step that did not finish; `None` if an earlier one says the same.
fn failure_event(
    record: &WorkflowRecord,
    progress: &WorkflowProgress,
    effect: WorkflowEffect,
    reason: &Reason,
    is_news: bool,
) -> Option<EventData> {
    let branch = record.repo.branch.clone().unwrap_or_default();
    let retry_s = match (progress.state, effect) {
        (WorkflowState::Failed, _) => None,
        (WorkflowState::Running, WorkflowEffect::RunStep(delay)) if progress.attempts == 1 => Some(delay.as_secs()),
        (WorkflowState::Waiting, _) if is_news && record.progress.step == WorkflowStep::Merge => {
            let pull = record.pull_request.clone()?;
            let (number, url, reason) = (pull.number, pull.url, reason.detail.clone());
            return Some(EventData::GitMergeWaiting(GitMergeWaiting { number, url, reason }));
        }
        (
            WorkflowState::Running | WorkflowState::Waiting | WorkflowState::WaitingAgent | WorkflowState::Done,
            WorkflowEffect::RunStep(_) | WorkflowEffect::Rest,
        ) => return None,
    };
    let (step, code, detail) = (record.progress.step, reason.code.clone(), reason.detail.clone());
    let failed = GitStepFailed { branch, step, code, detail, retry_s };
    Some(match step {
        WorkflowStep::Export | WorkflowStep::Update | WorkflowStep::Push => EventData::GitPushFailed(failed),
        WorkflowStep::PullRequest => EventData::GitPrFailed(failed),
        WorkflowStep::Merge | WorkflowStep::DeleteBranch | WorkflowStep::UpdateDependants => {
            EventData::GitMergeFailed(failed)
        }
    })
}

/// Ends the sandbox that waited for the publication of its results.
async fn release_sandbox(work: &mut Work<'_>, session: &mut SessionRow, record: &WorkflowRecord) -> Result<()> {
    // A failed sandbox whose results are recovered is not the session's live one.
    let newest = session.sandbox_id.or(session.last_sandbox_id);
    let Some(newest) = newest.filter(|_| !record.progress.holds_sandbox()) else { return Ok(()) };
    let Some(mut sandbox) = sandboxes::find_sandbox(work.tx, newest).await? else { return Ok(()) };
    if sandbox.state != SandboxState::Completing || sandbox.results != ResultsState::Taken {
        return Ok(());
    }
    let (trigger, reason) = match record.progress.state {
        WorkflowState::Failed => {
            let detail = record.reason.as_ref().map(|reason| reason.detail.clone()).unwrap_or_default();
            let detail = format!(
                "the results are on the branch {}, but were not published: {detail}",
                record.repo.branch.as_deref().unwrap_or_default()
            );
            let reason = Reason::new(UNPUBLISHED, lifecycle::truncate_text(&detail, MAX_REASON_CHARS));
            (Trigger::ResultsFailed, Some(reason))
        }
        WorkflowState::Running | WorkflowState::Waiting | WorkflowState::WaitingAgent | WorkflowState::Done => {
            (Trigger::ResultsExported, None)
        }
    };
    lifecycle::apply_trigger(work, session, &mut sandbox, trigger, reason, None).await
}

async fn log_events(work: &mut Work<'_>, session: &SessionRow, events: Vec<EventData>) -> Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    let Some(mut sandbox) = inbox::find_log_sandbox(work, session).await? else { return Ok(()) };
    let now = work.now;
    let events = events.into_iter().map(|data| data.into_event(now).with_source(EventSource::Forge, None)).collect();
    work.log(&mut sandbox, events).await?;
    Ok(sandboxes::update_sandbox(work.tx, &mut sandbox).await?)
}

/// The commit that the session's branch is based on, if its workflow changed it.
pub async fn find_base(tx: &mut dyn Tx, session: SessionId) -> Result<Option<String>> {
    Ok(rows::find_workflow(tx, session).await?.and_then(|row| row.record.repo.base))
}
