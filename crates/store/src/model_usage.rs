//! What models were used for: tokens and money, by sandbox and model.

use crate::error::{Error, Result};
use crate::sql::{Row, Tx, first, text};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::model::Tokens;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Total {
    pub requests: i64,
    pub tokens: Tokens,
    pub cost_micros: i64,
}

/// Whose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of<'a> {
    Sandbox(SandboxId),
    Session(SessionId),
    Project(ProjectId),
    /// Who made the sandboxes, as it stands in them.
    Maker(&'a str),
}

fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub async fn add(
    tx: &mut dyn Tx,
    sandbox: SandboxId,
    upstream: &str,
    model: &str,
    tokens: &Tokens,
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
        text(sandbox),
        upstream.into(),
        model.into(),
        whole(tokens.input).into(),
        whole(tokens.output).into(),
        whole(tokens.cache_read).into(),
        whole(tokens.cache_write).into(),
        cost_micros.into(),
    ];
    tx.execute(sql, &params).await.map(drop)
}

macro_rules! sum {
    ($rest:literal) => {
        concat!(
            // Sums of whole numbers are of another type in one of the databases.
            "SELECT CAST(COALESCE(SUM(u.requests), 0) AS BIGINT), CAST(COALESCE(SUM(u.input), 0) AS BIGINT),
             CAST(COALESCE(SUM(u.output), 0) AS BIGINT), CAST(COALESCE(SUM(u.cache_read), 0) AS BIGINT),
             CAST(COALESCE(SUM(u.cache_write), 0) AS BIGINT), CAST(COALESCE(SUM(u.cost_micros), 0) AS BIGINT)
             FROM model_usage u ",
            $rest
        )
    };
}

fn total(mut row: Row) -> Result<Total> {
    let requests = row.int()?;
    let mut count = || row.int().map(|count| u64::try_from(count).unwrap_or(0));
    let tokens = Tokens { input: count()?, output: count()?, cache_read: count()?, cache_write: count()? };
    Ok(Total { requests, tokens, cost_micros: row.int()? })
}

pub async fn of(tx: &mut dyn Tx, whose: Of<'_>) -> Result<Total> {
    let (sql, whose) = match whose {
        Of::Sandbox(id) => (sum!("WHERE u.sandbox_id = ?1"), id.to_string()),
        Of::Session(id) => (sum!("JOIN sandboxes s ON s.id = u.sandbox_id WHERE s.session_id = ?1"), id.to_string()),
        Of::Project(id) => (sum!("JOIN sandboxes s ON s.id = u.sandbox_id WHERE s.project_id = ?1"), id.to_string()),
        Of::Maker(actor) => (sum!("JOIN sandboxes s ON s.id = u.sandbox_id WHERE s.created_by = ?1"), actor.to_owned()),
    };
    total(first(tx.query(sql, &[whose.into()]).await?).ok_or_else(|| Error::internal("no sum"))?)
}
