//! Retention: deletes prefixes of logs and old blobs.

use crate::error::{Error, Result};
use crate::sandboxes::{self, SandboxRow};
use crate::sql::{Tx, first_row, text_param, time_param};
use atoll_core::event::TYPES_OMITTED_FROM_TRAJECTORY;
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;

/// Maximum number of events deleted per transaction, so that it does not block the writer for long.
pub const MAX_DELETED_EVENTS: i64 = 5_000;

/// Lists sandboxes that ended before `before` and still have older events than the newest one.
pub async fn list_sandboxes_with_old_events(tx: &mut dyn Tx, before: Timestamp, limit: i64) -> Result<Vec<SandboxId>> {
    let sql = "SELECT s.id FROM sandboxes s JOIN events e ON e.sandbox_id = s.id AND e.seq = s.first_seq
               WHERE s.last_seq > s.first_seq AND s.ended_at < ?1 AND e.received_at < ?1 ORDER BY s.id LIMIT ?2";
    let rows = tx.query(sql, &[time_param(before), limit.into()]).await?;
    rows.into_iter().map(|row| row.parse("id")).collect()
}

/// Counts the events of this sandbox older than `before`, up to [`MAX_DELETED_EVENTS`]; excludes the newest event.
pub async fn count_old_events(tx: &mut dyn Tx, sandbox: &SandboxRow, before: Timestamp) -> Result<i64> {
    let sql =
        "SELECT COUNT(*) AS count FROM (SELECT received_at FROM events WHERE sandbox_id = ?1 AND seq >= ?2 AND seq < ?3
               ORDER BY seq LIMIT ?4) oldest WHERE received_at < ?5";
    let params = [
        text_param(sandbox.id),
        sandbox.first_seq.into(),
        sandbox.last_seq.into(),
        MAX_DELETED_EVENTS.into(),
        time_param(before),
    ];
    first_row(tx.query(sql, &params).await?).ok_or_else(|| Error::internal("no count"))?.int("count")
}

/// Deletes the first `count` events and advances `first_seq`. The caller holds the session's lock.
pub async fn delete_oldest_events(tx: &mut dyn Tx, sandbox: &mut SandboxRow, count: i64) -> Result<()> {
    let to = (sandbox.first_seq + count).min(sandbox.last_seq);
    for noise in TYPES_OMITTED_FROM_TRAJECTORY {
        let sql = "SELECT COUNT(*) AS count FROM events WHERE sandbox_id = ?1 AND seq < ?2 AND type = ?3";
        let rows = tx.query(sql, &[text_param(sandbox.id), to.into(), (*noise).into()]).await?;
        sandbox.noise_count -= first_row(rows).ok_or_else(|| Error::internal("no count"))?.int("count")?;
    }
    tx.execute("DELETE FROM events WHERE sandbox_id = ?1 AND seq < ?2", &[text_param(sandbox.id), to.into()]).await?;
    sandbox.first_seq = to;
    sandboxes::update_sandbox(tx, sandbox).await
}

/// Deletes rows of old blobs of ended sandboxes and returns their files. Keeps transcripts that an open session needs.
///
/// A blob does not go before an event that names it: the newest event of its sandbox must be old, too.
pub async fn delete_old_blobs(tx: &mut dyn Tx, before: Timestamp, limit: i64) -> Result<Vec<String>> {
    let sql = "SELECT b.sandbox_id, b.sha256, COALESCE(b.stored, b.sha256) AS file
               FROM blobs b JOIN sandboxes s ON s.id = b.sandbox_id
               JOIN events e ON e.sandbox_id = s.id AND e.seq = s.last_seq
               WHERE b.created_at < ?1 AND s.ended_at < ?1 AND e.received_at < ?1 AND NOT EXISTS (SELECT 1 FROM sessions t
               WHERE t.last_sandbox_id = b.sandbox_id AND t.transcript = b.sha256 AND t.state = 'open')
               ORDER BY b.sha256 LIMIT ?2";
    let rows = tx.query(sql, &[time_param(before), limit.into()]).await?;
    let mut names = Vec::new();
    for row in rows {
        let (sandbox, sha256) = (row.text("sandbox_id")?, row.text("sha256")?);
        tx.execute("DELETE FROM blobs WHERE sandbox_id = ?1 AND sha256 = ?2", &[sandbox.into(), (&sha256).into()])
            .await?;
        names.push(row.text("file")?);
    }
    Ok(names)
}
