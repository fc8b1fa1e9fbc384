//! `/snapshots`: named copies of sandboxes' files that new sandboxes can start from.

use crate::app::snapshots;
use crate::auth::access::{CanList, CanWork, ClientCaller};
use crate::extract::{Body, Id, Params};
use crate::idempotency::JsonResponse;
use crate::problem::Result;
use crate::state::App;
use atoll_api::{NewSnapshot, RemoveSnapshotQuery, RemovedSnapshot, Snapshot, SnapshotList};
use atoll_core::id::SandboxId;
use axum::Json;
use axum::extract::State;
use std::sync::Arc;

/// Create a snapshot of a sandbox's current files.
///
/// Only between two turns of the agent. `POST /sandboxes {"snapshot": name}` starts from it.
#[utoipa::path(post, path = "/sandboxes/{id}/snapshot", tag = "sandboxes", params(("id" = SandboxId, Path)),
    request_body = NewSnapshot, responses((status = 201, body = Snapshot)))]
pub async fn create_snapshot(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    Body { value, .. }: Body<NewSnapshot>,
) -> Result<JsonResponse> {
    JsonResponse::created(snapshots::create_snapshot(app, access, value.name).await?)
}

/// List the snapshots of all visible projects.
#[utoipa::path(get, path = "/snapshots", tag = "sandboxes", responses((status = 200, body = SnapshotList)))]
pub async fn list_snapshots(State(app): State<Arc<App>>, access: CanList) -> Result<Json<SnapshotList>> {
    snapshots::list_snapshots(&app, access).await.map(Json)
}

/// Remove a snapshot. Sandboxes that started from it keep their files.
#[utoipa::path(delete, path = "/snapshots/{name}", tag = "sandboxes", params(("name" = String, Path), RemoveSnapshotQuery),
    responses((status = 200, body = RemovedSnapshot)))]
pub async fn remove_snapshot(
    State(app): State<Arc<App>>,
    client: ClientCaller,
    Id(name): Id<String>,
    Params(query): Params<RemoveSnapshotQuery>,
) -> Result<Json<RemovedSnapshot>> {
    let project_id = snapshots::remove_snapshot(&app, client, &name, query.project_id).await?;
    Ok(Json(RemovedSnapshot { name, project_id }))
}
