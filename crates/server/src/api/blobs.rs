//! `…/blobs/{sha256}`: what is too large for an event.

use crate::auth::{Caller, access};
use crate::blobs::is_hash;
use crate::extract::Ids;
use crate::once::Answer;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_store::blobs;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::str::FromStr;
use std::sync::Arc;
use tokio::io::AsyncReadExt;

/// A SHA-256 in a path.
pub struct Hash(String);

impl FromStr for Hash {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if is_hash(text) { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

/// Take in a blob, before the event that names it.
///
/// Known secrets are taken out of what is stored; it keeps its name.
#[utoipa::path(put, path = "/sandboxes/{id}/blobs/{sha256}", tag = "worker",
    params(("id" = SandboxId, Path), ("sha256" = String, Path, description = "64 lower-case hexadecimal digits")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses((status = 200)))]
pub async fn put(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, Hash(sha256)): Ids<SandboxId, Hash>,
    request: Request,
) -> Result<Answer> {
    caller.must_be_worker_of(id)?;
    app.read(move |tx| Box::pin(async move { access::blobs_of(tx, &caller, id).await })).await?;
    let received = app.blobs.receive(&sha256, request.into_body(), &*app.redactor(id).await?).await?;
    let (name, stored, size) = (sha256.clone(), received.stored.clone(), received.stored.size);
    let _guard = app.blobs.settle(&received).await?;
    app.write(move |work| Box::pin(async move { Ok(blobs::insert(work.tx, id, &name, &stored, work.now).await?) }))
        .await?;
    Answer::ok(serde_json::json!({ "sha256": sha256, "size": size }))
}

/// Read a blob.
#[utoipa::path(get, path = "/sandboxes/{id}/blobs/{sha256}", tag = "events",
    params(("id" = SandboxId, Path), ("sha256" = String, Path)),
    responses((status = 200, body = Vec<u8>, content_type = "application/octet-stream")))]
pub async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Ids(id, Hash(sha256)): Ids<SandboxId, Hash>,
) -> Result<Response> {
    let name = sha256.clone();
    let stored = app.read(move |tx| {
        Box::pin(async move {
            access::blobs_of(tx, &caller, id).await?;
            blobs::get(tx, id, &name).await?.ok_or_else(|| Problem::not_found("blob"))
        })
    });
    let stored = stored.await?;
    let body = content(&app, &stored).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, stored.size.to_string()),
        (header::ETAG, format!("\"{}\"", stored.sha256)),
        (header::CONTENT_DISPOSITION, "attachment".to_owned()),
    ];
    Ok((headers, body).into_response())
}

/// What its file holds, piece by piece.
pub async fn content(app: &App, stored: &blobs::Stored) -> Result<Body> {
    let file = app.blobs.get(&stored.sha256).await?;
    let chunks = stream::try_unfold(file, |mut file| async move {
        let mut chunk = vec![0u8; 64 * 1024];
        let count = file.read(&mut chunk).await?;
        chunk.truncate(count);
        Ok::<_, std::io::Error>((count > 0).then_some((chunk, file)))
    });
    Ok(Body::from_stream(chunks))
}
