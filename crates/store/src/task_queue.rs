//! The queue of tasks, as the task dispatcher reads it. Each query reads an index, so its cost does not grow with the number
//! of waiting tasks.

use crate::error::Result;
use crate::sql::{Row, Tx, first_row, text_param, time_param};
use crate::tasks::{TaskRow, select_tasks, task_from_row};
use atoll_core::id::{SandboxId, TaskId};
use atoll_core::sandbox::ProviderKind;
use atoll_core::task::{ActiveTask, Candidate, Standing};
use atoll_core::time::Timestamp;

/// Locks the queue: one dispatcher at a time claims tasks.
pub async fn lock_queue(tx: &mut dyn Tx) -> Result<()> {
    tx.query_for_update("SELECT key FROM meta WHERE key = 'task_dispatch'", &[]).await.map(drop)
}

/// Visits the index by jumps: from the oldest task of one (project, owner, standing) to that of the next. Each jump is a seek
/// with equal leading columns, which both databases support. `CROSS JOIN` keeps SQLite from reading all tasks first.
macro_rules! list_heads {
    ($prefix:literal) => {
        concat!(
            $prefix,
            "WITH RECURSIVE heads (id) AS (
                 SELECT (SELECT f.id FROM tasks f WHERE f.wait = 'slot'
                         ORDER BY f.project_id, f.owner, f.standing, f.queued_since, f.id LIMIT 1)
                 UNION ALL
                 SELECT COALESCE(
                     (SELECT n.id FROM tasks n WHERE n.wait = 'slot' AND n.project_id = h.project_id
                      AND n.owner = h.owner AND n.standing > h.standing
                      ORDER BY n.standing, n.queued_since, n.id LIMIT 1),
                     (SELECT o.id FROM tasks o WHERE o.wait = 'slot' AND o.project_id = h.project_id
                      AND o.owner > h.owner ORDER BY o.owner, o.standing, o.queued_since, o.id LIMIT 1),
                     (SELECT p.id FROM tasks p WHERE p.wait = 'slot' AND p.project_id > h.project_id
                      ORDER BY p.project_id, p.owner, p.standing, p.queued_since, p.id LIMIT 1))
                 FROM heads CROSS JOIN tasks h WHERE h.id = heads.id)
             SELECT t.id, t.project_id, t.owner, t.standing, t.queued_since, t.owned_files
             FROM heads CROSS JOIN tasks t WHERE t.id = heads.id"
        )
    };
}

/// Lists the oldest ready task of each project, owner and standing.
pub async fn list_candidates(tx: &mut dyn Tx) -> Result<Vec<Candidate>> {
    let from_row = |row: Row| {
        Ok(Candidate {
            id: row.parse("id")?,
            project: row.parse("project_id")?,
            owner: row.text("owner")?,
            standing: Standing::from_units(row.int("standing")?),
            queued_since: row.time("queued_since")?,
            owned_files: row.json("owned_files")?,
        })
    };
    tx.query(list_heads!(""), &[]).await?.into_iter().map(from_row).collect()
}

/// The plan that SQLite has for [`list_candidates`], for tests.
pub const SQLITE_CANDIDATE_PLAN: &str = list_heads!("EXPLAIN QUERY PLAN ");
/// The plan that PostgreSQL has for [`list_candidates`], for tests.
pub const POSTGRES_CANDIDATE_PLAN: &str = list_heads!("EXPLAIN (ANALYZE, TIMING OFF) ");

/// Lists the tasks that occupy slots.
pub async fn list_active_tasks(tx: &mut dyn Tx) -> Result<Vec<ActiveTask>> {
    let from_row = |row: Row| {
        Ok(ActiveTask {
            id: row.parse("id")?,
            project: row.parse("project_id")?,
            owner: row.text("owner")?,
            owned_files: row.json("owned_files")?,
        })
    };
    let sql = "SELECT id, project_id, owner, owned_files FROM tasks WHERE is_active = 1 ORDER BY id";
    tx.query(sql, &[]).await?.into_iter().map(from_row).collect()
}

/// Lists claims that have expired.
pub async fn list_stale_claims(tx: &mut dyn Tx, now: Timestamp) -> Result<Vec<TaskRow>> {
    let sql =
        select_tasks!("WHERE t.is_active = 1 AND t.state = 'claiming' AND t.claim_expires_at <= ?1 ORDER BY t.id");
    tx.query(sql, &[time_param(now)]).await?.into_iter().map(task_from_row).collect()
}

/// Lists the claims of a server.
pub async fn list_claims_of(tx: &mut dyn Tx, server: &str) -> Result<Vec<TaskRow>> {
    let sql = select_tasks!("WHERE t.is_active = 1 AND t.state = 'claiming' AND t.claimed_by = ?1 ORDER BY t.id");
    tx.query(sql, &[server.into()]).await?.into_iter().map(task_from_row).collect()
}

