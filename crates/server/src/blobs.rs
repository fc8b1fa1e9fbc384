//! Blobs on disk, named by their hash: written beside, checked, then moved into place.

use crate::problem::{Code, Problem, Result};
use atoll_core::bounds;
use atoll_core::redact::Redactor;
use atoll_store::blobs::Stored;
use axum::body::{Body, HttpBody};
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::AsyncWriteExt;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

#[derive(Debug, Clone)]
pub struct Blobs {
    root: PathBuf,
    /// Held by those who put a file into its place until its row is there, and alone by whoever removes files that
    /// have none.
    gate: Arc<RwLock<()>>,
    /// Files whose rows are gone.
    loose: Arc<Mutex<Vec<String>>>,
}

/// Bytes that arrived whole, and are not in their place yet. What never gets there is removed.
#[derive(Debug)]
pub struct Received {
    pub stored: Stored,
    incoming: PathBuf,
}

impl Drop for Received {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.incoming));
    }
}

/// 64 lower-case hexadecimal digits: also what makes it safe as a file name.
pub fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn io(error: &std::io::Error) -> Problem {
    if error.kind() == std::io::ErrorKind::StorageFull {
        return Problem::from(atoll_store::Error::Full { detail: error.to_string() });
    }
    Problem::from(atoll_store::Error::Unavailable { detail: error.to_string() })
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn too_large() -> Problem {
    Problem::new(Code::TooLarge, format!("a blob has at most {} bytes", bounds::BLOB_BYTES))
}

impl Blobs {
    pub fn open(data_dir: &Path) -> std::io::Result<Self> {
        let root = data_dir.join("blobs");
        std::fs::create_dir_all(root.join("incoming"))?;
        // What a killed server was in the middle of.
        for entry in std::fs::read_dir(root.join("incoming"))? {
            drop(std::fs::remove_file(entry?.path()));
        }
        Ok(Self { root, gate: Arc::default(), loose: Arc::default() })
    }

    pub fn path(&self, sha256: &str) -> PathBuf {
        self.root.join(&sha256[..2]).join(sha256)
    }

    /// Takes the bytes in, without the secrets that are known, durable before it returns; says what is to be stored.
    pub async fn receive(&self, sha256: &str, body: Body, redactor: &Redactor) -> Result<Received> {
        if body.size_hint().lower() > bounds::BLOB_BYTES as u64 {
            crate::extract::drain(body).await;
            return Err(too_large());
        }
        let incoming = self.root.join("incoming").join(uuid::Uuid::now_v7().to_string());
        let mut received = Received { stored: Stored { sha256: String::new(), size: 0 }, incoming };
        received.stored = write(&received.incoming, sha256, body, redactor).await?;
        Ok(received)
    }

    /// Puts it into its place. The row that names it is to be written before the guard is dropped.
    pub async fn settle(&self, received: &Received) -> Result<RwLockReadGuard<'_, ()>> {
        let guard = self.gate.read().await;
        let place = self.path(&received.stored.sha256);
        if let Some(parent) = place.parent() {
            tokio::fs::create_dir_all(parent).await.map_err(|error| io(&error))?;
            tokio::fs::rename(&received.incoming, &place).await.map_err(|error| io(&error))?;
            let directory = tokio::fs::File::open(parent).await.map_err(|error| io(&error))?;
            directory.sync_all().await.map_err(|error| io(&error))?;
        }
        Ok(guard)
    }

    /// These have no row any more, as far as is known.
    pub fn let_go(&self, files: Vec<String>) {
        self.loose.lock().unwrap_or_else(PoisonError::into_inner).extend(files);
    }

    pub fn loose(&self) -> Vec<String> {
        std::mem::take(&mut *self.loose.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Until this is dropped no file gets a row that it had none for.
    pub async fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().await
    }

    pub async fn get(&self, sha256: &str) -> Result<tokio::fs::File> {
        tokio::fs::File::open(self.path(sha256)).await.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Problem::not_found("blob"),
            _ => io(&error),
        })
    }

    pub async fn remove(&self, sha256: &str) {
        drop(tokio::fs::remove_file(self.path(sha256)).await);
    }
}

async fn write(incoming: &Path, sha256: &str, body: Body, redactor: &Redactor) -> Result<Stored> {
    let mut file = tokio::fs::File::create(incoming).await.map_err(|error| io(&error))?;
    let (mut sent, mut kept) = (Sha256::new(), Sha256::new());
    let (mut size, mut stored) = (0, 0);
    let mut redacting = redactor.stream();
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Problem::new(Code::BadRequest, "the body broke off"))?;
        size += chunk.len();
        if size > bounds::BLOB_BYTES {
            return Err(too_large());
        }
        sent.update(&chunk);
        let keep = redacting.push(&chunk);
        kept.update(&keep);
        stored += keep.len();
        file.write_all(&keep).await.map_err(|error| io(&error))?;
    }
    let rest = redacting.end();
    kept.update(&rest);
    stored += rest.len();
    file.write_all(&rest).await.map_err(|error| io(&error))?;
    if hex(sent) != sha256 {
        return Err(Problem::new(Code::BlobMismatch, "the bytes that arrived have another SHA-256"));
    }
    file.sync_all().await.map_err(|error| io(&error))?;
    Ok(Stored { sha256: hex(kept), size: i64::try_from(stored).unwrap_or(i64::MAX) })
}
