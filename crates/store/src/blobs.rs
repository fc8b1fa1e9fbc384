//! Blobs of sandboxes. The content is in files named by their hash.

use crate::error::Result;
use crate::sql::{Tx, first_row, text_param, time_param};
use atoll_core::id::SandboxId;
use atoll_core::log_quota;
use atoll_core::time::Timestamp;

/// The file that holds a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobFile {
    /// Hash of the file: differs from the blob's if secrets were redacted.
    pub sha256: String,
    pub size: i64,
}

pub async fn insert_blob(
    tx: &mut dyn Tx,
    sandbox: SandboxId,
    sha256: &str,
    stored: &BlobFile,
    now: Timestamp,
) -> Result<()> {
    let sql = "INSERT INTO blobs (sandbox_id, sha256, size, created_at, stored) VALUES (?1, ?2, ?3, ?4, ?5)
               ON CONFLICT DO NOTHING";
    let other = Some(stored.sha256.as_str()).filter(|other| *other != sha256);
    let params = [text_param(sandbox), sha256.into(), stored.size.into(), time_param(now), other.into()];
    match tx.execute(sql, &params).await? {
        0 => Ok(()),
        _ => change_blob_bytes(tx, sandbox, counted_size(stored)).await,
    }
}

/// The size that a blob counts with.
fn counted_size(stored: &BlobFile) -> i64 {
    let size = u64::try_from(stored.size).unwrap_or(0);
    i64::try_from(log_quota::blob_size(size)).unwrap_or(i64::MAX)
}

async fn change_blob_bytes(tx: &mut dyn Tx, sandbox: SandboxId, change: i64) -> Result<()> {
    let sql = "UPDATE sandboxes SET blob_bytes = blob_bytes + ?2 WHERE id = ?1";
    tx.execute(sql, &[text_param(sandbox), change.into()]).await.map(drop)
}

pub async fn find_blob(tx: &mut dyn Tx, sandbox: SandboxId, sha256: &str) -> Result<Option<BlobFile>> {
    let sql = "SELECT COALESCE(stored, sha256) AS file, size FROM blobs WHERE sandbox_id = ?1 AND sha256 = ?2";
    let rows = tx.query(sql, &[text_param(sandbox), sha256.into()]).await?;
    first_row(rows).map(|row| Ok(BlobFile { sha256: row.text("file")?, size: row.int("size")? })).transpose()
}

/// Deletes a blob's row and returns the name of its file.
pub async fn delete_blob(tx: &mut dyn Tx, sandbox: SandboxId, sha256: &str) -> Result<Option<String>> {
    let Some(stored) = find_blob(tx, sandbox, sha256).await? else { return Ok(None) };
    let sql = "DELETE FROM blobs WHERE sandbox_id = ?1 AND sha256 = ?2";
    tx.execute(sql, &[text_param(sandbox), sha256.into()]).await?;
    change_blob_bytes(tx, sandbox, -counted_size(&stored)).await?;
    Ok(Some(stored.sha256))
}

/// Returns true if any blob refers to this file.
pub async fn is_file_used(tx: &mut dyn Tx, file: &str) -> Result<bool> {
    let sql = "SELECT 1 FROM blobs WHERE stored = ?1 OR (sha256 = ?1 AND stored IS NULL) LIMIT 1";
    Ok(!tx.query(sql, &[file.into()]).await?.is_empty())
}
