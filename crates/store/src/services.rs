//! State of the services of sandboxes.

use crate::error::{Error, Result};
use crate::sql::{Tx, first_row, text_param};
use atoll_core::id::SandboxId;
use atoll_core::service::status::ServiceStatus;

pub async fn find_service_statuses(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Option<Vec<ServiceStatus>>> {
    let rows = tx.query("SELECT statuses FROM services WHERE sandbox_id = ?1", &[text_param(sandbox)]).await?;
    first_row(rows).map(|row| row.json("statuses")).transpose()
}

pub async fn put_service_statuses(tx: &mut dyn Tx, sandbox: SandboxId, statuses: &[ServiceStatus]) -> Result<()> {
    let sql = "INSERT INTO services (sandbox_id, statuses) VALUES (?1, ?2)
               ON CONFLICT (sandbox_id) DO UPDATE SET statuses = excluded.statuses";
    let written = serde_json::to_string(statuses).map_err(Error::internal)?;
    tx.execute(sql, &[text_param(sandbox), written.into()]).await.map(drop)
}
