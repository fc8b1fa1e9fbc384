//! The outbox: pending jobs, written in the same transaction as the row that needs them.

use crate::error::Result;
use crate::sql::{Row, Tx, text_param, time_param};
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
    /// Number of the claim. Only the newest claim can finish or postpone the job.
    pub claim: i64,
}

fn job_from_row(row: Row) -> Result<Job> {
    Ok(Job {
        id: row.parse("id")?,
        kind: row.parse("kind")?,
        sandbox_id: row.parse("sandbox_id")?,
        due_at: row.time("due_at")?,
        attempts: row.int("attempts")?,
        claim: row.int("claim")?,
    })
}

/// Adds a job, or reschedules the pending one of its kind. A runner that still runs it cannot finish the new one.
pub async fn schedule_job(tx: &mut dyn Tx, kind: JobKind, sandbox: SandboxId, due_at: Timestamp) -> Result<()> {
    let sql = "INSERT INTO jobs (id, kind, sandbox_id, due_at, attempts, created_at)
               VALUES (?1, ?2, ?3, ?4, 0, ?5)
               ON CONFLICT (sandbox_id, kind)
               DO UPDATE SET due_at = excluded.due_at, claimed_until = NULL, attempts = 0, claim = jobs.claim + 1";
    let params =
        [text_param(JobId::new()), text_param(kind), text_param(sandbox), time_param(due_at), time_param(due_at)];
    tx.execute(sql, &params).await.map(drop)
}

/// Adds a job that its caller runs at once: it becomes available to others if it does not finish within `hold`.
pub async fn insert_claimed_job(
    tx: &mut dyn Tx,
    kind: JobKind,
    sandbox: SandboxId,
    now: Timestamp,
    hold: Duration,
) -> Result<Job> {
    let job = Job { id: JobId::new(), kind, sandbox_id: sandbox, due_at: now, attempts: 0, claim: 1 };
    let sql = "INSERT INTO jobs (id, kind, sandbox_id, due_at, claimed_until, attempts, claim, created_at)
               VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?4)";
    let params = [
        text_param(job.id),
        text_param(kind),
        text_param(sandbox),
        time_param(now),
        time_param(now + hold),
        job.claim.into(),
    ];
    tx.execute(sql, &params).await?;
    Ok(job)
}

