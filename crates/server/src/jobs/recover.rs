//! Recovery at start-up: adopts the sandboxes of an earlier server and records the lost ones.

use super::reaper::reap;
use crate::app::lifecycle;
use crate::problem::Result;
use crate::providers::Providers;
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::capabilities::Listing;
use atoll_core::provider::{Provider, ProviderId, ProviderState, SandboxLookup};
use atoll_core::sandbox::{Reason, ResultsState, SandboxState};
use atoll_store::sandboxes::SandboxRow;
use atoll_store::{sandboxes, streams};
use std::sync::Arc;
use std::time::Duration;

/// At start-up there is no running request whose row is still missing, so orphans have no grace period.
pub(crate) async fn recover_sandboxes(app: &Arc<App>, providers: &Providers) -> Result<()> {
    reap(app, providers, Duration::ZERO, false).await.map(drop)
}

/// Adopts one sandbox, or records that its provider lost it. Returns `Gone` if it did; a dry run changes nothing.
pub(super) async fn recover_sandbox(
    app: &Arc<App>,
    providers: &Providers,
    sandbox: SandboxRow,
    dry_run: bool,
) -> Result<SandboxLookup> {
    let not_here = SandboxLookup::Unreachable { detail: String::new() };
    // The create job starts an interrupted set-up again.
    if sandbox.is_being_set_up() {
        return Ok(not_here);
    }
    let provider = providers.get(sandbox.provider);
    let is_here = provider.capabilities().runs_agents();
    if is_here && sandbox.server_id.as_ref().is_some_and(|server| *server != app.server_id) {
        return Ok(not_here); // belongs to another server
    }
    let found = match (sandbox.provider_id, sandbox.state) {
        (Some(name), _) => provider.get(&ProviderId(name)).await,
        // Its worker reported, but the response with its provider id was lost. Creating it again would replace the work, and
        // only an exact listing can prove that it is gone.
        (None, SandboxState::Running | SandboxState::Completing)
            if provider.capabilities().listing == Listing::Exact =>
        {
            find_by_labels(app, &*provider, sandbox.id).await
        }
        // The create job runs again with the same key.
        (None, _) => return Ok(not_here),
    };
    match &found {
        SandboxLookup::Found(_) | SandboxLookup::Gone if dry_run => {}
        SandboxLookup::Found(found) => {
            if is_here && found.state == ProviderState::Stopped {
                tokio::spawn(confirm_death(Arc::clone(app), Arc::clone(&provider), sandbox.id, found.id.clone()));
            }
            if found.state == ProviderState::Paused {
                resume_unmarked(app, &*provider, sandbox.id, &found.id).await;
            }
        }
        SandboxLookup::Unreachable { detail } => {
            tracing::warn!(sandbox = %sandbox.id, %detail, "the provider cannot be reached to look up a sandbox");
        }
        SandboxLookup::Gone => record_lost_sandbox(app, sandbox.id).await?,
    }
    Ok(found)
}

/// Records the death of a worker, unless the server restarts that worker just now.
async fn confirm_death(app: Arc<App>, provider: Arc<dyn Provider>, id: SandboxId, provider_id: ProviderId) {
    let lookup = {
        let _lock = app.sandbox_locks.lock(id).await;
        provider.get(&provider_id).await
    };
    if matches!(lookup, SandboxLookup::Found(found) if found.state == ProviderState::Stopped) {
        super::dead_worker::handle_dead_worker(app, id).await;
    }
}

/// Resumes a sandbox that is paused at its provider but not in its row: an earlier server died in between.
async fn resume_unmarked(app: &App, provider: &dyn Provider, id: SandboxId, provider_id: &ProviderId) {
    let _lock = app.sandbox_locks.lock(id).await;
    let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await;
    if matches!(row, Ok(Some(row)) if !row.status.is_paused())
        && let Err(error) = provider.resume(provider_id).await
    {
        tracing::warn!(sandbox = %id, %error, "failed to resume a sandbox that no person paused");
    }
}

/// Finds a sandbox without a provider id by its labels.
pub(super) async fn find_by_labels(app: &App, provider: &dyn Provider, id: SandboxId) -> SandboxLookup {
    let labels = [("atoll.deployment", app.deployment.clone()), ("atoll.sandbox", id.to_string())];
    match provider.find_by_labels(&labels.map(|(key, value)| (key.to_owned(), value)).into()).await {
        Ok(found) => found.into_iter().next().map_or(SandboxLookup::Gone, SandboxLookup::Found),
        Err(error) => SandboxLookup::Unreachable { detail: error.to_string() },
    }
}

/// Records that a provider no longer has a sandbox.
pub(super) async fn record_lost_sandbox(app: &App, id: SandboxId) -> Result<()> {
    app.write(async move |work| {
        let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
        let (trigger, reason) = match sandbox.state {
            SandboxState::Creating => {
                (Trigger::CreationFailed, Reason::new("sandbox_lost", "the provider lost it before it started"))
            }
            SandboxState::Running => {
                (Trigger::WorkFailed, Reason::new("sandbox_lost", "the provider no longer has it"))
            }
            SandboxState::Completing if sandbox.results == ResultsState::Pending => (
                Trigger::ResultsFailed,
                Reason::new("results_lost", "the provider lost it before its results were exported"),
            ),
            // There were no results to export.
            SandboxState::Completing => (
                Trigger::ResultsExported,
                Reason::new("sandbox_lost", "the provider lost it before its worker finished"),
            ),
            SandboxState::Pending | SandboxState::Completed | SandboxState::Failed => return Ok(()),
        };
        let last_key = match sandbox.stream {
            Some(stream) => streams::find_stream(work.tx, id, stream).await?.map_or(0, |stream| stream.last_key),
            None => 0,
        };
        let event = lifecycle::worker_lost_event(work, &sandbox, last_key, &reason.detail);
        work.log(&mut sandbox, vec![event]).await?;
        sandbox.provider_id = None;
        if sandbox.results == ResultsState::Pending {
            sandbox.results = ResultsState::Lost;
        }
        lifecycle::apply_trigger(work, &mut session, &mut sandbox, trigger, Some(reason), None).await
    })
    .await
}
