//! Model usage: tokens and costs by sandbox and model.

use crate::error::{Error, Result};
use crate::sql::{Row, Tx, first_row, text_param};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::model::ModelTokens;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageTotal {
    pub requests: i64,
    pub tokens: ModelTokens,
    pub cost_micros: i64,
}

/// Scope of a usage query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageScope<'a> {
    Sandbox(SandboxId),
    Session(SessionId),
    Project(ProjectId),
    /// Creator of the sandboxes, as stored in their rows.
    Creator(&'a str),
}

fn saturating_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub async fn add_usage(
    tx: &mut dyn Tx,
    sandbox: SandboxId,
    upstream: &str,
    model: &str,
    tokens: &ModelTokens,
    cost_micros: i64,
) -> Result<()> {
    let sql = "INSERT INTO model_usage
               (sandbox_id, upstream, model, requests, input, output, cache_read, cache_write, cost_micros)
               VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6, ?7, ?8)
               ON CONFLICT (sandbox_id, upstream, model) DO UPDATE SET requests = model_usage.requests + 1,
               input = model_usage.input + excluded.input, output = model_usage.output + excluded.output,
               cache_read = model_usage.cache_read + excluded.cache_read,
               cache_write = model_usage.cache_write + excluded.cache_write,
               cost_micros = model_usage.cost_micros + excluded.cost_micros";
    let params = [
        text_param(sandbox),
        upstream.into(),
        model.into(),
        saturating_i64(tokens.input).into(),
        saturating_i64(tokens.output).into(),
        saturating_i64(tokens.cache_read).into(),
        saturating_i64(tokens.cache_write).into(),
        cost_micros.into(),
    ];
    tx.execute(sql, &params).await.map(drop)
}

macro_rules! sum {
    ($rest:literal) => {
        concat!(
            // SUM of integers has another type on PostgreSQL.
            "SELECT CAST(COALESCE(SUM(u.requests), 0) AS BIGINT) AS requests,
             CAST(COALESCE(SUM(u.input), 0) AS BIGINT) AS input,
             CAST(COALESCE(SUM(u.output), 0) AS BIGINT) AS output,
             CAST(COALESCE(SUM(u.cache_read), 0) AS BIGINT) AS cache_read,
             CAST(COALESCE(SUM(u.cache_write), 0) AS BIGINT) AS cache_write,
             CAST(COALESCE(SUM(u.cost_micros), 0) AS BIGINT) AS cost_micros
             FROM model_usage u ",
            $rest
        )
    };
}

fn total_from_row(row: Row) -> Result<UsageTotal> {
    let count = |column| row.int(column).map(|count| u64::try_from(count).unwrap_or(0));
    let tokens = ModelTokens {
        input: count("input")?,
        output: count("output")?,
        cache_read: count("cache_read")?,
        cache_write: count("cache_write")?,
    };
    Ok(UsageTotal { requests: row.int("requests")?, tokens, cost_micros: row.int("cost_micros")? })
}

pub async fn sum_usage(tx: &mut dyn Tx, scope: UsageScope<'_>) -> Result<UsageTotal> {
    let (sql, scope) = match scope {
        UsageScope::Sandbox(id) => (sum!("WHERE u.sandbox_id = ?1"), id.to_string()),
        UsageScope::Session(id) => {
            (sum!("JOIN sandboxes s ON s.id = u.sandbox_id WHERE s.session_id = ?1"), id.to_string())
        }
        UsageScope::Project(id) => {
            (sum!("JOIN sandboxes s ON s.id = u.sandbox_id WHERE s.project_id = ?1"), id.to_string())
        }
        UsageScope::Creator(actor) => {
            (sum!("JOIN sandboxes s ON s.id = u.sandbox_id WHERE s.created_by = ?1"), actor.to_owned())
        }
    };
    total_from_row(first_row(tx.query(sql, &[scope.into()]).await?).ok_or_else(|| Error::internal("no sum"))?)
}
