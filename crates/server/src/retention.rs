//! Removes expired event log prefixes, blobs and idempotency keys in small steps.

use crate::app::caches;
use crate::app::sign_ins::idle_since;
use crate::jobs::reaper::{self, Reaped};
use crate::problem::Result;
use crate::state::App;
use atoll_api::GcReport;
use atoll_core::time::Timestamp;
use atoll_store::{blobs, idempotency, previews, retention, sign_ins, webhooks};
use std::sync::Arc;
use std::time::Duration;

const PAGE_SIZE: i64 = 100;
/// A forge repeats deliveries for a few days.
const DELIVERY_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time during which the link of an expired preview says so.
const EXPIRED_PREVIEW_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Removes expired data, orphaned sandboxes, and set-up layers that are over their bound or of deleted projects.
pub async fn collect_garbage(app: &Arc<App>, dry_run: bool, all: bool) -> Result<GcReport> {
    let swept = sweep_expired(app, dry_run, all).await?;
    let Reaped { orphans, waiting, pins, lost } =
        reaper::reap(app, &*app.providers()?, app.config.health.reap_grace, dry_run).await?;
    let caches = caches::sweep_caches(app, dry_run).await?;
    Ok(GcReport { caches, orphans, waiting_orphans: waiting, unused_pins: pins, lost_sandboxes: lost, ..swept })
}

/// Removes data older than the configured retention; with `all`, everything removable of ended sandboxes.
pub async fn sweep_expired(app: &App, dry_run: bool, all: bool) -> Result<GcReport> {
    let now = app.clock.now();
    let before = match (all, app.config.retention.events) {
        (true, _) => now,
        (false, Some(age)) => now - age,
        (false, None) => Timestamp::from_micros(0),
    };
    let mut swept = GcReport { dry_run, ..GcReport::default() };
    sweep_events(app, before, &mut swept).await?;
    if !dry_run {
        sweep_blobs(app, before, &mut swept).await?;
        let keys = now - app.config.retention.idempotency;
        app.write(async move |work| Ok(idempotency::delete_expired_keys(work.tx, keys).await?)).await?;
        let deliveries = now - DELIVERY_RETENTION;
        app.write(async move |work| Ok(webhooks::delete_old_deliveries(work.tx, deliveries).await?)).await?;
        let idle_since = idle_since(app);
        app.write(async move |work| Ok(sign_ins::delete_ended_sign_ins(work.tx, now, idle_since).await?)).await?;
        let expired = now - EXPIRED_PREVIEW_RETENTION;
        app.write(async move |work| Ok(previews::delete_expired_previews(work.tx, expired).await?)).await?;
    }
    Ok(swept)
}

async fn sweep_events(app: &App, before: Timestamp, swept: &mut GcReport) -> Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    loop {
        let found = app
            .read(async move |tx| Ok(retention::list_sandboxes_with_old_events(tx, before, PAGE_SIZE).await?))
            .await?;
        let fresh: Vec<_> = found.into_iter().filter(|id| seen.insert(*id)).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        for id in fresh {
            let mut removed = 0;
            loop {
                let dry_run = swept.dry_run;
                let cut = app.write(async move |work| {
                    let (_, mut sandbox) = work.lock_sandbox(id).await?;
                    if !sandbox.state.has_ended() {
                        return Ok(0);
                    }
                    let count = retention::count_old_events(work.tx, &sandbox, before).await?;
                    if count > 0 && !dry_run {
                        retention::delete_oldest_events(work.tx, &mut sandbox, count).await?;
                    }
                    Ok(count)
                });
                let count = cut.await?;
                removed += count;
                if count < retention::MAX_DELETED_EVENTS || dry_run {
                    break;
                }
            }
            swept.events += removed;
            swept.sandboxes += i64::from(removed > 0);
        }
    }
}

async fn sweep_blobs(app: &App, before: Timestamp, swept: &mut GcReport) -> Result<()> {
    loop {
        let forgotten =
            app.write(async move |work| Ok(retention::delete_old_blobs(work.tx, before, PAGE_SIZE).await?)).await?;
        if forgotten.is_empty() {
            return Ok(());
        }
        swept.blobs += i64::try_from(forgotten.len()).unwrap_or(0);
        app.blobs.mark_unreferenced(forgotten);
        remove_unreferenced_blobs(app).await?;
    }
}

/// Deletes blob files that no row refers to.
pub async fn remove_unreferenced_blobs(app: &App) -> Result<()> {
    let files = app.blobs.take_unreferenced();
    if files.is_empty() {
        return Ok(());
    }
    let _guard = app.blobs.lock_for_deletion().await;
    for file in files {
        let name = file.clone();
        if !app.read(async move |tx| Ok(blobs::is_file_used(tx, &name).await?)).await? {
            app.blobs.remove(&file).await;
        }
    }
    Ok(())
}
