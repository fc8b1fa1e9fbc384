//! Ports on which programs of sandboxes listen.

use crate::error::Result;
use crate::sql::{Tx, first_row, opt_text_param, text_param, time_param};
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenPort {
    pub port: u16,
    pub program: Option<String>,
    pub opened_at: Timestamp,
}

/// Stores a port, unless the sandbox has `most` others.
pub async fn put_open_port(tx: &mut dyn Tx, sandbox: SandboxId, open: &OpenPort, most: i64) -> Result<()> {
    let count = "SELECT COUNT(*) AS count FROM open_ports WHERE sandbox_id = ?1 AND port <> ?2";
    let counted = tx.query(count, &[text_param(sandbox), i64::from(open.port).into()]).await?;
    if first_row(counted).map(|row| row.int("count")).transpose()?.unwrap_or(0) >= most {
        return Ok(());
    }
    let sql = "INSERT INTO open_ports (sandbox_id, port, program, opened_at) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (sandbox_id, port) DO UPDATE SET program = excluded.program, opened_at = excluded.opened_at";
    let params = [
        text_param(sandbox),
        i64::from(open.port).into(),
        opt_text_param(open.program.as_deref()),
        time_param(open.opened_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn delete_open_port(tx: &mut dyn Tx, sandbox: SandboxId, port: u16) -> Result<()> {
    let sql = "DELETE FROM open_ports WHERE sandbox_id = ?1 AND port = ?2";
    tx.execute(sql, &[text_param(sandbox), i64::from(port).into()]).await.map(drop)
}

pub async fn list_open_ports(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Vec<OpenPort>> {
    let sql = "SELECT port, program, opened_at FROM open_ports WHERE sandbox_id = ?1 ORDER BY port";
    let rows = tx.query(sql, &[text_param(sandbox)]).await?;
    let ports = rows.into_iter().map(|row| {
        let port = u16::try_from(row.int("port")?).map_err(crate::error::Error::internal)?;
        Ok(OpenPort { port, program: row.opt_text("program")?, opened_at: row.time("opened_at")? })
    });
    ports.collect()
}
