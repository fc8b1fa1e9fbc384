//! Set-up layers: listed, removed, pruned, and evicted when they exceed their bound.

use super::snapshots::{not_found, working_project};
use crate::auth::access::{CanList, CanWork, ClientCaller};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{Cache, CacheList, PruneCaches, PrunedCaches};
use atoll_core::id::ProjectId;
use atoll_core::provider::caches::{next_eviction, split_cache_name};
use atoll_core::provider::{CacheRef, Error, provider_cache_name};
use atoll_core::size::gigabytes_to_bytes;
use atoll_store::projects;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Days without a use before pruning removes a layer.
const DEFAULT_UNUSED_DAYS: u32 = 30;
/// Poll interval and time limit for the size of a new layer.
const MEASURE_POLL: Duration = Duration::from_secs(1);
const MAX_MEASURE_POLLS: u32 = 300;

fn view_cache(cache: &CacheRef) -> Option<Cache> {
    let (project_id, name) = split_cache_name(&cache.name)?;
    let CacheRef { bytes, created_at, used_at, .. } = *cache;
    Some(Cache { name: name.to_owned(), project_id, bytes, created_at, used_at })
}

/// Lists the layers of the visible projects.
pub async fn list_caches(app: &App, access: CanList) -> Result<CacheList> {
    let stored = app.providers()?.image_store().caches().await?;
    let items = stored.iter().filter_map(view_cache);
    Ok(CacheList { items: items.filter(|cache| access.projects.contains(cache.project_id)).collect() })
}

/// Removes a layer. Sandboxes that started from it keep their files.
pub async fn remove_cache(
    app: &App,
    client: ClientCaller,
    name: &str,
    project: Option<ProjectId>,
) -> Result<ProjectId> {
    let project = working_project(app, client, project).await?;
    let removed = app.providers()?.image_store().forget_cache(&provider_cache_name(project, name)).await;
    removed.map(|()| project).map_err(|error| not_found(error, "cache"))
}

/// Removes unused layers of the projects in which the caller may work.
pub async fn prune_caches(app: &App, access: CanList, request: PruneCaches) -> Result<PrunedCaches> {
    let PruneCaches { unused_days, all, project_id, dry_run } = request;
    if let Some(project) = project_id {
        CanWork::authorize(app, access.caller.clone(), project).await?;
    }
    let age = Duration::from_secs(u64::from(unused_days.unwrap_or(DEFAULT_UNUSED_DAYS)) * 24 * 3600);
    let before = app.clock.now() - age;
    let store = app.providers()?.image_store();
    let mut permissions: BTreeMap<ProjectId, bool> = BTreeMap::new();
    let mut items = Vec::new();
    for cache in store.caches().await? {
        let is_unused = all || cache.last_use().is_none_or(|used| used < before);
        let Some(view) = view_cache(&cache).filter(|_| is_unused) else { continue };
        if project_id.is_some_and(|only| only != view.project_id) || !access.projects.contains(view.project_id) {
            continue;
        }
        let may_work = match permissions.get(&view.project_id) {
            Some(known) => *known,
            None => CanWork::authorize(app, access.caller.clone(), view.project_id).await.is_ok(),
        };
        permissions.insert(view.project_id, may_work);
        if may_work && (dry_run || forget(app, &cache).await?) {
            items.push(view);
        }
    }
    Ok(PrunedCaches { dry_run, items })
}

/// Forgets a layer; false if it is gone already.
async fn forget(app: &App, cache: &CacheRef) -> Result<bool> {
    match app.providers()?.image_store().forget_cache(&cache.name).await {
        Ok(()) => Ok(true),
        Err(Error::Gone) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Evicts layers in the background, once the newest is measured. Called after each seal.
pub fn start_eviction(app: &Arc<App>) {
    let app = Arc::downgrade(app);
    tokio::spawn(async move {
        for _ in 0..MAX_MEASURE_POLLS {
            let Some(app) = app.upgrade() else { return };
            match evict_caches(&app).await {
                Ok(Eviction::Done(_)) => return,
                Ok(Eviction::Unmeasured) => {}
                Err(problem) => return tracing::warn!(detail = %problem.detail, "failed to evict set-up layers"),
            }
            drop(app);
            tokio::time::sleep(MEASURE_POLL).await;
        }
    });
}

/// The outcome of one eviction.
enum Eviction {
    /// The number of evicted layers.
    Done(i64),
    /// The size of a layer is not known yet.
    Unmeasured,
}

/// Evicts the least recently used layers until the rest is within the configured size.
async fn evict_caches(app: &App) -> Result<Eviction> {
    let store = app.providers()?.image_store();
    let max_bytes = gigabytes_to_bytes(app.config.setup.max_cache_gb);
    let mut evicted = 0;
    loop {
        // A layer's size changes when another that shares its files goes.
        let caches = store.caches().await?;
        let Some(victim) = next_eviction(&caches, max_bytes) else {
            let is_measured = caches.iter().all(|cache| cache.bytes.is_some());
            return Ok(if is_measured { Eviction::Done(evicted) } else { Eviction::Unmeasured });
        };
        if forget(app, victim).await? {
            evicted += 1;
            tracing::info!(cache = victim.name, "evicted a set-up layer: the stored layers exceed setup.max_cache_gb");
        }
    }
}

/// Removes the layers of deleted projects and those over the bound; returns their number.
pub async fn sweep_caches(app: &App, dry_run: bool) -> Result<i64> {
    // A server whose provider stores none has nothing to sweep.
    let Ok(caches) = app.providers()?.image_store().caches().await else { return Ok(0) };
    let mut removed = 0;
    for cache in caches {
        let project = match split_cache_name(&cache.name) {
            Some((project, _)) => app.read(async move |tx| Ok(projects::find_project(tx, project).await?)).await?,
            None => None,
        };
        if project.is_none() && (dry_run || forget(app, &cache).await?) {
            removed += 1;
        }
    }
    if dry_run {
        return Ok(removed);
    }
    match evict_caches(app).await? {
        Eviction::Done(evicted) => Ok(removed + evicted),
        Eviction::Unmeasured => Ok(removed),
    }
}
