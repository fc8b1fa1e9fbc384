//! Recovery at start-up: adopts the sandboxes of an earlier server and records the lost ones.

use crate::app::lifecycle;
use crate::problem::Result;
use crate::providers::Providers;
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::capabilities::Listing;
use atoll_core::provider::{Provider, ProviderId, ProviderState, SandboxLookup};
use atoll_core::sandbox::{Reason, ResultsState, SandboxState};
use atoll_store::sandboxes::{SandboxFilter, SandboxRow};
use atoll_store::{sandboxes, streams};
use std::sync::Arc;

const PAGE_SIZE: i64 = 100;

pub(crate) async fn recover_sandboxes(app: &Arc<App>, providers: &Providers) -> Result<()> {
    for provider in providers.with_local_workers() {
        remove_orphans(app, &**provider).await?;
    }
    for state in [SandboxState::Creating, SandboxState::Running, SandboxState::Completing] {
        let mut before: Option<String> = None;
        loop {
            let filter = SandboxFilter { state: Some(state), ..SandboxFilter::default() };
            let place = before.clone();
            let found = app
                .read(async move |tx| Ok(sandboxes::list_sandboxes(tx, &filter, place.as_deref(), PAGE_SIZE).await?))
                .await?;
            let Some(last) = found.last() else { break };
            before = Some(last.id.to_string());
            for sandbox in found {
                recover_sandbox(app, providers, sandbox).await?;
            }
        }
    }
    Ok(())
}

/// Destroys sandboxes of this data directory that have no live row.
async fn remove_orphans(app: &App, provider: &dyn Provider) -> Result<()> {
    let mut cursor: Option<String> = None;
    loop {
        let page = match provider.list(cursor.as_deref()).await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(provider = %provider.kind(), %error, "failed to list orphaned sandboxes");
                return Ok(());
            }
        };
        for found in page.items {
            let Ok(id) = found.id.0.parse::<SandboxId>() else { continue };
            let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await?;
            // A sandbox in creation, or one whose removal job is pending, is not an orphan.
            if row.is_some_and(|row| row.state.is_live() || row.provider_id.is_some()) {
                continue;
            }
            tracing::info!(sandbox = %id, "destroying an orphaned sandbox");
            if let Err(error) = provider.destroy(&found.id).await {
                tracing::warn!(sandbox = %id, %error, "failed to destroy an orphaned sandbox");
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(());
        }
    }
}

/// Adopts one sandbox, or records that its provider lost it.
async fn recover_sandbox(app: &Arc<App>, providers: &Providers, sandbox: SandboxRow) -> Result<()> {
    // The create job starts an interrupted set-up again.
    if sandbox.is_being_set_up() {
        return Ok(());
    }
    let provider = providers.get(sandbox.provider);
    let is_here = provider.capabilities().runs_agents();
    if is_here && sandbox.server_id.as_ref().is_some_and(|server| *server != app.server_id) {
        return Ok(()); // belongs to another server
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
        (None, _) => return Ok(()),
    };
    match found {
        SandboxLookup::Found(found) => {
            if is_here && found.state == ProviderState::Stopped {
                tokio::spawn(super::dead_worker::handle_dead_worker(Arc::clone(app), sandbox.id));
            }
            // The earlier server died while it exported the results of the running sandbox.
            if found.state == ProviderState::Paused
                && !sandbox.status.is_paused()
                && let Err(error) = provider.resume(&found.id).await
            {
                tracing::warn!(sandbox = %sandbox.id, %error, "failed to resume a sandbox that no person paused");
            }
            Ok(())
        }
        SandboxLookup::Unreachable { detail } => {
            tracing::warn!(sandbox = %sandbox.id, %detail, "the provider cannot be reached to look up a sandbox");
            Ok(())
        }
        SandboxLookup::Gone => record_lost_sandbox(app, sandbox.id).await,
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

async fn record_lost_sandbox(app: &App, id: SandboxId) -> Result<()> {
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
