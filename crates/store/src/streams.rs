//! Worker streams: how far each has been stored, and which one speaks for the sandbox.

use crate::error::Result;
use crate::sql::{Tx, first, micros, text};
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;
use uuid::Uuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    pub stream: Uuid,
    pub boot: Option<i64>,
    pub last_key: i64,
}

pub async fn get(tx: &mut dyn Tx, sandbox: SandboxId, stream: Uuid) -> Result<Option<Stream>> {
    let sql = "SELECT boot, last_key FROM streams WHERE sandbox_id = ?1 AND stream = ?2";
    let rows = tx.query(sql, &[text(sandbox), text(stream)]).await?;
    first(rows).map(|mut row| Ok(Stream { stream, boot: row.opt_int()?, last_key: row.int()? })).transpose()
}

pub async fn insert(tx: &mut dyn Tx, sandbox: SandboxId, stream: &Stream, now: Timestamp) -> Result<()> {
    let sql = "INSERT INTO streams (sandbox_id, stream, boot, last_key, registered_at) VALUES (?1, ?2, ?3, ?4, ?5)";
    let params = [text(sandbox), text(stream.stream), stream.boot.into(), stream.last_key.into(), micros(now)];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn advance(tx: &mut dyn Tx, sandbox: SandboxId, stream: Uuid, last_key: i64) -> Result<()> {
    let sql = "UPDATE streams SET last_key = ?1 WHERE sandbox_id = ?2 AND stream = ?3";
    tx.execute(sql, &[last_key.into(), text(sandbox), text(stream)]).await.map(drop)
}
