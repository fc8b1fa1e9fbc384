//! State of sandboxes in continuous mode.

use crate::error::{Error, Result};
use crate::sql::{Tx, first_row, text_param};
use atoll_core::continuous::LoopProgress;
use atoll_core::continuous::check::CheckResult;
use atoll_core::id::SandboxId;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContinuousRecord {
    pub progress: LoopProgress,
    /// Results of the last checks.
    #[serde(default)]
    pub checks: Vec<CheckResult>,
    /// Error of the last run, until the agent has received it.
    #[serde(default)]
    pub error: Option<String>,
}

pub async fn find_continuous_record(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Option<ContinuousRecord>> {
    let rows = tx.query("SELECT record FROM continuous WHERE sandbox_id = ?1", &[text_param(sandbox)]).await?;
    first_row(rows).map(|row| row.json("record")).transpose()
}

pub async fn put_continuous_record(tx: &mut dyn Tx, sandbox: SandboxId, record: &ContinuousRecord) -> Result<()> {
    let sql = "INSERT INTO continuous (sandbox_id, record) VALUES (?1, ?2)
               ON CONFLICT (sandbox_id) DO UPDATE SET record = excluded.record";
    let written = serde_json::to_string(record).map_err(Error::internal)?;
    tx.execute(sql, &[text_param(sandbox), written.into()]).await.map(drop)
}
