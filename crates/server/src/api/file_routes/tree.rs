//! Directory trees as tar.

use super::content::DOWNLOAD_HEADERS;
use crate::app::files;
use crate::auth::access::{CanWork, FileReader};
use crate::extract::Params;
use crate::problem::Result;
use crate::state::App;
use atoll_api::FilePathQuery;
use atoll_core::id::SandboxId;
use atoll_core::provider::files::UploadSummary;
use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// Download a directory, or one file, as tar.
///
/// Files that change meanwhile are included as found. Sockets, FIFOs and devices are left out. A tar without its end mark
/// is incomplete.
#[utoipa::path(get, path = "/sandboxes/{id}/files/tar", tag = "files", params(("id" = SandboxId, Path), FilePathQuery),
    responses((status = 200, body = Vec<u8>, content_type = "application/x-tar")))]
pub async fn download_tar(
    State(app): State<Arc<App>>,
    reader: FileReader,
    Params(query): Params<FilePathQuery>,
) -> Result<Response> {
    let download = files::read_tar(&app, reader, query.path).await?;
    let content_type = [(header::CONTENT_TYPE, "application/x-tar")];
    Ok((content_type, DOWNLOAD_HEADERS, Body::from_stream(download.data)).into_response())
}

/// Unpack a tar into a directory, which is created if it is missing.
///
/// Entries that would leave the directory are skipped, counted and named in the response.
#[utoipa::path(put, path = "/sandboxes/{id}/files/tar", tag = "files", params(("id" = SandboxId, Path), FilePathQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses((status = 200, body = UploadSummary)))]
pub async fn upload_tar(
    State(app): State<Arc<App>>,
    access: CanWork<SandboxId>,
    Params(query): Params<FilePathQuery>,
    request: Request,
) -> Result<Json<UploadSummary>> {
    files::write_tar(&app, access, query.path, request.into_body()).await.map(Json)
}
