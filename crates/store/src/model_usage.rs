//! Model usage: tokens and costs by sandbox and model.

use crate::error::{Error, Result};
use crate::sql::{Row, Tx, first_row, text_param};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::model::{CostParts, ModelTokens};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageTotal {
    pub requests: i64,
    pub tokens: ModelTokens,
}

/// Usage and cost of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestUsage {
    pub tokens: ModelTokens,
    pub cost_micros: i64,
    /// The cost is an upper bound.
    pub is_estimated: bool,
    /// The cost is unknown.
    pub is_unpriced: bool,
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
    usage: &RequestUsage,
) -> Result<()> {
    let sql = "INSERT INTO model_usage
               (sandbox_id, upstream, model, requests, input, output, cache_read, cache_write, cost_micros, estimated,
               unpriced)
               VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
               ON CONFLICT (sandbox_id, upstream, model) DO UPDATE SET requests = model_usage.requests + 1,
               input = model_usage.input + excluded.input, output = model_usage.output + excluded.output,
               cache_read = model_usage.cache_read + excluded.cache_read,
               cache_write = model_usage.cache_write + excluded.cache_write,
               cost_micros = model_usage.cost_micros + excluded.cost_micros,
               estimated = model_usage.estimated + excluded.estimated,
               unpriced = model_usage.unpriced + excluded.unpriced";
    let RequestUsage { tokens, cost_micros, is_estimated, is_unpriced } = usage;
    let params = [
        text_param(sandbox),
        upstream.into(),
        model.into(),
        saturating_i64(tokens.input).into(),
        saturating_i64(tokens.output).into(),
        saturating_i64(tokens.cache_read).into(),
        saturating_i64(tokens.cache_write).into(),
        (*cost_micros).into(),
        i64::from(*is_estimated).into(),
        i64::from(*is_unpriced).into(),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// Adds a cost that a sandbox's agent reported.
pub async fn add_agent_cost(tx: &mut dyn Tx, sandbox: SandboxId, cost_micros: i64) -> Result<()> {
    let sql = "INSERT INTO agent_costs (sandbox_id, cost_micros) VALUES (?1, ?2)
               ON CONFLICT (sandbox_id) DO UPDATE SET cost_micros = agent_costs.cost_micros + excluded.cost_micros";
    tx.execute(sql, &[text_param(sandbox), cost_micros.into()]).await.map(drop)
}

macro_rules! sum {
    ($rest:literal) => {
        concat!(
            // SUM of integers has another type on PostgreSQL.
            "SELECT CAST(COALESCE(SUM(u.requests), 0) AS BIGINT) AS requests,
             CAST(COALESCE(SUM(u.input), 0) AS BIGINT) AS input,
             CAST(COALESCE(SUM(u.output), 0) AS BIGINT) AS output,
             CAST(COALESCE(SUM(u.cache_read), 0) AS BIGINT) AS cache_read,
             CAST(COALESCE(SUM(u.cache_write), 0) AS BIGINT) AS cache_write
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
    Ok(UsageTotal { requests: row.int("requests")?, tokens })
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

macro_rules! costs {
    ($scope:literal) => {
        concat!(
            "SELECT CAST(SUM(c.metered) AS BIGINT) AS metered, CAST(SUM(c.reported) AS BIGINT) AS reported,
             CAST(SUM(c.requests) AS BIGINT) AS requests, CAST(SUM(c.estimated) AS BIGINT) AS estimated,
             CAST(SUM(c.unpriced) AS BIGINT) AS unpriced
             FROM (SELECT COALESCE(SUM(u.cost_micros), 0) AS metered,
                   COALESCE((SELECT a.cost_micros FROM agent_costs a WHERE a.sandbox_id = s.id), 0) AS reported,
                   COALESCE(SUM(u.requests), 0) AS requests, COALESCE(SUM(u.estimated), 0) AS estimated,
                   COALESCE(SUM(u.unpriced), 0) AS unpriced
                   FROM sandboxes s LEFT JOIN model_usage u ON u.sandbox_id = s.id WHERE ",
            $scope,
            " GROUP BY s.id) c
             GROUP BY c.unpriced > 0, c.requests > 0, c.metered > 0, c.reported > 0"
        )
    };
}

/// Returns the parts of the model costs, summed over sandboxes whose costs are known in the same way.
pub async fn list_cost_parts(tx: &mut dyn Tx, scope: UsageScope<'_>) -> Result<Vec<CostParts>> {
    let (sql, scope) = match scope {
        UsageScope::Sandbox(id) => (costs!("s.id = ?1"), id.to_string()),
        UsageScope::Session(id) => (costs!("s.session_id = ?1"), id.to_string()),
        UsageScope::Project(id) => (costs!("s.project_id = ?1"), id.to_string()),
        UsageScope::Creator(actor) => (costs!("s.created_by = ?1"), actor.to_owned()),
    };
    let rows = tx.query(sql, &[scope.into()]).await?;
    let parts = rows.into_iter().map(|row| {
        Ok(CostParts {
            metered_micros: row.int("metered")?,
            agent_micros: row.int("reported")?,
            requests: row.int("requests")?,
            estimated: row.int("estimated")?,
            unpriced: row.int("unpriced")?,
        })
    });
    parts.collect()
}
