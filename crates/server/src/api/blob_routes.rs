//! `/sandboxes/{id}/blobs/{sha256}`: data that is too large for an event.

use crate::app::blob_transfer;
use crate::auth::access::{BlobReader, WorkerOf};
use crate::extract::SubId;
use crate::problem::Result;
use crate::state::App;
use atoll_api::BlobReceipt;
use atoll_core::id::SandboxId;
use atoll_protocol::is_blob_name;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::str::FromStr;
use std::sync::Arc;

/// A SHA-256 in a path.
pub struct Hash(String);

impl FromStr for Hash {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if is_blob_name(text) { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

/// Upload a blob, before the event that names it.
///
/// The server removes known secrets from the stored content; the blob keeps its name.
#[utoipa::path(put, path = "/sandboxes/{id}/blobs/{sha256}", tag = "worker",
    params(("id" = SandboxId, Path), ("sha256" = String, Path, description = "64 lower-case hexadecimal digits")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = BlobReceipt)))]
pub async fn upload_blob(
    State(app): State<Arc<App>>,
    worker: WorkerOf,
    SubId(hash): SubId<Hash>,
    request: Request,
) -> Result<Json<BlobReceipt>> {
    let size = blob_transfer::store_blob(&app, worker, &hash.0, request.into_body()).await?;
    Ok(Json(BlobReceipt { sha256: hash.0, size }))
}

/// Download a blob.
#[utoipa::path(get, path = "/sandboxes/{id}/blobs/{sha256}", tag = "events",
    params(("id" = SandboxId, Path), ("sha256" = String, Path)),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream")))]
pub async fn download_blob(
    State(app): State<Arc<App>>,
    access: BlobReader,
    SubId(hash): SubId<Hash>,
) -> Result<Response> {
    let (stored, content) = blob_transfer::open_blob(&app, access, hash.0).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, stored.size.to_string()),
        (header::ETAG, format!("\"{}\"", stored.sha256)),
        (header::CONTENT_DISPOSITION, "attachment".to_owned()),
    ];
    Ok((headers, content).into_response())
}
