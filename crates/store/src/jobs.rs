//! The outbox: what must still be done, written beside the row that asks for it.

use crate::error::Result;
use crate::sql::{Row, Tx, micros, text};
use atoll_core::id::{JobId, SandboxId};
use atoll_core::job::JobKind;
use atoll_core::time::Timestamp;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub id: JobId,
    pub kind: JobKind,
    pub sandbox_id: SandboxId,
    pub due_at: Timestamp,
    pub attempts: i64,
}

fn job(mut row: Row) -> Result<Job> {
    Ok(Job {
        id: row.parse()?,
        kind: row.parse()?,
        sandbox_id: row.parse()?,
        due_at: row.time()?,
        attempts: row.int()?,
    })
}

/// Adds a job, or moves the waiting one of its kind.
pub async fn put(tx: &mut dyn Tx, kind: JobKind, sandbox: SandboxId, due_at: Timestamp) -> Result<()> {
    let sql = "INSERT INTO jobs (id, kind, sandbox_id, due_at, attempts, created_at)
               VALUES (?1, ?2, ?3, ?4, 0, ?5)
               ON CONFLICT (sandbox_id, kind)
               DO UPDATE SET due_at = excluded.due_at, claimed_until = NULL, attempts = 0";
    let params = [text(JobId::new()), text(kind), text(sandbox), micros(due_at), micros(due_at)];
    tx.execute(sql, &params).await.map(drop)
}

/// Adds a job unless one of its kind waits or is under way.
pub async fn put_if_absent(tx: &mut dyn Tx, kind: JobKind, sandbox: SandboxId, due_at: Timestamp) -> Result<()> {
    let sql = "INSERT INTO jobs (id, kind, sandbox_id, due_at, attempts, created_at)
               VALUES (?1, ?2, ?3, ?4, 0, ?5) ON CONFLICT (sandbox_id, kind) DO NOTHING";
    let params = [text(JobId::new()), text(kind), text(sandbox), micros(due_at), micros(due_at)];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn cancel(tx: &mut dyn Tx, kind: JobKind, sandbox: SandboxId) -> Result<()> {
    let sql = "DELETE FROM jobs WHERE sandbox_id = ?1 AND kind = ?2";
    tx.execute(sql, &[text(sandbox), text(kind)]).await.map(drop)
}

/// Takes what is due; it comes again if it is not finished within `hold`.
pub async fn claim(tx: &mut dyn Tx, now: Timestamp, hold: Duration, limit: i64) -> Result<Vec<Job>> {
    let sql = "SELECT id, kind, sandbox_id, due_at, attempts FROM jobs
               WHERE due_at <= ?1 AND (claimed_until IS NULL OR claimed_until <= ?1) ORDER BY due_at LIMIT ?2";
    let rows = tx.lock(sql, &[micros(now), limit.into()]).await?;
    let jobs: Vec<Job> = rows.into_iter().map(job).collect::<Result<_>>()?;
    for job in &jobs {
        let sql = "UPDATE jobs SET claimed_until = ?2, attempts = attempts + 1 WHERE id = ?1";
        tx.execute(sql, &[text(job.id), micros(now + hold)]).await?;
    }
    Ok(jobs)
}

/// When the next one is due, among those that nobody holds.
pub async fn next_due(tx: &mut dyn Tx) -> Result<Option<Timestamp>> {
    let sql = "SELECT MIN(CASE WHEN claimed_until IS NULL OR claimed_until < due_at THEN due_at ELSE claimed_until END)
               FROM jobs";
    let rows = tx.query(sql, &[]).await?;
    Ok(crate::sql::first(rows).map(|mut row| row.opt_time()).transpose()?.flatten())
}

pub async fn finish(tx: &mut dyn Tx, id: JobId) -> Result<()> {
    tx.execute("DELETE FROM jobs WHERE id = ?1", &[text(id)]).await.map(drop)
}

/// Tries again later.
pub async fn postpone(tx: &mut dyn Tx, id: JobId, due_at: Timestamp) -> Result<()> {
    let sql = "UPDATE jobs SET due_at = ?2, claimed_until = NULL WHERE id = ?1";
    tx.execute(sql, &[text(id), micros(due_at)]).await.map(drop)
}

/// Later than anything is due: a job that is held has this and what was left of its time.
const HELD: Timestamp = Timestamp::from_micros(32_503_680_000_000_000);

/// A job's time stands: what is left of it is kept, and until it goes on it is never due.
pub async fn hold(tx: &mut dyn Tx, kind: JobKind, sandbox: SandboxId, now: Timestamp) -> Result<()> {
    let sql = "UPDATE jobs SET due_at = ?1 + CASE WHEN due_at > ?2 THEN due_at - ?2 ELSE 0 END
               WHERE sandbox_id = ?3 AND kind = ?4 AND due_at < ?1";
    tx.execute(sql, &[micros(HELD), micros(now), text(sandbox), text(kind)]).await.map(drop)
}

/// A held job has from now on what was left of its time.
pub async fn go_on(tx: &mut dyn Tx, kind: JobKind, sandbox: SandboxId, now: Timestamp) -> Result<()> {
    let sql = "UPDATE jobs SET due_at = due_at - ?1 + ?2 WHERE sandbox_id = ?3 AND kind = ?4 AND due_at >= ?1";
    tx.execute(sql, &[micros(HELD), micros(now), text(sandbox), text(kind)]).await.map(drop)
}

/// Frees what a server that is gone had claimed.
pub async fn release_all(tx: &mut dyn Tx) -> Result<()> {
    tx.execute("UPDATE jobs SET claimed_until = NULL WHERE claimed_until IS NOT NULL", &[]).await.map(drop)
}
