//! Ending a sandbox: stopping it, exporting its results, removing it.

use super::row_wait::wait_for_row;
use super::targets::load_sandbox;
use super::views::load_sandbox_view;
use super::{Work, branch_workflow, continuous, lifecycle, live_results, pausing};
use crate::auth::access::CanWork;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::events::{EventData, GitBranchCreated};
use atoll_api::{ExportedResult, ExportedResults};
use atoll_core::event::{EventTypePattern, kind};
use atoll_core::id::SandboxId;
use atoll_core::job::JobKind;
use atoll_core::lifecycle::Trigger;
use atoll_core::sandbox::{Reason, ResultsAction, ResultsState, SandboxState};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::SessionRow;
use atoll_store::{events, jobs};
use std::sync::Arc;
use std::time::Duration;

/// Stops a sandbox at a person's request.
pub async fn stop_sandbox(
    work: &mut Work<'_>,
    id: SandboxId,
    choice: ResultsAction,
    actor: String,
) -> Result<SandboxRow> {
    end_sandbox(work, id, choice, Reason::new("stopped", "stopped by a person"), Some(actor)).await
}

/// Ends the sandbox of a cancelled task.
pub async fn end_cancelled_task(work: &mut Work<'_>, id: SandboxId, actor: String) -> Result<SandboxRow> {
    let reason = Reason::new("task_cancelled", "its task was cancelled");
    end_sandbox(work, id, ResultsAction::Take, reason, Some(actor)).await
}

/// Ends the sandbox after its worker reported that the work is done.
pub async fn end_completed_task(work: &mut Work<'_>, session: &mut SessionRow, sandbox: &mut SandboxRow) -> Result<()> {
    let reason = Reason::new("task_reported", "the worker reported that the task is done");
    lifecycle::apply_trigger(work, session, sandbox, Trigger::WorkDone, Some(reason), None).await?;
    lifecycle::complete_if_worker_left(work, session, sandbox).await
}

/// Ends a sandbox whose worktree was removed.
pub async fn end_removed_worktree(work: &mut Work<'_>, id: SandboxId) -> Result<SandboxRow> {
    let reason = Reason::new("worktree_removed", "its worktree was removed");
    end_sandbox(work, id, ResultsAction::Discard, reason, None).await
}

/// Ends a sandbox whose session continues in another one.
pub async fn end_for_restart(work: &mut Work<'_>, id: SandboxId, reason: Reason) -> Result<SandboxRow> {
    end_sandbox(work, id, ResultsAction::Take, reason, None).await
}

/// Ends a sandbox with or without its results.
pub(super) async fn end_sandbox(
    work: &mut Work<'_>,
    id: SandboxId,
    choice: ResultsAction,
    reason: Reason,
    actor: Option<String>,
) -> Result<SandboxRow> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    let work_was_done = sandbox.status.is_turn_done() && !continuous::is_live(work.tx, &sandbox).await?;
    let trigger = match choice {
        ResultsAction::Take => Trigger::StopAndExport { work_was_done },
        ResultsAction::Discard => Trigger::StopAndDiscard { work_was_done },
    };
    let already = match (sandbox.state, choice) {
        (SandboxState::Completed | SandboxState::Failed, _) => true,
        (SandboxState::Completing, ResultsAction::Take) => true,
        (SandboxState::Completing, ResultsAction::Discard) => false,
        (SandboxState::Pending | SandboxState::Creating | SandboxState::Running, _) => false,
    };
    if !already {
        lifecycle::apply_trigger(work, &mut session, &mut sandbox, trigger, Some(reason), actor).await?;
        lifecycle::complete_if_worker_left(work, &mut session, &mut sandbox).await?;
    }
    Ok(sandbox)
}

/// Exports the results of a failed sandbox. With a repository a job creates the branch; without one there is nothing left to
/// export. A running sandbox exports its current work elsewhere (`live_results`).
pub async fn start_results_export(work: &mut Work<'_>, id: SandboxId, actor: String) -> Result<SandboxRow> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    match sandbox.state {
        SandboxState::Running | SandboxState::Completing | SandboxState::Completed => {}
        SandboxState::Pending | SandboxState::Creating => {
            return Err(Problem::new(Code::IllegalTransition, "the sandbox has not started yet")
                .with("state", sandbox.state.as_str()));
        }
        SandboxState::Failed => {
            if sandbox.provider_id.is_none() {
                return Err(Problem::new(
                    Code::SandboxGone,
                    "the sandbox's files are gone, so there are no results to export",
                ));
            }
            recover_results(work, &mut session, &mut sandbox, Some(actor)).await?;
        }
    }
    Ok(sandbox)
}

