//! Approval requests of agents, and their answers.

use crate::error::{Error, Result};
use crate::projects::ProjectFilter;
use crate::sql::{Row, SqlParam, Tx, first_row, text_param, time_param};
use atoll_core::approval::{ApprovalAnswer, ApprovalDecision, ApprovalState};
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;
use serde_json::{Map, Value};

#[derive(Debug, Clone, PartialEq)]
pub struct ApprovalRow {
    pub sandbox_id: SandboxId,
    pub approval_id: String,
    /// Data of the `approval.requested` event.
    pub data: Map<String, Value>,
    pub state: ApprovalState,
    pub decision: Option<ApprovalDecision>,
    pub reason: Option<String>,
    pub answers: Option<Map<String, Value>>,
    pub answered_by: Option<String>,
    pub requested_at: Timestamp,
    pub answered_at: Option<Timestamp>,
}

impl ApprovalRow {
    /// Returns the answer for the worker, once a user has answered.
    pub fn answer(&self) -> Option<ApprovalAnswer> {
        let decision = self.decision?;
        let (approval_id, reason, answers) = (self.approval_id.clone(), self.reason.clone(), self.answers.clone());
        let sha256 = self.input_hash().map(str::to_owned);
        Some(ApprovalAnswer { approval_id, decision, reason, sha256, answers })
    }

    /// Hash of the tool's input, if the request has one.
    pub fn input_hash(&self) -> Option<&str> {
        self.data.get("sha256")?.as_str()
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT a.sandbox_id, a.approval_id, a.data, a.state, a.decision, a.reason, a.answers, a.answered_by,
             a.requested_at, a.answered_at FROM approvals a ",
            $rest
        )
    };
}

fn approval_from_row(row: Row) -> Result<ApprovalRow> {
    Ok(ApprovalRow {
        sandbox_id: row.parse("sandbox_id")?,
        approval_id: row.text("approval_id")?,
        data: row.json("data")?,
        state: row.parse("state")?,
        decision: row.opt_parse("decision")?,
        reason: row.opt_text("reason")?,
        answers: row.opt_json("answers")?,
        answered_by: row.opt_text("answered_by")?,
        requested_at: row.time("requested_at")?,
        answered_at: row.opt_time("answered_at")?,
    })
}

/// Opens an approval. A restarted worker may reuse an id.
pub async fn open_approval(tx: &mut dyn Tx, sandbox: SandboxId, id: &str, data: &str, now: Timestamp) -> Result<()> {
    let sql = "INSERT INTO approvals (sandbox_id, approval_id, data, state, requested_at) VALUES (?1, ?2, ?3, ?4, ?5)
               ON CONFLICT (sandbox_id, approval_id) DO UPDATE SET data = ?3, state = ?4, requested_at = ?5,
               decision = NULL, reason = NULL, answers = NULL, answered_by = NULL, answered_at = NULL";
    let state = text_param(ApprovalState::Open);
    tx.execute(sql, &[text_param(sandbox), id.into(), data.into(), state, time_param(now)]).await.map(drop)
}

pub async fn resolve_approval(tx: &mut dyn Tx, sandbox: SandboxId, id: &str) -> Result<()> {
    let sql = "UPDATE approvals SET state = ?3 WHERE sandbox_id = ?1 AND approval_id = ?2";
    tx.execute(sql, &[text_param(sandbox), id.into(), text_param(ApprovalState::Resolved)]).await.map(drop)
}

pub async fn find_approval(tx: &mut dyn Tx, sandbox: SandboxId, id: &str) -> Result<Option<ApprovalRow>> {
    let sql = select!("WHERE a.sandbox_id = ?1 AND a.approval_id = ?2");
    first_row(tx.query(sql, &[text_param(sandbox), id.into()]).await?).map(approval_from_row).transpose()
}

