//! The remove job: destroys a sandbox at its provider, with retries until it succeeds.

use super::recover::find_by_labels;
use super::{JobOutcome, back_off};
use crate::app::{notices, saved_work};
use crate::problem::Result;
use crate::providers::Providers;
use crate::repositories::release_repository;
use crate::state::App;
use atoll_core::provider::{Error, ProviderId, SandboxLookup};
use atoll_core::sandbox::ResultsState;
use atoll_providers::SandboxNotice;
use atoll_store::jobs::Job;
use atoll_store::sandboxes;
use std::time::Duration;

const DESTROY_TIMEOUT: Duration = Duration::from_secs(60);
/// Failures are logged as warnings from this attempt on.
const WARN_AFTER_ATTEMPTS: i64 = 8;

pub(crate) async fn remove_sandbox(app: &App, providers: &Providers, job: &Job) -> Result<JobOutcome> {
    let id = job.sandbox_id;
    let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await?;
    let Some(row) = row.filter(|row| row.state.has_ended()) else { return Ok(JobOutcome::Finished) };
    let provider = providers.get(row.provider);
    let provider_id = match row.provider_id {
        Some(name) => ProviderId(name),
        // The response with the provider id may have been lost.
        None => match find_by_labels(app, &*provider, id).await {
            SandboxLookup::Found(found) => found.id,
            SandboxLookup::Gone => return Ok(JobOutcome::Finished),
            SandboxLookup::Unreachable { .. } => return Ok(JobOutcome::RetryAfter(back_off(job.attempts))),
        },
    };
    // No person decided what happens to these results, so their diff outlasts the files.
    if row.results == ResultsState::Pending
        && job.attempts == 0
        && let Err(problem) = saved_work::save_and_record(app, id).await
    {
        tracing::warn!(sandbox = %id, detail = %problem.detail, "failed to save the work of a sandbox before its removal");
    }
    let call = tokio::time::timeout(DESTROY_TIMEOUT, provider.destroy(&provider_id));
    match call.await {
        Ok(Ok(()) | Err(Error::Gone)) => {
            if let Some(repo) = &row.settings.repo {
                release_repository(app, id, repo).await;
            }
            app.write(async move |work| {
                let (_, mut sandbox) = work.lock_sandbox(id).await?;
                sandbox.provider_id = None;
                if sandbox.results == ResultsState::Pending {
                    sandbox.results = ResultsState::Lost;
                }
                Ok(sandboxes::update_sandbox(work.tx, &mut sandbox).await?)
            })
            .await?;
            Ok(JobOutcome::Finished)
        }
        Ok(Err(error)) => {
            if job.attempts == WARN_AFTER_ATTEMPTS {
                let text = "the provider does not remove the sandbox; the server tries it again and again";
                let notice = SandboxNotice::Text(format!("{text}: {error}"));
                notices::record_notice_of_any(app, id, notice).await;
            }
            if job.attempts >= WARN_AFTER_ATTEMPTS {
                tracing::warn!(sandbox = %id, %error, attempts = job.attempts, "failed to destroy a sandbox at its provider");
            }
            Ok(JobOutcome::RetryAfter(back_off(job.attempts)))
        }
        Err(_) => Ok(JobOutcome::RetryAfter(back_off(job.attempts))),
    }
}