/// Adds a job unless one of its kind is pending or running.
pub async fn schedule_job_if_absent(
    tx: &mut dyn Tx,
    kind: JobKind,
    sandbox: SandboxId,
    due_at: Timestamp,
) -> Result<()> {
    let sql = "INSERT INTO jobs (id, kind, sandbox_id, due_at, attempts, created_at)
               VALUES (?1, ?2, ?3, ?4, 0, ?5) ON CONFLICT (sandbox_id, kind) DO NOTHING";
    let params =
        [text_param(JobId::new()), text_param(kind), text_param(sandbox), time_param(due_at), time_param(due_at)];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn cancel_job(tx: &mut dyn Tx, kind: JobKind, sandbox: SandboxId) -> Result<()> {
    let sql = "DELETE FROM jobs WHERE sandbox_id = ?1 AND kind = ?2";
    tx.execute(sql, &[text_param(sandbox), text_param(kind)]).await.map(drop)
}

/// Claims due jobs. A job becomes available again if it does not finish within `hold`.
pub async fn claim_due_jobs(tx: &mut dyn Tx, now: Timestamp, hold: Duration, limit: i64) -> Result<Vec<Job>> {
    let sql = "SELECT id, kind, sandbox_id, due_at, attempts, claim + 1 AS claim FROM jobs
               WHERE due_at <= ?1 AND (claimed_until IS NULL OR claimed_until <= ?1) ORDER BY due_at LIMIT ?2";
    let rows = tx.query_for_update(sql, &[time_param(now), limit.into()]).await?;
    let jobs: Vec<Job> = rows.into_iter().map(job_from_row).collect::<Result<_>>()?;
    for job in &jobs {
        let sql = "UPDATE jobs SET claimed_until = ?2, attempts = attempts + 1, claim = ?3 WHERE id = ?1";
        tx.execute(sql, &[text_param(job.id), time_param(now + hold), job.claim.into()]).await?;
    }
    Ok(jobs)
}

/// Returns the due time of the next unclaimed job.
pub async fn find_next_due_time(tx: &mut dyn Tx) -> Result<Option<Timestamp>> {
    let sql = "SELECT MIN(CASE WHEN claimed_until IS NULL OR claimed_until < due_at THEN due_at ELSE claimed_until END)
               AS next_due_at FROM jobs";
    let rows = tx.query(sql, &[]).await?;
    Ok(crate::sql::first_row(rows).map(|row| row.opt_time("next_due_at")).transpose()?.flatten())
}

/// Counts due jobs without a claim, by kind.
pub async fn count_due_jobs(tx: &mut dyn Tx, now: Timestamp) -> Result<Vec<(JobKind, i64)>> {
    let sql = "SELECT kind, COUNT(*) AS count FROM jobs
               WHERE due_at <= ?1 AND (claimed_until IS NULL OR claimed_until <= ?1) GROUP BY kind";
    let rows = tx.query(sql, &[time_param(now)]).await?;
    rows.into_iter().map(|row| Ok((row.parse("kind")?, row.int("count")?))).collect()
}

/// Deletes a job. Returns false if the claim is outdated; then nothing changes.
pub async fn finish_job(tx: &mut dyn Tx, id: JobId, claim: i64) -> Result<bool> {
    let sql = "DELETE FROM jobs WHERE id = ?1 AND claim = ?2";
    Ok(tx.execute(sql, &[text_param(id), claim.into()]).await? > 0)
}

/// Reschedules a job for a retry. Returns false if the claim is outdated; then nothing changes.
pub async fn postpone_job(tx: &mut dyn Tx, id: JobId, claim: i64, due_at: Timestamp) -> Result<bool> {
    let sql = "UPDATE jobs SET due_at = ?3, claimed_until = NULL WHERE id = ?1 AND claim = ?2";
    Ok(tx.execute(sql, &[text_param(id), claim.into(), time_param(due_at)]).await? > 0)
}

/// Offset of suspended jobs, later than any due time: a suspended job is due at this plus its remaining time.
const SUSPENDED_OFFSET: Timestamp = Timestamp::from_micros(32_503_680_000_000_000);

/// Suspends a job: keeps its remaining time, and it is not due until it is resumed.
pub async fn suspend_job(tx: &mut dyn Tx, kind: JobKind, sandbox: SandboxId, now: Timestamp) -> Result<()> {
    let sql = "UPDATE jobs SET due_at = ?1 + CASE WHEN due_at > ?2 THEN due_at - ?2 ELSE 0 END
               WHERE sandbox_id = ?3 AND kind = ?4 AND due_at < ?1";
    tx.execute(sql, &[time_param(SUSPENDED_OFFSET), time_param(now), text_param(sandbox), text_param(kind)])
        .await
        .map(drop)
}

/// Resumes a suspended job with its remaining time.
pub async fn resume_job(tx: &mut dyn Tx, kind: JobKind, sandbox: SandboxId, now: Timestamp) -> Result<()> {
    let sql = "UPDATE jobs SET due_at = due_at - ?1 + ?2 WHERE sandbox_id = ?3 AND kind = ?4 AND due_at >= ?1";
    tx.execute(sql, &[time_param(SUSPENDED_OFFSET), time_param(now), text_param(sandbox), text_param(kind)])
        .await
        .map(drop)
}

/// Releases the claims of a server that has stopped. If it still runs, its claims are outdated.
pub async fn release_all_claims(tx: &mut dyn Tx) -> Result<()> {
    let sql = "UPDATE jobs SET claimed_until = NULL, claim = claim + 1 WHERE claimed_until IS NOT NULL";
    tx.execute(sql, &[]).await.map(drop)
}