/// Begins to export the results of a failed sandbox whose files exist. The caller holds the session's lock.
pub async fn recover_results(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    actor: Option<String>,
) -> Result<()> {
    let code = sandbox.reason.as_ref().map(|reason| reason.code.clone()).unwrap_or_default();
    let results_had_failed = code.starts_with("results_");
    let recover = Trigger::Recover { results_had_failed };
    let failed = sandbox.clone();
    lifecycle::apply_trigger(work, session, sandbox, recover, None, actor.clone()).await?;
    // An earlier version could mark results as lost while their files existed.
    if matches!(sandbox.results, ResultsState::Pending | ResultsState::Lost) {
        sandbox.results = ResultsState::Pending;
        sandboxes::update_sandbox(work.tx, sandbox).await?;
        lifecycle::finish_flush(work, session, sandbox).await
    } else if branch_workflow::retry_publication(work, &failed).await? {
        Ok(jobs::cancel_job(work.tx, JobKind::FlushGrace, sandbox.id).await?)
    } else {
        sandbox.results = ResultsState::Taken;
        lifecycle::apply_trigger(work, session, sandbox, Trigger::ResultsExported, None, actor).await
    }
}

/// Removes the sandbox at its provider and from lists. Its row, events and blobs stay.
pub async fn remove_sandbox(work: &mut Work<'_>, id: SandboxId, force: bool, actor: String) -> Result<SandboxRow> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    if sandbox.results == ResultsState::Pending && !force {
        return Err(Problem::new(Code::ResultsPending, "export the results first, or set ?force=true to discard them")
            .with("sandbox_id", id.to_string()));
    }
    if sandbox.state.is_live() {
        let work_was_done = sandbox.status.is_turn_done() && !continuous::is_live(work.tx, &sandbox).await?;
        let trigger = Trigger::StopAndDiscard { work_was_done };
        let reason = Reason::new("removed", "removed by a person");
        lifecycle::apply_trigger(work, &mut session, &mut sandbox, trigger, Some(reason), Some(actor)).await?;
    } else {
        if sandbox.results == ResultsState::Pending {
            sandbox.results = ResultsState::Lost;
            sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
        }
        jobs::schedule_job(work.tx, JobKind::Remove, id, work.steady).await?;
        work.out.jobs = true;
    }
    sandboxes::archive_sandbox(work.tx, &mut sandbox).await?;
    Ok(sandbox)
}

/// How long a request waits for the results.
const RESULTS_WAIT: Duration = Duration::from_secs(60);

/// Exports the results and waits until they are exported. A running sandbox exports its current work and continues.
pub async fn export_results(app: &Arc<App>, access: CanWork<SandboxId>, key: IdempotencyKey) -> Result<JsonResponse> {
    let (id, actor) = (access.id, access.actor());
    if load_sandbox(app, &access).await?.state == SandboxState::Running
        && app.find_replay(&access.caller, &key).await?.is_none()
    {
        live_results::export_live_results(Arc::clone(app), access.clone()).await?;
    }
    let started = app.write_once(&access.caller, key, async move |work| {
        let row = start_results_export(work, id, actor).await?;
        JsonResponse::ok(load_sandbox_view(work.tx, row).await?)
    });
    started.await?;
    wait_for_row(app, id, RESULTS_WAIT, |row| row.state != SandboxState::Completing).await?;
    JsonResponse::ok(load_results(app, id).await?)
}

/// Reads the exported branches from the event log.
async fn load_results(app: &App, id: SandboxId) -> Result<ExportedResults> {
    app.read(async move |tx| {
        let row = sandboxes::find_sandbox(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
        let mut results = Vec::new();
        let branches = EventTypePattern::Exact(kind::GIT_BRANCH_CREATED.into());
        let filter = events::EventLogFilter { types: vec![branches], ..events::EventLogFilter::default() };
        let (log, newest) = ((id, row.session_id), events::EventLogOrder::NewestFirst);
        for event in events::read_event_page(tx, log, &filter, newest, i64::MAX, 10).await?.events {
            if let EventData::GitBranchCreated(created) = EventData::from_event(&event) {
                let GitBranchCreated { branch, commit, repo, .. } = created;
                // An earlier commit of a branch is part of the newest one.
                let is_listed = |result: &ExportedResult| match result {
                    ExportedResult::Branch { branch: listed, .. } => *listed == branch,
                };
                if !results.iter().any(is_listed) {
                    results.push(ExportedResult::Branch { branch, commit, repo });
                }
            }
        }
        Ok(ExportedResults { taken: results, sandbox: load_sandbox_view(tx, row).await? })
    })
    .await
}

/// Stops a sandbox. A paused one resumes first, so that its worker can flush.
pub async fn submit_stop(
    app: &Arc<App>,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    choice: ResultsAction,
) -> Result<JsonResponse> {
    pausing::resume_before_stop(app, &access).await?;
    let (id, actor) = (access.id, access.actor());
    app.write_once(&access.caller, key, async move |work| {
        let row = stop_sandbox(work, id, choice, actor).await?;
        JsonResponse::ok(load_sandbox_view(work.tx, row).await?)
    })
    .await
}

pub async fn submit_removal(app: &App, access: CanWork<SandboxId>, force: bool) -> Result<atoll_api::Sandbox> {
    app.write(async move |work| {
        let row = remove_sandbox(work, access.id, force, access.actor()).await?;
        load_sandbox_view(work.tx, row).await
    })
    .await
}
