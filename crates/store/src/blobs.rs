//! Which blobs a sandbox has. The bytes are files, named by their hash.

use crate::error::Result;
use crate::sql::{Tx, first, micros, text};
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;

/// The file that holds a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its own hash: another one than the blob's where secrets were taken out.
    pub sha256: String,
    pub size: i64,
}

pub async fn insert(tx: &mut dyn Tx, sandbox: SandboxId, sha256: &str, stored: &Stored, now: Timestamp) -> Result<()> {
    let sql = "INSERT INTO blobs (sandbox_id, sha256, size, created_at, stored) VALUES (?1, ?2, ?3, ?4, ?5)
               ON CONFLICT DO NOTHING";
    let other = Some(stored.sha256.as_str()).filter(|other| *other != sha256);
    tx.execute(sql, &[text(sandbox), sha256.into(), stored.size.into(), micros(now), other.into()]).await.map(drop)
}

pub async fn get(tx: &mut dyn Tx, sandbox: SandboxId, sha256: &str) -> Result<Option<Stored>> {
    let sql = "SELECT COALESCE(stored, sha256), size FROM blobs WHERE sandbox_id = ?1 AND sha256 = ?2";
    let rows = tx.query(sql, &[text(sandbox), sha256.into()]).await?;
    first(rows).map(|mut row| Ok(Stored { sha256: row.text()?, size: row.int()? })).transpose()
}

/// Takes a blob off the books, and names the file that it was in.
pub async fn forget(tx: &mut dyn Tx, sandbox: SandboxId, sha256: &str) -> Result<Option<String>> {
    let Some(stored) = get(tx, sandbox, sha256).await? else { return Ok(None) };
    let sql = "DELETE FROM blobs WHERE sandbox_id = ?1 AND sha256 = ?2";
    tx.execute(sql, &[text(sandbox), sha256.into()]).await?;
    Ok(Some(stored.sha256))
}

/// Whether anybody's blob is still in this file.
pub async fn is_used(tx: &mut dyn Tx, file: &str) -> Result<bool> {
    let sql = "SELECT 1 FROM blobs WHERE stored = ?1 OR (sha256 = ?1 AND stored IS NULL) LIMIT 1";
    Ok(!tx.query(sql, &[file.into()]).await?.is_empty())
}
