//! Traces of sandboxes.

use crate::error::Result;
use crate::sql::{Tx, first_row, opt_time_param, text_param, time_param};
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;
use atoll_core::trace::TraceContext;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SandboxTrace {
    /// The request that created the sandbox.
    pub context: TraceContext,
    /// When the provider had created the sandbox.
    pub provider_ended_at: Option<Timestamp>,
    /// When the open turn began.
    pub turn_started_at: Option<Timestamp>,
}

pub async fn insert_trace(tx: &mut dyn Tx, sandbox: SandboxId, context: TraceContext) -> Result<()> {
    let sql = "INSERT INTO traces (sandbox_id, trace_id, span_id, sampled) VALUES (?1, ?2, ?3, ?4)";
    let TraceContext { trace, span, is_sampled } = context;
    tx.execute(sql, &[text_param(sandbox), text_param(trace), text_param(span), is_sampled.into()]).await.map(drop)
}

/// Returns the trace of a sandbox; a sandbox of an earlier version has none.
pub async fn find_trace(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Option<SandboxTrace>> {
    let sql = "SELECT trace_id, span_id, sampled, provider_ended_at, turn_started_at FROM traces WHERE sandbox_id = ?1";
    let row = first_row(tx.query(sql, &[text_param(sandbox)]).await?);
    row.map(|row| {
        let context = TraceContext {
            trace: row.parse("trace_id")?,
            span: row.parse("span_id")?,
            is_sampled: row.bool("sampled")?,
        };
        Ok(SandboxTrace {
            context,
            provider_ended_at: row.opt_time("provider_ended_at")?,
            turn_started_at: row.opt_time("turn_started_at")?,
        })
    })
    .transpose()
}

pub async fn record_provider_end(tx: &mut dyn Tx, sandbox: SandboxId, at: Timestamp) -> Result<()> {
    let sql = "UPDATE traces SET provider_ended_at = ?2 WHERE sandbox_id = ?1";
    tx.execute(sql, &[text_param(sandbox), time_param(at)]).await.map(drop)
}

/// Stores when the open turn began, or that none is open.
pub async fn set_turn_start(tx: &mut dyn Tx, sandbox: SandboxId, at: Option<Timestamp>) -> Result<()> {
    let sql = "UPDATE traces SET turn_started_at = ?2 WHERE sandbox_id = ?1";
    tx.execute(sql, &[text_param(sandbox), opt_time_param(at)]).await.map(drop)
}