/// Extends a claim. Returns false if it is no longer the task's claim.
pub async fn renew_claim(tx: &mut dyn Tx, id: TaskId, claim: i64, expires_at: Timestamp) -> Result<bool> {
    let sql = "UPDATE tasks SET claim_expires_at = ?3 WHERE id = ?1 AND claim = ?2 AND state = 'claiming'";
    Ok(tx.execute(sql, &[text_param(id), claim.into(), time_param(expires_at)]).await? > 0)
}

/// Lists assigned tasks that entered their state before a time.
pub async fn list_assigned_before(tx: &mut dyn Tx, before: Timestamp) -> Result<Vec<(TaskId, SandboxId, Timestamp)>> {
    let sql = "SELECT id, sandbox_id, state_since FROM tasks
               WHERE is_active = 1 AND state = 'assigned' AND sandbox_id IS NOT NULL AND state_since < ?1 ORDER BY id";
    let from_row = |row: Row| Ok((row.parse("id")?, row.parse("sandbox_id")?, row.time("state_since")?));
    tx.query(sql, &[time_param(before)]).await?.into_iter().map(from_row).collect()
}

/// Lists waiting tasks whose pause is over.
pub async fn list_available_tasks(tx: &mut dyn Tx, now: Timestamp, limit: i64) -> Result<Vec<TaskRow>> {
    let sql = select_tasks!(
        "WHERE t.available_at IS NOT NULL AND t.available_at <= ?1 ORDER BY t.available_at, t.id LIMIT ?2"
    );
    tx.query(sql, &[time_param(now), limit.into()]).await?.into_iter().map(task_from_row).collect()
}

/// Lists ready tasks whose deadline has come nearer.
pub async fn list_due_levels(tx: &mut dyn Tx, now: Timestamp, limit: i64) -> Result<Vec<TaskRow>> {
    let sql = select_tasks!(
        "WHERE t.level_due_at IS NOT NULL AND t.level_due_at <= ?1 ORDER BY t.level_due_at, t.id LIMIT ?2"
    );
    tx.query(sql, &[time_param(now), limit.into()]).await?.into_iter().map(task_from_row).collect()
}

/// Lists tasks that wait for the files of a task, best standing first.
pub async fn list_file_waiters(tx: &mut dyn Tx, holder: TaskId, limit: i64) -> Result<Vec<TaskRow>> {
    let sql = select_tasks!("WHERE t.holder_id = ?1 ORDER BY t.standing DESC, t.queued_since, t.id LIMIT ?2");
    tx.query(sql, &[text_param(holder), limit.into()]).await?.into_iter().map(task_from_row).collect()
}

/// Finds a task that other tasks still wait for, though it no longer holds its files.
pub async fn find_released_holder(tx: &mut dyn Tx) -> Result<Option<TaskId>> {
    let sql = "WITH RECURSIVE holders (id) AS (
                   SELECT (SELECT MIN(f.holder_id) FROM tasks f WHERE f.holder_id IS NOT NULL)
                   UNION ALL
                   SELECT (SELECT MIN(n.holder_id) FROM tasks n WHERE n.holder_id IS NOT NULL AND n.holder_id > holders.id)
                   FROM holders WHERE holders.id IS NOT NULL)
               SELECT holders.id FROM holders WHERE holders.id IS NOT NULL
               AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = holders.id AND t.is_active = 1) LIMIT 1";
    first_row(tx.query(sql, &[]).await?).map(|row| row.parse("id")).transpose()
}

/// The next time at which a waiting task becomes ready: on the steady clock, and on the wall clock for deadlines.
pub async fn find_next_wake_times(tx: &mut dyn Tx) -> Result<(Option<Timestamp>, Option<Timestamp>)> {
    let sql = "SELECT (SELECT MIN(available_at) FROM tasks WHERE available_at IS NOT NULL) AS available_at,
               (SELECT MIN(level_due_at) FROM tasks WHERE level_due_at IS NOT NULL) AS level_due_at";
    let Some(row) = first_row(tx.query(sql, &[]).await?) else { return Ok((None, None)) };
    Ok((row.opt_time("available_at")?, row.opt_time("level_due_at")?))
}

/// Records that a provider's quota is used up.
pub async fn set_quota(tx: &mut dyn Tx, provider: ProviderKind, until: Timestamp, detail: &str) -> Result<()> {
    let sql = "INSERT INTO task_quotas (provider, until_at, detail) VALUES (?1, ?2, ?3)
               ON CONFLICT (provider) DO UPDATE SET until_at = excluded.until_at, detail = excluded.detail";
    tx.execute(sql, &[text_param(provider), time_param(until), detail.into()]).await.map(drop)
}

/// The time until which a provider's quota is used up, if that is after `now`.
pub async fn find_quota(tx: &mut dyn Tx, provider: ProviderKind, now: Timestamp) -> Result<Option<Timestamp>> {
    let sql = "SELECT until_at FROM task_quotas WHERE provider = ?1 AND until_at > ?2";
    let rows = tx.query(sql, &[text_param(provider), time_param(now)]).await?;
    first_row(rows).map(|row| row.time("until_at")).transpose()
}
