//! What a new server does first: takes over what an earlier one left, and says what is lost.

use crate::app::lifecycle;
use crate::problem::Result;
use crate::providers::Providers;
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::capabilities::Listing;
use atoll_core::provider::{Lookup, Provider, ProviderId, ProviderState};
use atoll_core::sandbox::{Reason, Results, SandboxState};
use atoll_store::sandboxes::{Filter, Sandbox};
use atoll_store::{jobs, sandboxes, streams};
use std::sync::Arc;

const AT_ONCE: i64 = 100;

pub(crate) async fn recover(app: &Arc<App>, providers: &Providers) -> Result<()> {
    app.write(|work| Box::pin(async move { Ok(jobs::release_all(work.tx).await?) })).await?;
    for provider in providers.on_this_machine() {
        sweep(app, provider).await?;
    }
    for state in [SandboxState::Creating, SandboxState::Running, SandboxState::Completing] {
        let mut before: Option<String> = None;
        loop {
            let filter = Filter { state: Some(state), ..Filter::default() };
            let place = before.clone();
            let found = app
                .read(move |tx| {
                    Box::pin(async move { Ok(sandboxes::list(tx, &filter, place.as_deref(), AT_ONCE).await?) })
                })
                .await?;
            let Some(last) = found.last() else { break };
            before = Some(last.id.to_string());
            for sandbox in found {
                look_after(app, providers, sandbox).await?;
            }
        }
    }
    Ok(())
}

/// Sandboxes of this data directory that no row knows of any more end.
async fn sweep(app: &App, provider: &dyn Provider) -> Result<()> {
    let mut cursor: Option<String> = None;
    loop {
        let page = match provider.list(cursor.as_deref()).await {
            Ok(page) => page,
            Err(error) => {
                tracing::warn!(provider = %provider.kind(), %error, "can't look for sandboxes that nobody owns");
                return Ok(());
            }
        };
        for found in page.items {
            let Ok(id) = found.id.0.parse::<SandboxId>() else { continue };
            let row = app.read(move |tx| Box::pin(async move { Ok(sandboxes::get(tx, id).await?) })).await?;
            // One that is being made, or whose removal has its job, is somebody's.
            if row.is_some_and(|row| row.state.is_live() || row.provider_id.is_some()) {
                continue;
            }
            tracing::info!(sandbox = %id, "removing a sandbox that nobody owns");
            if let Err(error) = provider.destroy(&found.id).await {
                tracing::warn!(sandbox = %id, %error, "it can't be removed now");
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(());
        }
    }
}

/// A sandbox whose provider no longer has it is lost, and says so.
async fn look_after(app: &Arc<App>, providers: &Providers, sandbox: Sandbox) -> Result<()> {
    let is_here = sandbox.provider.is_on_this_machine();
    if is_here && sandbox.server_id.as_ref().is_some_and(|server| *server != app.server_id) {
        return Ok(()); // another server's
    }
    let provider = providers.get(sandbox.provider);
    let found = match (sandbox.provider_id, sandbox.state) {
        (Some(name), _) => provider.get(&ProviderId(name)).await,
        // Its worker has spoken, and the answer that names it was lost: making it again would put a
        // second one, which knows nothing of the work, in its place. Only who lists everything can
        // say that it is gone.
        (None, SandboxState::Running | SandboxState::Completing)
            if provider.capabilities().listing == Listing::Exact =>
        {
            look_for(app, provider, sandbox.id).await
        }
        // One that was being made is made again by its job, under the same key.
        (None, _) => return Ok(()),
    };
    match found {
        Lookup::Found(found) => {
            if is_here && found.state == ProviderState::Stopped {
                tokio::spawn(super::gone::worker_gone(Arc::clone(app), sandbox.id));
            }
            Ok(())
        }
        Lookup::Unreachable { detail } => {
            tracing::warn!(sandbox = %sandbox.id, %detail, "the provider can't say what became of a sandbox");
            Ok(())
        }
        Lookup::Gone => lost(app, sandbox.id).await,
    }
}

/// A sandbox whose name at its provider is not known, by its labels.
pub(super) async fn look_for(app: &App, provider: &dyn Provider, id: SandboxId) -> Lookup {
    let labels = [("atoll.deployment", app.deployment.clone()), ("atoll.sandbox", id.to_string())];
    match provider.find(&labels.map(|(key, value)| (key.to_owned(), value)).into()).await {
        Ok(found) => found.into_iter().next().map_or(Lookup::Gone, Lookup::Found),
        Err(error) => Lookup::Unreachable { detail: error.to_string() },
    }
}

async fn lost(app: &App, id: SandboxId) -> Result<()> {
    app.write(move |work| {
        Box::pin(async move {
            let (mut session, mut sandbox) = work.locked(id).await?;
            let (trigger, reason) = match sandbox.state {
                SandboxState::Creating => {
                    (Trigger::CreationFailed, Reason::new("sandbox_lost", "it was gone before it started"))
                }
                SandboxState::Running => {
                    (Trigger::WorkFailed, Reason::new("sandbox_lost", "its provider no longer has it"))
                }
                SandboxState::Completing if sandbox.results == Results::Pending => {
                    (Trigger::ResultsFailed, Reason::new("results_lost", "it was gone before its results were out"))
                }
                // Nothing was left to take out but what its worker had sent already.
                SandboxState::Completing => {
                    (Trigger::ResultsOut, Reason::new("sandbox_lost", "it was gone before its worker took its leave"))
                }
                SandboxState::Pending | SandboxState::Completed | SandboxState::Failed => return Ok(()),
            };
            let last_key = match sandbox.stream {
                Some(stream) => streams::get(work.tx, id, stream).await?.map_or(0, |stream| stream.last_key),
                None => 0,
            };
            let event = lifecycle::worker_lost(work, &sandbox, last_key, &reason.detail);
            work.log(&mut sandbox, vec![event]).await?;
            sandbox.provider_id = None;
            lifecycle::apply(work, &mut session, &mut sandbox, trigger, Some(reason), None).await
        })
    })
    .await
}
