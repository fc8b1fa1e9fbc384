//! The results job: exports an ended sandbox's commits as a branch of its repository.

use super::{JobOutcome, back_off};
use crate::app::branch_export::{ExportError, ExportedWork, RESULTS_LOST, WorkspaceUse, export_branch, record_export};
use crate::app::{branch_workflow, lifecycle, ticket_work};
use crate::problem::{Problem, Result};
use crate::providers::Providers;
use crate::state::App;
use atoll_api::events::{EventData, ProtectedPaths};
use atoll_core::event::EventSource;
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::{Error, ProviderId};
use atoll_core::sandbox::{Reason, ResultsState, SandboxState};
use atoll_core::ticket::TicketStep;
use atoll_forge::ImportOutcome;
use atoll_store::jobs::Job;
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::{self, SessionRow};
use std::sync::Arc;

/// Attempts before a transient error counts as a failure.
const MAX_ATTEMPTS: i64 = 5;

pub(crate) async fn take_results(app: &Arc<App>, providers: &Providers, job: &Job) -> Result<JobOutcome> {
    let id = job.sandbox_id;
    // A running export of live results must end first: both write to the workspace's repository.
    let _lock = app.sandbox_locks.lock(id).await;
    let found = app
        .read(async move |tx| {
            let Some(sandbox) = sandboxes::find_sandbox(tx, id).await? else { return Ok(None) };
            let session = sessions::find_session(tx, sandbox.session_id).await?;
            Ok(session.map(|session| (session, sandbox)))
        })
        .await?;
    let pending =
        found.filter(|(_, row)| row.state == SandboxState::Completing && row.results == ResultsState::Pending);
    let Some((session, row)) = pending else { return Ok(JobOutcome::Finished) };
    match stop_and_export(app, providers, &session, &row).await {
        Ok(ExportedWork { outcome: ImportOutcome::Protected { paths }, .. }) => {
            refuse_protected(app, &row, &paths).await
        }
        Ok(exported) => record_results(app, &row, exported).await,
        Err(ExportError::Retry(detail)) if job.attempts < MAX_ATTEMPTS => {
            tracing::warn!(sandbox = %id, detail, "failed to export the results; will retry");
            Ok(JobOutcome::RetryAfter(back_off(job.attempts)))
        }
        Err(ExportError::Retry(detail)) => record_failure(app, &row, Reason::new("results_failed", detail), None).await,
        Err(ExportError::Permanent(code, detail)) => record_failure(app, &row, Reason::new(code, detail), None).await,
    }
}

async fn stop_and_export(
    app: &App,
    providers: &Providers,
    session: &SessionRow,
    row: &SandboxRow,
) -> std::result::Result<ExportedWork, ExportError> {
    let provider = providers.get(row.provider);
    let Some(name) = row.provider_id.clone() else { return Err(Error::Gone.into()) };
    let id = ProviderId(name);
    // From here on no process writes to the workspace.
    provider.stop(&id).await?;
    export_branch(app, &*provider, &id, (session, row), WorkspaceUse::Ended).await
}

/// Records the export. Work that the branch lacks fails the results, and its files stay.
async fn record_results(app: &App, row: &SandboxRow, exported: ExportedWork) -> Result<JobOutcome> {
    let id = row.id;
    app.write(async move |work| {
        let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
        record_export(work, &mut session, &mut sandbox, &exported).await?;
        let (trigger, reason) = match exported.describe_unsaved() {
            Some(unsaved) => {
                let detail = format!(
                    "{unsaved}; the files are kept for a while: `atoll sandbox fork {id}` gives access to them"
                );
                (Trigger::ResultsFailed, Some(Reason::new("results_incomplete", detail)))
            }
            None => {
                ticket_work::move_ticket(work, session.id, TicketStep::ExportResults).await?;
                sandbox.results = ResultsState::Taken;
                let has_commits = matches!(exported.outcome, ImportOutcome::Branch(_));
                let is_ending = sandbox.state == SandboxState::Completing;
                if is_ending && branch_workflow::publish_results(work, &session, &sandbox, has_commits).await? {
                    // The sandbox ends when the branch is published.
                    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
                    return Ok(JobOutcome::Finished);
                }
                (Trigger::ResultsExported, None)
            }
        };
        if sandbox.state == SandboxState::Completing {
            lifecycle::apply_trigger(work, &mut session, &mut sandbox, trigger, reason, None).await?;
        } else {
            // The sandbox ended meanwhile; the branch exists anyway.
            sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
        }
        Ok(JobOutcome::Finished)
    })
    .await
}
/// Paths named in the reason; the event lists more.
const MAX_NAMED_PATHS: usize = 5;
const MAX_LISTED_PATHS: usize = 200;

/// Fails the results because the work changes protected paths. The files stay.
async fn refuse_protected(app: &App, row: &SandboxRow, paths: &[String]) -> Result<JobOutcome> {
    let more = if paths.len() > MAX_NAMED_PATHS {
        format!(" and {} more", paths.len() - MAX_NAMED_PATHS)
    } else {
        String::new()
    };
    let named: Vec<&str> = paths.iter().take(MAX_NAMED_PATHS).map(String::as_str).collect();
    let detail = format!(
        "the work changes protected paths, so no branch was made: {}{more}; its files are kept for a while",
        named.join(", ")
    );
    let listed = paths.iter().take(MAX_LISTED_PATHS).cloned().collect();
    let protected = row.settings.protected.clone();
    let refused = ProtectedPaths { paths: listed, count: paths.len(), protected };
    record_failure(app, row, Reason::new("results_protected", detail), Some(refused)).await
}

/// Fails the sandbox's results. `refused` is the data of a protected-path event.
async fn record_failure(
    app: &App,
    row: &SandboxRow,
    reason: Reason,
    refused: Option<ProtectedPaths>,
) -> Result<JobOutcome> {
    let id = row.id;
    let reason = Reason { detail: lifecycle::truncate_text(&reason.detail, 500), ..reason };
    app.write(async move |work| {
        let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
        if let Some(paths) = refused {
            let event = EventData::GuardianProtectedPath(paths).into_event(work.now);
            work.log(&mut sandbox, vec![event.with_source(EventSource::Guardian, None)]).await?;
        }
        if reason.code == RESULTS_LOST {
            sandbox.results = ResultsState::Lost;
        }
        if sandbox.state == SandboxState::Completing {
            let trigger = Trigger::ResultsFailed;
            lifecycle::apply_trigger(work, &mut session, &mut sandbox, trigger, Some(reason), None).await?;
        }
        Ok::<_, Problem>(JobOutcome::Finished)
    })
    .await
}
