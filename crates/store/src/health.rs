//! Health of sandboxes: silent workers, agents without progress, and restarts of sessions.

use crate::error::Result;
use crate::sql::{Tx, text_param, time_param};
use atoll_core::health::HealthSettings;
use atoll_core::health::restarts::RESTART_WINDOW;
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::sandbox::{Activity, ProviderKind, Settings};
use atoll_core::time::Timestamp;

/// Lists running sandboxes without a heartbeat since `before` that are not yet marked silent. Excludes paused ones.
pub async fn list_silent_sandboxes(tx: &mut dyn Tx, before: Timestamp, limit: i64) -> Result<Vec<SandboxId>> {
    let sql = "SELECT id FROM sandboxes WHERE state = 'running' AND activity NOT IN ('unreachable', 'paused')
               AND last_heartbeat < ?1 ORDER BY id LIMIT ?2";
    let rows = tx.query(sql, &[time_param(before), limit.into()]).await?;
    rows.into_iter().map(|row| row.parse("id")).collect()
}

/// Lists unreachable sandboxes without a heartbeat since `before` whose recovery has not begun.
pub async fn list_dead_sandboxes(
    tx: &mut dyn Tx,
    before: Timestamp,
    limit: i64,
) -> Result<Vec<(SandboxId, ProviderKind)>> {
    let sql = "SELECT s.id, s.provider FROM sandboxes s
               WHERE s.state = 'running' AND s.activity = 'unreachable' AND s.last_heartbeat < ?1
               AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.sandbox_id = s.id AND j.kind = 'recover_worker')
               ORDER BY s.id LIMIT ?2";
    let rows = tx.query(sql, &[time_param(before), limit.into()]).await?;
    rows.into_iter().map(|row| Ok((row.parse("id")?, row.parse("provider")?))).collect()
}

/// The progress of a running agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SandboxProgress {
    pub id: SandboxId,
    pub provider: ProviderKind,
    pub activity: Activity,
    /// The last work event, by the steady clock.
    pub work_at: Timestamp,
    /// The last use by a person, by the steady clock.
    pub used_at: Option<Timestamp>,
    pub settings: Option<HealthSettings>,
}

/// Lists the sandboxes whose agents work, stall or wait for a message.
pub async fn list_progress(tx: &mut dyn Tx) -> Result<Vec<SandboxProgress>> {
    // Most sandboxes have no health settings of their own, so their JSON is not read.
    let sql = "SELECT id, provider, activity, work_at, used_at,
               CASE WHEN settings LIKE '%\"health\":%' THEN settings ELSE NULL END AS settings
               FROM sandboxes WHERE state = 'running' AND activity IN ('working', 'stalled', 'waiting_message')
               AND work_at IS NOT NULL";
    let rows = tx.query(sql, &[]).await?;
    let progress = rows.into_iter().map(|row| {
        Ok(SandboxProgress {
            id: row.parse("id")?,
            provider: row.parse("provider")?,
            activity: row.parse("activity")?,
            work_at: row.time("work_at")?,
            used_at: row.opt_time("used_at")?,
            settings: row.opt_json::<Settings>("settings")?.and_then(|settings| settings.health),
        })
    });
    progress.collect()
}

/// Records that a person used a sandbox.
pub async fn record_use(tx: &mut dyn Tx, id: SandboxId, at: Timestamp) -> Result<()> {
    let sql = "UPDATE sandboxes SET used_at = ?2 WHERE id = ?1";
    tx.execute(sql, &[text_param(id), time_param(at)]).await.map(drop)
}

/// Returns when a person last used a sandbox.
pub async fn find_last_use(tx: &mut dyn Tx, id: SandboxId) -> Result<Option<Timestamp>> {
    let rows = tx.query("SELECT used_at FROM sandboxes WHERE id = ?1", &[text_param(id)]).await?;
    Ok(crate::sql::first_row(rows).map(|row| row.opt_time("used_at")).transpose()?.flatten())
}

/// Records a restart of a session, and forgets those outside of the window.
pub async fn record_restart(tx: &mut dyn Tx, session: SessionId, at: Timestamp) -> Result<()> {
    let sql = "DELETE FROM session_restarts WHERE session_id = ?1 AND restarted_at < ?2";
    tx.execute(sql, &[text_param(session), time_param(at - RESTART_WINDOW)]).await?;
    let sql = "INSERT INTO session_restarts (session_id, restarted_at) VALUES (?1, ?2)";
    tx.execute(sql, &[text_param(session), time_param(at)]).await.map(drop)
}

/// Lists the restarts of a session within the last hour, oldest first.
pub async fn list_restarts(tx: &mut dyn Tx, session: SessionId, now: Timestamp) -> Result<Vec<Timestamp>> {
    let sql = "SELECT restarted_at FROM session_restarts WHERE session_id = ?1 AND restarted_at > ?2
               ORDER BY restarted_at";
    let rows = tx.query(sql, &[text_param(session), time_param(now - RESTART_WINDOW)]).await?;
    rows.into_iter().map(|row| row.time("restarted_at")).collect()
}
