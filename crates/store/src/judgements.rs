//! The judge's requests, their costs and its last report, per sandbox.

use crate::error::{Error, Result};
use crate::sql::{Row, Tx, first_row, opt_time_param, text_param};
use atoll_core::guardian::judge::JudgeReport;
use atoll_core::id::SandboxId;
use atoll_core::model::ModelTokens;
use atoll_core::time::Timestamp;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct JudgementRow {
    pub requests: i64,
    /// Responses that were no valid report, and requests that failed.
    pub bad_responses: i64,
    pub input: i64,
    pub output: i64,
    pub cost_micros: i64,
    pub report: Option<JudgeReport>,
    pub judged_at: Option<Timestamp>,
}

fn judgement_from_row(row: Row) -> Result<JudgementRow> {
    Ok(JudgementRow {
        requests: row.int("requests")?,
        bad_responses: row.int("bad_responses")?,
        input: row.int("input")?,
        output: row.int("output")?,
        cost_micros: row.int("cost_micros")?,
        report: row.opt_json("report")?,
        judged_at: row.opt_time("judged_at")?,
    })
}

pub async fn find_judgements(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Option<JudgementRow>> {
    let sql = "SELECT requests, bad_responses, input, output, cost_micros, report, judged_at FROM judgements
               WHERE sandbox_id = ?1";
    first_row(tx.query(sql, &[text_param(sandbox)]).await?).map(judgement_from_row).transpose()
}

/// Adds a request. Without a report, the response was bad and the last report stays.
pub async fn add_judgement(
    tx: &mut dyn Tx,
    sandbox: SandboxId,
    (tokens, cost_micros): (&ModelTokens, i64),
    report: Option<&JudgeReport>,
    now: Timestamp,
) -> Result<()> {
    let sql =
        "INSERT INTO judgements (sandbox_id, requests, bad_responses, input, output, cost_micros, report, judged_at)
               VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6, ?7)
               ON CONFLICT (sandbox_id) DO UPDATE SET requests = judgements.requests + 1,
               bad_responses = judgements.bad_responses + excluded.bad_responses,
               input = judgements.input + excluded.input, output = judgements.output + excluded.output,
               cost_micros = judgements.cost_micros + excluded.cost_micros,
               report = COALESCE(excluded.report, judgements.report),
               judged_at = COALESCE(excluded.judged_at, judgements.judged_at)";
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let text = report.map(serde_json::to_string).transpose().map_err(Error::internal)?;
    let params = [
        text_param(sandbox),
        i64::from(report.is_none()).into(),
        whole(tokens.input.saturating_add(tokens.cache_read).saturating_add(tokens.cache_write)).into(),
        whole(tokens.output).into(),
        cost_micros.into(),
        text.as_deref().into(),
        opt_time_param(report.map(|_| now)),
    ];
    tx.execute(sql, &params).await.map(drop)
}
