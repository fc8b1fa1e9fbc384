//! Removes whole prefixes of logs, forgotten blobs and old idempotency keys, a little at a time.

use crate::problem::Result;
use crate::state::App;
use atoll_core::time::Timestamp;
use atoll_store::{blobs, idempotency, retention};
use serde::Serialize;

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Swept {
    pub dry_run: bool,
    pub events: i64,
    pub sandboxes: i64,
    pub blobs: i64,
}

const AT_ONCE: i64 = 100;

/// What is older than the configuration keeps; with `all`, whatever belongs to ended sandboxes.
pub async fn sweep(app: &App, dry_run: bool, all: bool) -> Result<Swept> {
    let now = app.clock.now();
    let before = match (all, app.policy.retain_events) {
        (true, _) => now,
        (false, Some(age)) => now - age,
        (false, None) => Timestamp::from_micros(0),
    };
    let mut swept = Swept { dry_run, ..Swept::default() };
    events(app, before, all, &mut swept).await?;
    if !dry_run {
        old_blobs(app, before, &mut swept).await?;
        let keys = now - app.policy.retain_idempotency;
        app.write(move |work| Box::pin(async move { Ok(idempotency::forget(work.tx, keys).await?) })).await?;
    }
    Ok(swept)
}

async fn events(app: &App, before: Timestamp, only_ended: bool, swept: &mut Swept) -> Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    loop {
        let found =
            app.read(move |tx| Box::pin(async move { Ok(retention::candidates(tx, before, AT_ONCE).await?) })).await?;
        let fresh: Vec<_> = found.into_iter().filter(|id| seen.insert(*id)).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        for id in fresh {
            let mut removed = 0;
            loop {
                let dry_run = swept.dry_run;
                let cut = app.write(move |work| {
                    Box::pin(async move {
                        let (_, mut sandbox) = work.locked(id).await?;
                        if only_ended && sandbox.state.is_live() {
                            return Ok(0);
                        }
                        let count = retention::count_prefix(work.tx, &sandbox, before).await?;
                        if count > 0 && !dry_run {
                            retention::cut(work.tx, &mut sandbox, count).await?;
                        }
                        Ok(count)
                    })
                });
                let count = cut.await?;
                removed += count;
                if count < retention::STEP || dry_run {
                    break;
                }
            }
            swept.events += removed;
            swept.sandboxes += i64::from(removed > 0);
        }
    }
}

async fn old_blobs(app: &App, before: Timestamp, swept: &mut Swept) -> Result<()> {
    loop {
        let forgotten = app
            .write(move |work| Box::pin(async move { Ok(retention::forget_blobs(work.tx, before, AT_ONCE).await?) }))
            .await?;
        if forgotten.is_empty() {
            return Ok(());
        }
        swept.blobs += i64::try_from(forgotten.len()).unwrap_or(0);
        app.blobs.let_go(forgotten);
        loose_blobs(app).await?;
    }
}

/// Removes files that no blob is in any more.
pub async fn loose_blobs(app: &App) -> Result<()> {
    let files = app.blobs.loose();
    if files.is_empty() {
        return Ok(());
    }
    let _guard = app.blobs.alone().await;
    for file in files {
        let asked = file.clone();
        if !app.read(move |tx| Box::pin(async move { Ok(blobs::is_used(tx, &asked).await?) })).await? {
            app.blobs.remove(&file).await;
        }
    }
    Ok(())
}
