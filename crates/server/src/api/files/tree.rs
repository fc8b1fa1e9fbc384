//! A tree of files, in and out, as tar.

use super::content::{HARMLESS, take_in};
use super::{PathQuery, Place, checked};
use crate::auth::Caller;
use crate::extract::{Id, Params};
use crate::problem::Result;
use crate::state::App;
use atoll_core::event::kind;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::provider::Transfer;
use atoll_core::provider::files::Uploaded;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;

/// Read a directory, or one file, as tar.
///
/// Files that change meanwhile are as they were found. Sockets, fifos and devices are left out. A tar that ends
/// without its end mark broke off.
#[utoipa::path(get, path = "/sandboxes/{id}/files/tar", tag = "files", params(("id" = SandboxId, Path), PathQuery),
    responses((status = 200, body = Vec<u8>, content_type = "application/x-tar")))]
pub async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(PathQuery { path }): Params<PathQuery>,
) -> Result<Response> {
    checked(&path)?;
    let place = Place::find(&app, caller, id, Action::See).await?;
    let download = place.provider().download(&place.at, &Transfer::Tar { root: path }).await??;
    let kind = [(header::CONTENT_TYPE, "application/x-tar")];
    Ok((kind, HARMLESS, Body::from_stream(download.data)).into_response())
}

/// Write a tar into a directory, which is made if it is not there.
///
/// Nothing of it leaves the directory: what would is passed over, counted and named in the answer.
#[utoipa::path(put, path = "/sandboxes/{id}/files/tar", tag = "files", params(("id" = SandboxId, Path), PathQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses((status = 200, body = Uploaded)))]
pub async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(PathQuery { path }): Params<PathQuery>,
    request: Request,
) -> Result<axum::Json<Uploaded>> {
    checked(&path)?;
    let place = Place::find(&app, caller, id, Action::Work).await?;
    let done = take_in(&place, &Transfer::Tar { root: path.clone() }, request).await?;
    let told = json!({ "path": path, "bytes": done.bytes, "entries": done.entries });
    place.log(&app, kind::FILES_WRITTEN, told).await?;
    Ok(axum::Json(done))
}
