//! Blobs on disk, named by their hash: written to a temporary file, verified, then moved into place.

use crate::problem::{Code, Problem, Result};
use atoll_core::bounds;
use atoll_core::redact::Redactor;
use atoll_store::blobs::BlobFile;
use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Longest silence of a sender.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Blobs {
    root: PathBuf,
    /// Writers hold it shared until the row of their file is stored; the deletion of unreferenced files holds it
    /// exclusively.
    deletion_lock: Arc<RwLock<()>>,
    /// Files whose rows were deleted.
    loose: Arc<Mutex<Vec<String>>>,
}

/// A received blob in its temporary file, which is removed on drop.
#[derive(Debug)]
pub struct ReceivedBlob {
    pub stored: BlobFile,
    incoming: PathBuf,
}

impl Drop for ReceivedBlob {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.incoming));
    }
}

fn storage_problem(error: &std::io::Error) -> Problem {
    if error.kind() == std::io::ErrorKind::StorageFull {
        return Problem::from(atoll_store::Error::DiskFull { detail: error.to_string() });
    }
    Problem::from(atoll_store::Error::Unavailable { detail: error.to_string() })
}

fn to_hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn too_large_problem() -> Problem {
    Problem::new(Code::TooLarge, format!("a blob has at most {} bytes", bounds::MAX_BLOB_BYTES))
}

impl Blobs {
    pub fn open(data_dir: &Path) -> std::io::Result<Self> {
        let root = data_dir.join("blobs");
        std::fs::create_dir_all(root.join("incoming"))?;
        // Left over by a killed server.
        for entry in std::fs::read_dir(root.join("incoming"))? {
            drop(std::fs::remove_file(entry?.path()));
        }
        Ok(Self { root, deletion_lock: Arc::default(), loose: Arc::default() })
    }

    /// Opens the blobs of a server that may be running: changes nothing.
    pub fn open_read_only(data_dir: &Path) -> Self {
        Self { root: data_dir.join("blobs"), deletion_lock: Arc::default(), loose: Arc::default() }
    }

    pub fn path(&self, sha256: &str) -> PathBuf {
        self.root.join(&sha256[..2]).join(sha256)
    }

    /// Receives a blob, removes known secrets and syncs it to disk.
    pub async fn receive(&self, sha256: &str, body: Body, redactor: &Redactor) -> Result<ReceivedBlob> {
        if body.size_hint().lower() > bounds::MAX_BLOB_BYTES as u64 {
            crate::extract::drain_body(body).await;
            return Err(too_large_problem());
        }
        let incoming = self.root.join("incoming").join(uuid::Uuid::now_v7().to_string());
        let mut received = ReceivedBlob { stored: BlobFile { sha256: String::new(), size: 0 }, incoming };
        received.stored = write_redacted(&received.incoming, sha256, body, redactor).await?;
        Ok(received)
    }

    /// Moves a blob into place. The caller stores its row before it drops the guard.
    pub async fn store(&self, received: &ReceivedBlob) -> Result<RwLockReadGuard<'_, ()>> {
        let guard = self.deletion_lock.read().await;
        let place = self.path(&received.stored.sha256);
        if let Some(parent) = place.parent() {
            tokio::fs::create_dir_all(parent).await.map_err(|error| storage_problem(&error))?;
            tokio::fs::rename(&received.incoming, &place).await.map_err(|error| storage_problem(&error))?;
            let directory = tokio::fs::File::open(parent).await.map_err(|error| storage_problem(&error))?;
            directory.sync_all().await.map_err(|error| storage_problem(&error))?;
        }
        Ok(guard)
    }

    /// Marks files for deletion because their rows were deleted.
    pub fn mark_unreferenced(&self, files: Vec<String>) {
        self.loose.lock().unwrap_or_else(PoisonError::into_inner).extend(files);
    }

    pub fn take_unreferenced(&self) -> Vec<String> {
        std::mem::take(&mut *self.loose.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Blocks new references to files until the guard is dropped.
    pub async fn lock_for_deletion(&self) -> RwLockWriteGuard<'_, ()> {
        self.deletion_lock.write().await
    }

    pub async fn get(&self, sha256: &str) -> Result<tokio::fs::File> {
        tokio::fs::File::open(self.path(sha256)).await.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Problem::not_found("blob"),
            _ => storage_problem(&error),
        })
    }

    pub async fn remove(&self, sha256: &str) {
        drop(tokio::fs::remove_file(self.path(sha256)).await);
    }
}

/// The next chunk. Gives up a body whose sender has gone silently, because the sandbox's next upload waits for this one.
async fn next_chunk(chunks: &mut BodyDataStream) -> Result<Option<std::result::Result<Bytes, axum::Error>>> {
    let late = || Problem::new(Code::RateLimited, "the body did not arrive in time").retry_after(1);
    tokio::time::timeout(CHUNK_TIMEOUT, chunks.next()).await.map_err(|_| late())
}

async fn write_redacted(incoming: &Path, sha256: &str, body: Body, redactor: &Redactor) -> Result<BlobFile> {
    let mut file = tokio::fs::File::create(incoming).await.map_err(|error| storage_problem(&error))?;
    let (mut sent, mut stored_hash) = (Sha256::new(), Sha256::new());
    let (mut size, mut stored) = (0, 0);
    let mut redacting = redactor.start_stream();
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = next_chunk(&mut chunks).await? {
        let chunk = chunk.map_err(|_| Problem::new(Code::BadRequest, "the body ended early"))?;
        size += chunk.len();
        if size > bounds::MAX_BLOB_BYTES {
            return Err(too_large_problem());
        }
        sent.update(&chunk);
        let keep = redacting.push(&chunk);
        stored_hash.update(&keep);
        stored += keep.len();
        file.write_all(&keep).await.map_err(|error| storage_problem(&error))?;
    }
    let rest = redacting.finish_stream();
    stored_hash.update(&rest);
    stored += rest.len();
    file.write_all(&rest).await.map_err(|error| storage_problem(&error))?;
    if to_hex(sent) != sha256 {
        return Err(Problem::new(Code::BlobMismatch, "the received bytes have another SHA-256"));
    }
    file.sync_all().await.map_err(|error| storage_problem(&error))?;
    Ok(BlobFile { sha256: to_hex(stored_hash), size: i64::try_from(stored).unwrap_or(i64::MAX) })
}