/// Stores a user's answer.
pub async fn record_answer(
    tx: &mut dyn Tx,
    sandbox: SandboxId,
    answer: &ApprovalAnswer,
    by: &str,
    now: Timestamp,
) -> Result<()> {
    let sql = "UPDATE approvals SET state = ?3, decision = ?4, reason = ?5, answers = ?6, answered_by = ?7,
               answered_at = ?8 WHERE sandbox_id = ?1 AND approval_id = ?2";
    let answers = answer.answers.as_ref().map(serde_json::to_string).transpose().map_err(Error::internal)?;
    let params = [
        text_param(sandbox),
        (&answer.approval_id).into(),
        text_param(ApprovalState::Answered),
        text_param(answer.decision),
        answer.reason.as_deref().into(),
        answers.as_deref().into(),
        by.into(),
        time_param(now),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// Returns the answers that the worker has not yet confirmed.
pub async fn list_unconfirmed_answers(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Vec<ApprovalRow>> {
    let sql = select!("WHERE a.sandbox_id = ?1 AND a.state = ?2 ORDER BY a.answered_at");
    tx.query(sql, &[text_param(sandbox), text_param(ApprovalState::Answered)])
        .await?
        .into_iter()
        .map(approval_from_row)
        .collect()
}

/// Returns true if the agent waits for an approval.
pub async fn has_open_approvals(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<bool> {
    let sql = "SELECT 1 FROM approvals WHERE sandbox_id = ?1 AND state = ?2 LIMIT 1";
    Ok(!tx.query(sql, &[text_param(sandbox), text_param(ApprovalState::Open)]).await?.is_empty())
}

/// Counts the open approvals of a sandbox, up to `most`.
pub async fn count_open_approvals(tx: &mut dyn Tx, sandbox: SandboxId, most: i64) -> Result<i64> {
    let sql = "SELECT COUNT(*) AS count FROM (SELECT 1 FROM approvals WHERE sandbox_id = ?1 AND state = ?2 LIMIT ?3) AS found";
    let rows = tx.query(sql, &[text_param(sandbox), text_param(ApprovalState::Open), most.into()]).await?;
    first_row(rows).map_or(Ok(0), |row| row.int("count"))
}

/// Position in a list, oldest first.
#[derive(Debug, Clone)]
pub struct ApprovalCursor {
    pub requested_at: Timestamp,
    pub sandbox_id: SandboxId,
    pub approval_id: String,
}

/// Returns the position as parameters of a comparison; without one, the minimum.
fn cursor_params(place: Option<&ApprovalCursor>) -> [SqlParam<'_>; 3] {
    match place {
        Some(place) => {
            [time_param(place.requested_at), text_param(place.sandbox_id), place.approval_id.as_str().into()]
        }
        None => [i64::MIN.into(), "".into(), "".into()],
    }
}

/// Lists the approvals of one sandbox, oldest first.
pub async fn list_sandbox_approvals(
    tx: &mut dyn Tx,
    sandbox: SandboxId,
    place: Option<&ApprovalCursor>,
    limit: i64,
) -> Result<Vec<ApprovalRow>> {
    let sql = select!(
        "WHERE a.sandbox_id = ?1 AND (a.requested_at > ?2 OR (a.requested_at = ?2 AND a.approval_id > ?3))
         ORDER BY a.requested_at, a.approval_id LIMIT ?4"
    );
    let [at, _, approval] = cursor_params(place);
    tx.query(sql, &[text_param(sandbox), at, approval, limit.into()])
        .await?
        .into_iter()
        .map(approval_from_row)
        .collect()
}

/// Lists the open approvals of running sandboxes, oldest first.
pub async fn list_open_approvals(
    tx: &mut dyn Tx,
    among: &ProjectFilter,
    place: Option<&ApprovalCursor>,
    limit: i64,
) -> Result<Vec<ApprovalRow>> {
    let sql = select!(
        "JOIN sandboxes s ON s.id = a.sandbox_id WHERE a.state = 'open' AND s.state = 'running'
         AND (?1 = '' OR ?1 LIKE '%' || s.project_id || '%')
         AND (a.requested_at > ?2 OR (a.requested_at = ?2
              AND (a.sandbox_id > ?3 OR (a.sandbox_id = ?3 AND a.approval_id > ?4))))
         ORDER BY a.requested_at, a.sandbox_id, a.approval_id LIMIT ?5"
    );
    let [at, sandbox, approval] = cursor_params(place);
    tx.query(sql, &[among.as_param(), at, sandbox, approval, limit.into()])
        .await?
        .into_iter()
        .map(approval_from_row)
        .collect()
}

/// Lists the approvals with this id in any state, the newest first. Agents choose the ids, so several sandboxes may use one.
pub async fn list_approvals_with_id(
    tx: &mut dyn Tx,
    among: &ProjectFilter,
    approval: &str,
    limit: i64,
) -> Result<Vec<ApprovalRow>> {
    let sql = select!(
        "JOIN sandboxes s ON s.id = a.sandbox_id WHERE a.approval_id = ?2
         AND (?1 = '' OR ?1 LIKE '%' || s.project_id || '%')
         ORDER BY a.requested_at DESC, a.sandbox_id DESC LIMIT ?3"
    );
    let rows = tx.query(sql, &[among.as_param(), approval.into(), limit.into()]).await?;
    rows.into_iter().map(approval_from_row).collect()
}
