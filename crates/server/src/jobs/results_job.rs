//! The results job: exports a sandbox's commits as a branch of its repository.

use super::{JobOutcome, back_off};
use crate::app::{Work, lifecycle};
use crate::problem::{Problem, Result};
use crate::providers::Providers;
use crate::repositories;
use crate::state::App;
use atoll_api::events::{EventData, GitBranchCreated, GitNothingChanged, ProtectedPaths};
use atoll_core::event::{EventSource, NewEvent};
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::{CommandExit, Error, GitOperation, ProviderId};
use atoll_core::sandbox::{Reason, ResultsState, SandboxState};
use atoll_forge::{ImportOutcome, ImportedResult};
use atoll_store::jobs::Job;
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::{self, SessionRow};
use serde_json::json;
use std::sync::Arc;

/// Attempts before a transient error counts as a failure.
const MAX_ATTEMPTS: i64 = 5;

enum ResultsError {
    /// A transient error.
    Retry(String),
    /// A permanent error: reason code and detail.
    Permanent(&'static str, String),
}

impl From<Error> for ResultsError {
    fn from(error: Error) -> Self {
        match error {
            Error::Gone => {
                Self::Permanent("results_lost", "the provider lost the sandbox before its results were exported".into())
            }
            error if error.is_retryable() => Self::Retry(error.to_string()),
            error => Self::Permanent("results_failed", error.to_string()),
        }
    }
}

pub(crate) async fn take_results(app: &Arc<App>, providers: &Providers, job: &Job) -> Result<JobOutcome> {
    let id = job.sandbox_id;
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
    match export_branch(app, providers, &session, &row).await {
        Ok(ImportOutcome::Branch(result)) => record_results(app, &row, Some(result)).await,
        Ok(ImportOutcome::NoNewCommits) => record_results(app, &row, None).await,
        Ok(ImportOutcome::Protected { paths }) => refuse_protected(app, &row, &paths).await,
        Err(ResultsError::Retry(detail)) if job.attempts < MAX_ATTEMPTS => {
            tracing::warn!(sandbox = %id, detail, "failed to export the results; will retry");
            Ok(JobOutcome::RetryAfter(back_off(job.attempts)))
        }
        Err(ResultsError::Retry(detail)) => {
            record_failure(app, &row, Reason::new("results_failed", detail), None).await
        }
        Err(ResultsError::Permanent(code, detail)) => record_failure(app, &row, Reason::new(code, detail), None).await,
    }
}

async fn export_branch(
    app: &Arc<App>,
    providers: &Providers,
    session: &SessionRow,
    row: &SandboxRow,
) -> std::result::Result<ImportOutcome, ResultsError> {
    let provider = providers.get(row.provider);
    let Some(name) = row.provider_id.clone() else { return Err(Error::Gone.into()) };
    let id = ProviderId(name);
    // From here on no process writes to the workspace.
    provider.stop(&id).await?;
    let (repo, base) = match &row.settings.repo {
        Some(repo) => (repo.clone(), repo.base.clone().unwrap_or_default()),
        None => return Err(ResultsError::Permanent("results_failed", "the sandbox has no repository".into())),
    };
    let later = |error: std::io::Error| ResultsError::Retry(format!("cannot create a file for the results: {error}"));
    let scratch = repositories::ScratchDir::new(app, row.id).map_err(later)?;
    let bundle = scratch.create("results").map_err(later)?;
    let author = repositories::repository_author(&repo)
        .await
        .map_err(|problem| ResultsError::Permanent("results_failed", problem.detail))?;
    let job = GitOperation::ExportBundle { base: base.clone(), message: session.title.clone(), author };
    let done = provider.git(&id, &job, bundle).await?;
    match done.exit {
        CommandExit::Exited { code: 0 } => {}
        exit => {
            let error_text = repositories::git_error_text(&done.error_output);
            return Err(ResultsError::Permanent(
                "results_failed",
                format!("git could not read the workspace ({exit:?}): {error_text}"),
            ));
        }
    }
    let protected = row.settings.protected.clone();
    repositories::import_results(&repo, scratch, base, protected)
        .await
        .map_err(|problem| ResultsError::Permanent("results_failed", problem.detail))
}

fn results_event(work: &Work<'_>, row: &SandboxRow, result: Option<&ImportedResult>) -> NewEvent {
    let repo = row.settings.repo.as_ref().and_then(|repo| repo.path.clone());
    let data = match result {
        Some(result) => EventData::GitBranchCreated(GitBranchCreated {
            branch: result.branch.clone(),
            commit: result.commit.clone(),
            base: result.base.clone(),
            commits: result.commits,
            files: result.files.iter().map(|file| json!(file)).collect(),
            flagged: result.flagged.clone(),
            notes: result.notes.iter().map(|note| json!(note)).collect(),
            repo,
        }),
        None => {
            let base = row.settings.repo.as_ref().and_then(|repo| repo.base.clone());
            EventData::GitNothingChanged(GitNothingChanged { base, repo })
        }
    };
    data.into_event(work.now).with_source(EventSource::Forge, None)
}

async fn record_results(app: &App, row: &SandboxRow, result: Option<ImportedResult>) -> Result<JobOutcome> {
    let id = row.id;
    app.write(async move |work| {
        let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
        let event = results_event(work, &sandbox, result.as_ref());
        work.log(&mut sandbox, vec![event]).await?;
        sandbox.results = ResultsState::Taken;
        if let Some(result) = &result {
            session.branch = Some(result.branch.clone());
            session.updated_at = work.now;
            sessions::update_session(work.tx, &session).await?;
        }
        if sandbox.state == SandboxState::Completing {
            lifecycle::apply_trigger(work, &mut session, &mut sandbox, Trigger::ResultsExported, None, None).await?;
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
        if sandbox.state == SandboxState::Completing {
            let trigger = Trigger::ResultsFailed;
            lifecycle::apply_trigger(work, &mut session, &mut sandbox, trigger, Some(reason), None).await?;
        }
        Ok::<_, Problem>(JobOutcome::Finished)
    })
    .await
}
