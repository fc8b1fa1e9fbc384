//! Samples of the sandboxes' resource usage: one per minute in the last hour, one per ten minutes before.

use crate::error::Result;
use crate::sql::{Row, Tx, text_param, time_param};
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;

/// Maximum number of samples per call.
const MAX_LISTED_SAMPLES: i64 = 10_000;

/// Figures that were not measured are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageSample {
    pub at: Timestamp,
    pub cpu_milli: Option<i64>,
    pub memory_bytes: Option<i64>,
    pub disk_bytes: Option<i64>,
    pub pids: Option<i64>,
    pub network_bytes: Option<i64>,
}

fn sample_from_row(row: Row) -> Result<UsageSample> {
    Ok(UsageSample {
        at: row.time("at")?,
        cpu_milli: row.opt_int("cpu_milli")?,
        memory_bytes: row.opt_int("memory_bytes")?,
        disk_bytes: row.opt_int("disk_bytes")?,
        pids: row.opt_int("pids")?,
        network_bytes: row.opt_int("network_bytes")?,
    })
}

pub async fn add_sample(tx: &mut dyn Tx, sandbox: SandboxId, sample: &UsageSample) -> Result<()> {
    let sql = "INSERT INTO heartbeat_samples (sandbox_id, at, cpu_milli, memory_bytes, disk_bytes, pids, network_bytes)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING";
    let params = [
        text_param(sandbox),
        time_param(sample.at),
        sample.cpu_milli.into(),
        sample.memory_bytes.into(),
        sample.disk_bytes.into(),
        sample.pids.into(),
        sample.network_bytes.into(),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// Lists the samples from `since` until before `until`, oldest first.
pub async fn list_samples(
    tx: &mut dyn Tx,
    sandbox: SandboxId,
    since: Timestamp,
    until: Timestamp,
) -> Result<Vec<UsageSample>> {
    let sql = "SELECT at, cpu_milli, memory_bytes, disk_bytes, pids, network_bytes FROM heartbeat_samples
               WHERE sandbox_id = ?1 AND at >= ?2 AND at < ?3 ORDER BY at LIMIT ?4";
    let params = [text_param(sandbox), time_param(since), time_param(until), MAX_LISTED_SAMPLES.into()];
    tx.query(sql, &params).await?.into_iter().map(sample_from_row).collect()
}

/// Keeps one sample per ten minutes of those before `before`.
pub async fn thin_samples(tx: &mut dyn Tx, sandbox: SandboxId, before: Timestamp) -> Result<()> {
    let sql = "DELETE FROM heartbeat_samples WHERE sandbox_id = ?1 AND at < ?2 AND at NOT IN
               (SELECT MIN(at) FROM heartbeat_samples WHERE sandbox_id = ?1 AND at < ?2 GROUP BY at / 600000000)";
    tx.execute(sql, &[text_param(sandbox), time_param(before)]).await.map(drop)
}
