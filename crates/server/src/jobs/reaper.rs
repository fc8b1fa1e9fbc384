//! The reaper: removes sandboxes at a provider that no row explains, and records rows whose sandbox is gone.
//!
//! It runs at start-up, in the interval of `health.reap_interval`, and for `atoll gc`.

use super::recover::recover_sandbox;
use crate::problem::Result;
use crate::providers::Providers;
use crate::repositories;
use crate::state::App;
use atoll_core::health::orphans::{OrphanVerdict, OwnerRow, judge_orphan};
use atoll_core::id::SandboxId;
use atoll_core::provider::{Provider, ProviderSandbox, SandboxLookup};
use atoll_core::sandbox::{ProviderKind, SandboxState};
use atoll_core::time::Timestamp;
use atoll_store::sandboxes::{self, SandboxFilter};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

const PAGE_SIZE: i64 = 100;
/// Time limit of one call to a provider.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Orphans that the reaper saw before, by provider and its id, with the time of the first sight.
#[derive(Debug, Default)]
pub struct KnownOrphans(tokio::sync::Mutex<HashMap<(ProviderKind, String), Timestamp>>);

/// What the reaper found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Sandboxes without an owner that were removed, or would be.
    pub orphans: i64,
    /// Orphans whose grace period is not over.
    pub waiting: i64,
    /// Commits that mirrors keep for removed sandboxes.
    pub pins: i64,
    /// Rows of sandboxes that their provider no longer has.
    pub lost: i64,
}

/// Removes the orphans that are older than `grace`, and records lost sandboxes. A dry run only counts.
pub(crate) async fn reap(app: &Arc<App>, providers: &Providers, grace: Duration, dry_run: bool) -> Result<Reaped> {
    // One run at a time: two would count an orphan twice.
    let mut known = app.known_orphans.0.lock().await;
    let mut seen = HashMap::new();
    let mut reaped = Reaped::default();
    for provider in providers.all() {
        let before = |id: &str| known.get(&(provider.kind(), id.to_owned())).copied();
        for found in list_own_sandboxes(app, &**provider).await {
            let first_seen = before(&found.id.0).unwrap_or_else(|| app.clock.steady_now());
            let seen_for = app.clock.steady_now().elapsed_since(first_seen);
            match judge_orphan(find_owner(app, &found).await?, seen_for, grace) {
                OrphanVerdict::Keep => {}
                OrphanVerdict::Wait => {
                    reaped.waiting += 1;
                    seen.insert((provider.kind(), found.id.0), first_seen);
                }
                OrphanVerdict::Remove => {
                    reaped.orphans += 1;
                    if dry_run || !destroy_orphan(&**provider, &found).await {
                        seen.insert((provider.kind(), found.id.0), first_seen);
                    }
                }
            }
        }
    }
    *known = seen;
    drop(known);
    reaped.pins = remove_unused_pins(app, dry_run).await?;
    reaped.lost = record_lost_rows(app, providers, dry_run).await?;
    Ok(reaped)
}

/// Lists the sandboxes of this deployment at a provider; one on this machine lists only those of this data directory. A provider that does not answer has none to reap.
async fn list_own_sandboxes(app: &App, provider: &dyn Provider) -> Vec<ProviderSandbox> {
    let mut own = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = match tokio::time::timeout(CALL_TIMEOUT, provider.list(cursor.as_deref())).await {
            Ok(Ok(page)) => page,
            Ok(Err(error)) => {
                tracing::debug!(provider = %provider.kind(), %error, "failed to list sandboxes to find orphans");
                return own;
            }
            Err(_) => return own,
        };
        let is_own = |found: &ProviderSandbox| {
            provider.capabilities().runs_agents() || found.labels.get("atoll.deployment") == Some(&app.deployment)
        };
        own.extend(page.items.into_iter().filter(is_own));
        cursor = page.next_cursor;
        if cursor.is_none() {
            return own;
        }
    }
}

async fn find_owner(app: &App, found: &ProviderSandbox) -> Result<OwnerRow> {
    let label = found.labels.get("atoll.sandbox").unwrap_or(&found.id.0);
    let Ok(id) = label.parse::<SandboxId>() else {
        return Ok(OwnerRow::Absent);
    };
    let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await?;
    Ok(row.map_or(OwnerRow::Absent, |row| OwnerRow::Present {
        state: row.state,
        names_provider_id: row.provider_id.as_ref() == Some(&found.id.0),
    }))
}

async fn destroy_orphan(provider: &dyn Provider, found: &ProviderSandbox) -> bool {
    tracing::info!(provider = %provider.kind(), sandbox = %found.id.0, "destroying an orphaned sandbox");
    match tokio::time::timeout(CALL_TIMEOUT, provider.destroy(&found.id)).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(sandbox = %found.id.0, %error, "failed to destroy an orphaned sandbox; will retry");
            false
        }
        Err(_) => false,
    }
}

/// Removes the refs that keep commits for sandboxes that are gone. A row precedes its sandbox's pin.
async fn remove_unused_pins(app: &App, dry_run: bool) -> Result<i64> {
    let mut removed = 0;
    for pin in repositories::list_pins(app).await? {
        let Ok(id) = pin.sandbox().parse::<SandboxId>() else { continue };
        let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await?;
        if row.is_some_and(|row| row.state.is_live() || row.provider_id.is_some()) {
            continue;
        }
        removed += 1;
        if !dry_run {
            repositories::remove_pin(pin).await?;
        }
    }
    Ok(removed)
}

/// Records the live rows whose sandbox is gone, and adopts the others.
async fn record_lost_rows(app: &Arc<App>, providers: &Providers, dry_run: bool) -> Result<i64> {
    let mut lost = 0;
    for state in [SandboxState::Creating, SandboxState::Running, SandboxState::Completing] {
        let mut before: Option<String> = None;
        loop {
            let filter = SandboxFilter { state: Some(state), with_archived: true, ..SandboxFilter::default() };
            let place = before.clone();
            let found = app
                .read(async move |tx| Ok(sandboxes::list_sandboxes(tx, &filter, place.as_deref(), PAGE_SIZE).await?))
                .await?;
            let Some(last) = found.last() else { break };
            before = Some(last.id.to_string());
            for sandbox in found {
                lost += i64::from(recover_sandbox(app, providers, sandbox, dry_run).await? == SandboxLookup::Gone);
            }
        }
    }
    Ok(lost)
}
