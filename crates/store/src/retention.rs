//! What is old goes: whole prefixes of logs, forgotten blobs.

use crate::error::{Error, Result};
use crate::sandboxes::{self, Sandbox};
use crate::sql::{Tx, first, micros, text};
use atoll_core::event::NOISE;
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;

/// How many events one transaction removes, so that it never holds the writer for long.
pub const STEP: i64 = 5_000;

/// Sandboxes whose first kept event is older than `before`.
pub async fn candidates(tx: &mut dyn Tx, before: Timestamp, limit: i64) -> Result<Vec<SandboxId>> {
    let sql = "SELECT s.id FROM sandboxes s JOIN events e ON e.sandbox_id = s.id AND e.seq = s.first_seq
               WHERE s.last_seq > s.first_seq AND e.received_at < ?1 ORDER BY s.id LIMIT ?2";
    let rows = tx.query(sql, &[micros(before), limit.into()]).await?;
    rows.into_iter().map(|mut row| row.parse()).collect()
}

/// How many events of this sandbox are older than `before`, up to `STEP`; the newest is always kept.
pub async fn count_prefix(tx: &mut dyn Tx, sandbox: &Sandbox, before: Timestamp) -> Result<i64> {
    let sql = "SELECT COUNT(*) FROM (SELECT received_at FROM events WHERE sandbox_id = ?1 AND seq >= ?2 AND seq < ?3
               ORDER BY seq LIMIT ?4) oldest WHERE received_at < ?5";
    let params = [text(sandbox.id), sandbox.first_seq.into(), sandbox.last_seq.into(), STEP.into(), micros(before)];
    first(tx.query(sql, &params).await?).ok_or_else(|| Error::internal("no count"))?.int()
}

/// Removes the first `count` events and moves `first_seq`. The caller holds the session's lock.
pub async fn cut(tx: &mut dyn Tx, sandbox: &mut Sandbox, count: i64) -> Result<()> {
    let to = (sandbox.first_seq + count).min(sandbox.last_seq);
    for noise in NOISE {
        let sql = "SELECT COUNT(*) FROM events WHERE sandbox_id = ?1 AND seq < ?2 AND type = ?3";
        let rows = tx.query(sql, &[text(sandbox.id), to.into(), (*noise).into()]).await?;
        sandbox.noise -= first(rows).ok_or_else(|| Error::internal("no count"))?.int()?;
    }
    tx.execute("DELETE FROM events WHERE sandbox_id = ?1 AND seq < ?2", &[text(sandbox.id), to.into()]).await?;
    sandbox.first_seq = to;
    sandboxes::update(tx, sandbox).await
}

/// Takes old blobs of ended sandboxes off the books and names their files. What an open session would go on with stays.
pub async fn forget_blobs(tx: &mut dyn Tx, before: Timestamp, limit: i64) -> Result<Vec<String>> {
    let sql = "SELECT b.sandbox_id, b.sha256, COALESCE(b.stored, b.sha256) FROM blobs b JOIN sandboxes s ON s.id = b.sandbox_id
               WHERE b.created_at < ?1 AND s.ended_at < ?1 AND NOT EXISTS (SELECT 1 FROM sessions t
               WHERE t.last_sandbox_id = b.sandbox_id AND t.transcript = b.sha256 AND t.state = 'open')
               ORDER BY b.sha256 LIMIT ?2";
    let rows = tx.query(sql, &[micros(before), limit.into()]).await?;
    let mut names = Vec::new();
    for mut row in rows {
        let (sandbox, sha256) = (row.text()?, row.text()?);
        tx.execute("DELETE FROM blobs WHERE sandbox_id = ?1 AND sha256 = ?2", &[sandbox.into(), (&sha256).into()])
            .await?;
        names.push(row.text()?);
    }
    Ok(names)
}
