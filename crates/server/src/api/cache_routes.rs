//! `/caches`: set-up layers, from which sandboxes start without a set-up.

use crate::app::caches;
use crate::auth::access::{CanList, ClientCaller};
use crate::extract::{Body, Id, Params};
use crate::problem::Result;
use crate::state::App;
use atoll_api::{CacheList, PruneCaches, PrunedCaches, RemoveCacheQuery, RemovedCache};
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// List the set-up layers of all visible projects.
#[utoipa::path(get, path = "/caches", tag = "sandboxes", responses((status = 200, body = CacheList)))]
pub async fn list_caches(State(app): State<Arc<App>>, access: CanList) -> Result<Json<CacheList>> {
    caches::list_caches(&app, access).await.map(Json)
}

/// Remove a set-up layer. Sandboxes that started from it keep their files.
#[utoipa::path(delete, path = "/caches/{name}", tag = "sandboxes", params(("name" = String, Path), RemoveCacheQuery),
    responses((status = 200, body = RemovedCache)))]
pub async fn remove_cache(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Id(name): Id<String>,
    Params(query): Params<RemoveCacheQuery>,
) -> Result<Json<RemovedCache>> {
    let project_id = caches::remove_cache(&app, client, &name, query.project_id).await?;
    Ok(Json(RemovedCache { name, project_id }))
}

/// Remove unused set-up layers.
#[utoipa::path(post, path = "/caches/prune", tag = "sandboxes", request_body = PruneCaches,
    responses((status = 200, body = PrunedCaches)))]
pub async fn prune_caches(
    State(app): State<Arc<App>>,
    access: CanList,
    Body { value, .. }: Body<PruneCaches>,
) -> Result<Json<PrunedCaches>> {
    caches::prune_caches(&app, access, value).await.map(Json)
}
