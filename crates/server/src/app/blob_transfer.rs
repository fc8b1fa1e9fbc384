//! Blobs: workers upload them before the events that name them, and clients download them.

use super::ingest::require_open_stream;
use crate::auth::access::{BlobReader, WorkerOf};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_store::blobs::{self, BlobFile};
use axum::body::Body;
use futures_util::stream;
use tokio::io::AsyncReadExt;

const CHUNK_BYTES: usize = 64 * 1024;

/// Stores a worker's blob without the known secrets, under the hash of the original. Returns its stored size.
pub async fn store_blob(app: &App, worker: WorkerOf, sha256: String, body: Body) -> Result<i64> {
    let id = worker.sandbox;
    require_open_stream(app, id).await?;
    let received = app.blobs.receive(&sha256, body, &*app.redactor(id).await?).await?;
    let stored = received.stored.clone();
    let size = stored.size;
    let _guard = app.blobs.store(&received).await?;
    app.write(async move |work| Ok(blobs::insert_blob(work.tx, id, &sha256, &stored, work.now).await?)).await?;
    Ok(size)
}

/// Finds a blob and opens its content.
pub async fn open_blob(app: &App, access: BlobReader, sha256: String) -> Result<(BlobFile, Body)> {
    let id = access.sandbox;
    let found = app.read(async move |tx| Ok(blobs::find_blob(tx, id, &sha256).await?)).await?;
    let stored = found.ok_or_else(|| Problem::not_found("blob"))?;
    let content = read_content(app, &stored).await?;
    Ok((stored, content))
}

/// Streams a stored blob.
pub async fn read_content(app: &App, stored: &BlobFile) -> Result<Body> {
    let file = app.blobs.get(&stored.sha256).await?;
    let chunks = stream::try_unfold(file, |mut file| async move {
        let mut chunk = vec![0u8; CHUNK_BYTES];
        let count = file.read(&mut chunk).await?;
        chunk.truncate(count);
        Ok::<_, std::io::Error>((count > 0).then_some((chunk, file)))
    });
    Ok(Body::from_stream(chunks))
}
