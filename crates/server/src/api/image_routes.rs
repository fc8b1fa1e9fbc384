//! `/images`: imported root file systems that sandboxes can start from.

use crate::app::snapshots;
use crate::auth::access::{Admin, ClientCaller};
use crate::extract::{Id, Params};
use crate::idempotency::JsonResponse;
use crate::problem::Result;
use crate::state::App;
use atoll_api::{ImageList, ImportImageQuery, RemovedImage};
use atoll_core::provider::{Error, ImageRef};
use axum::Json;
use axum::extract::{Request, State};
use futures_util::StreamExt;
use std::sync::Arc;

/// List the images of this machine.
#[utoipa::path(get, path = "/images", tag = "sandboxes", responses((status = 200, body = ImageList)))]
pub async fn list_images(State(app): State<Arc<App>>, client: ClientCaller) -> Result<Json<ImageList>> {
    snapshots::list_images(&app, client).await.map(Json)
}

/// Import a root file system: a tar of it, the output of `docker save`, or an OCI archive.
#[utoipa::path(post, path = "/images", tag = "sandboxes", params(ImportImageQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = ImageRef)))]
pub async fn import_image(
    State(app): State<Arc<App>>,
    admin: Admin,
    Params(query): Params<ImportImageQuery>,
    request: Request,
) -> Result<JsonResponse> {
    let broken = |error: axum::Error| Error::Refused { detail: format!("the archive ended early: {error}") };
    let archive = Box::pin(request.into_body().into_data_stream().map(move |chunk| chunk.map_err(broken)));
    JsonResponse::created(snapshots::import_image(&app, admin, &query.name, archive).await?)
}

/// Remove an image that no sandbox and no snapshot uses.
#[utoipa::path(delete, path = "/images/{name}", tag = "sandboxes", params(("name" = String, Path)),
    responses((status = 200, body = RemovedImage)))]
pub async fn remove_image(
    State(app): State<Arc<App>>,
    admin: Admin,
    Id(name): Id<String>,
) -> Result<Json<RemovedImage>> {
    snapshots::remove_image(&app, admin, &name).await?;
    Ok(Json(RemovedImage { name }))
}
