//! Which blobs a sandbox has. The bytes are files, named by their hash.

use crate::error::Result;
use crate::sql::{Tx, first, micros, text};
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;

pub async fn insert(tx: &mut dyn Tx, sandbox: SandboxId, sha256: &str, size: i64, now: Timestamp) -> Result<()> {
    let sql = "INSERT INTO blobs (sandbox_id, sha256, size, created_at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
    tx.execute(sql, &[text(sandbox), sha256.into(), size.into(), micros(now)]).await.map(drop)
}

pub async fn size(tx: &mut dyn Tx, sandbox: SandboxId, sha256: &str) -> Result<Option<i64>> {
    let sql = "SELECT size FROM blobs WHERE sandbox_id = ?1 AND sha256 = ?2";
    let rows = tx.query(sql, &[text(sandbox), sha256.into()]).await?;
    first(rows).map(|mut row| row.int()).transpose()
}

/// Whether anybody still names it.
pub async fn is_used(tx: &mut dyn Tx, sha256: &str) -> Result<bool> {
    let rows = tx.query("SELECT 1 FROM blobs WHERE sha256 = ?1 LIMIT 1", &[sha256.into()]).await?;
    Ok(!rows.is_empty())
}
