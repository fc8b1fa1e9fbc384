//! Blobs: workers upload them before the events that name them, and clients download them.

use super::Work;
use super::ingest::{self, require_open_stream};
use crate::auth::access::{BlobReader, WorkerOf};
use crate::extract::drain_body;
use crate::problem::{Code, Problem, Result};
use crate::retention;
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::log_quota::{self, LogUsage};
use atoll_protocol::is_blob_name;
use atoll_store::blobs::{self, BlobFile};
use axum::body::{Body, HttpBody};
use futures_util::stream;
use tokio::io::AsyncReadExt;

const CHUNK_BYTES: usize = 64 * 1024;

/// Stores a worker's blob without the known secrets, under the hash of the original. Returns its stored size.
pub async fn store_blob(app: &App, worker: WorkerOf, sha256: &str, body: Body) -> Result<i64> {
    store_content(app, worker.sandbox, sha256, body).await
}

/// Stores a blob of a worker that needs no proof: one in this process, or a dead one.
pub async fn store_content(app: &App, id: SandboxId, sha256: &str, body: Body) -> Result<i64> {
    if !is_blob_name(sha256) {
        return Err(Problem::not_found("blob"));
    }
    require_open_stream(app, id).await?;
    store_own_content(app, id, sha256, body).await
}

/// Stores a blob of the server itself, also after the sandbox's end.
pub async fn store_own_content(app: &App, id: SandboxId, sha256: &str, body: Body) -> Result<i64> {
    let mut turn = app.blob_gates.enter(id).await?;
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    // A refused blob does not wait: the events behind it do, and a batch can name many blobs.
    if let Err(problem) = require_room(app, id, announced).await {
        drain_body(body).await;
        return Err(problem);
    }
    turn.delay_request(announced).await;
    let received = app.blobs.receive(sha256, body, &*app.redactor(id).await?).await?;
    let stored = received.stored.clone();
    let size = stored.size;
    let guard = app.blobs.store(&received).await?;
    let (file, sha256) = (stored.sha256.clone(), sha256.to_owned());
    let inserted = app.write(async move |work| insert_within_quota(work, id, &sha256, &stored).await).await;
    drop(guard);
    if inserted.is_err() {
        // The file has no row, unless another blob has the same content.
        app.blobs.mark_unreferenced(vec![file]);
        retention::remove_unreferenced_blobs(app).await?;
    }
    let usage = inserted?;
    turn.record_usage(usage);
    Ok(size)
}

fn full_problem() -> Problem {
    Problem::new(Code::LogFull, "the sandbox's log is full; an admin can raise limits.log_bytes_per_sandbox")
}

/// Rejects a blob before its content arrives.
async fn require_room(app: &App, id: SandboxId, size: usize) -> Result<()> {
    let row = super::targets::find_sandbox(app, id).await?;
    let usage = ingest::log_usage(&app.config, &row);
    if usage.admits(log_quota::blob_size(size as u64)) { Ok(()) } else { Err(full_problem()) }
}

/// Stores the row of a blob, if the quota of the sandbox's log admits it.
async fn insert_within_quota(work: &mut Work<'_>, id: SandboxId, sha256: &str, stored: &BlobFile) -> Result<LogUsage> {
    let (_, sandbox) = work.lock_sandbox(id).await?;
    let mut usage = ingest::log_usage(&work.config, &sandbox);
    if blobs::find_blob(work.tx, id, sha256).await?.is_some() {
        return Ok(usage);
    }
    let size = log_quota::blob_size(u64::try_from(stored.size).unwrap_or(0));
    if !usage.admits(size) {
        return Err(full_problem());
    }
    blobs::insert_blob(work.tx, id, sha256, stored, work.now).await?;
    usage.used = usage.used.saturating_add(size);
    Ok(usage)
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
