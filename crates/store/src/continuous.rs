//! How far a sandbox that works until it is done has come.

use crate::error::{Error, Result};
use crate::sql::{Tx, first, text};
use atoll_core::continuous::Progress;
use atoll_core::continuous::check::Checked;
use atoll_core::id::SandboxId;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub progress: Progress,
    /// What the last checks came to.
    #[serde(default)]
    pub checks: Vec<Checked>,
    /// What the last run failed with, until it is told to the agent.
    #[serde(default)]
    pub error: Option<String>,
}

pub async fn get(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Option<Record>> {
    let rows = tx.query("SELECT record FROM continuous WHERE sandbox_id = ?1", &[text(sandbox)]).await?;
    first(rows).map(|mut row| row.json()).transpose()
}

pub async fn put(tx: &mut dyn Tx, sandbox: SandboxId, record: &Record) -> Result<()> {
    let sql = "INSERT INTO continuous (sandbox_id, record) VALUES (?1, ?2)
               ON CONFLICT (sandbox_id) DO UPDATE SET record = excluded.record";
    let written = serde_json::to_string(record).map_err(Error::internal)?;
    tx.execute(sql, &[text(sandbox), written.into()]).await.map(drop)
}
