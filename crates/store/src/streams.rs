//! Worker streams: the last stored key of each, and the current one of a sandbox.

use crate::error::Result;
use crate::sql::{Tx, first_row, text_param, time_param};
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;
use uuid::Uuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamRow {
    pub id: Uuid,
    pub boot: Option<i64>,
    pub last_key: i64,
}

pub async fn find_stream(tx: &mut dyn Tx, sandbox: SandboxId, stream: Uuid) -> Result<Option<StreamRow>> {
    let sql = "SELECT boot, last_key FROM streams WHERE sandbox_id = ?1 AND stream = ?2";
    let rows = tx.query(sql, &[text_param(sandbox), text_param(stream)]).await?;
    first_row(rows)
        .map(|row| Ok(StreamRow { id: stream, boot: row.opt_int("boot")?, last_key: row.int("last_key")? }))
        .transpose()
}

pub async fn insert_stream(tx: &mut dyn Tx, sandbox: SandboxId, stream: &StreamRow, now: Timestamp) -> Result<()> {
    let sql = "INSERT INTO streams (sandbox_id, stream, boot, last_key, registered_at) VALUES (?1, ?2, ?3, ?4, ?5)";
    let params =
        [text_param(sandbox), text_param(stream.id), stream.boot.into(), stream.last_key.into(), time_param(now)];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn advance_last_key(tx: &mut dyn Tx, sandbox: SandboxId, stream: Uuid, last_key: i64) -> Result<()> {
    let sql = "UPDATE streams SET last_key = ?1 WHERE sandbox_id = ?2 AND stream = ?3";
    tx.execute(sql, &[last_key.into(), text_param(sandbox), text_param(stream)]).await.map(drop)
}
