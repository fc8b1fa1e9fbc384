//! What agents have asked for, and what became of it.

use crate::error::{Error, Result};
use crate::projects::Among;
use crate::sql::{Row, Tx, Val, first, micros, text};
use atoll_core::approval::{ApprovalAnswer, ApprovalState, Decision};
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;
use serde_json::{Map, Value};

#[derive(Debug, Clone, PartialEq)]
pub struct Approval {
    pub sandbox_id: SandboxId,
    pub approval_id: String,
    /// As in the event that asked.
    pub data: Map<String, Value>,
    pub state: ApprovalState,
    pub decision: Option<Decision>,
    pub reason: Option<String>,
    pub answers: Option<Map<String, Value>>,
    pub answered_by: Option<String>,
    pub requested_at: Timestamp,
    pub answered_at: Option<Timestamp>,
}

impl Approval {
    /// What the worker is told, once a person has said something.
    pub fn answer(&self) -> Option<ApprovalAnswer> {
        let decision = self.decision?;
        let (approval_id, reason, answers) = (self.approval_id.clone(), self.reason.clone(), self.answers.clone());
        Some(ApprovalAnswer { approval_id, decision, reason, answers })
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

fn approval_of(mut row: Row) -> Result<Approval> {
    Ok(Approval {
        sandbox_id: row.parse()?,
        approval_id: row.text()?,
        data: row.json()?,
        state: row.parse()?,
        decision: row.opt_parse()?,
        reason: row.opt_text()?,
        answers: row.opt_text()?.map(|text| serde_json::from_str(&text)).transpose().map_err(Error::internal)?,
        answered_by: row.opt_text()?,
        requested_at: row.time()?,
        answered_at: row.opt_time()?,
    })
}

/// A worker that was started anew may use a name again.
pub async fn open(tx: &mut dyn Tx, sandbox: SandboxId, id: &str, data: &str, now: Timestamp) -> Result<()> {
    let sql = "INSERT INTO approvals (sandbox_id, approval_id, data, state, requested_at) VALUES (?1, ?2, ?3, ?4, ?5)
               ON CONFLICT (sandbox_id, approval_id) DO UPDATE SET data = ?3, state = ?4, requested_at = ?5,
               decision = NULL, reason = NULL, answers = NULL, answered_by = NULL, answered_at = NULL";
    let state = text(ApprovalState::Open);
    tx.execute(sql, &[text(sandbox), id.into(), data.into(), state, micros(now)]).await.map(drop)
}

pub async fn resolve(tx: &mut dyn Tx, sandbox: SandboxId, id: &str) -> Result<()> {
    let sql = "UPDATE approvals SET state = ?3 WHERE sandbox_id = ?1 AND approval_id = ?2";
    tx.execute(sql, &[text(sandbox), id.into(), text(ApprovalState::Resolved)]).await.map(drop)
}

pub async fn get(tx: &mut dyn Tx, sandbox: SandboxId, id: &str) -> Result<Option<Approval>> {
    let sql = select!("WHERE a.sandbox_id = ?1 AND a.approval_id = ?2");
    first(tx.query(sql, &[text(sandbox), id.into()]).await?).map(approval_of).transpose()
}

/// Keeps what a person said.
pub async fn answer(
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
        text(sandbox),
        (&answer.approval_id).into(),
        text(ApprovalState::Answered),
        text(answer.decision),
        answer.reason.as_deref().into(),
        answers.as_deref().into(),
        by.into(),
        micros(now),
    ];
    tx.execute(sql, &params).await.map(drop)
}

/// What a worker has to be told and has not said that the agent has it.
pub async fn answered(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Vec<Approval>> {
    let sql = select!("WHERE a.sandbox_id = ?1 AND a.state = ?2 ORDER BY a.answered_at");
    tx.query(sql, &[text(sandbox), text(ApprovalState::Answered)]).await?.into_iter().map(approval_of).collect()
}

/// Whether its agent waits for anything.
pub async fn are_open(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<bool> {
    let sql = "SELECT 1 FROM approvals WHERE sandbox_id = ?1 AND state = ?2 LIMIT 1";
    Ok(!tx.query(sql, &[text(sandbox), text(ApprovalState::Open)]).await?.is_empty())
}

/// How many its agent waits for, counted up to `most`.
pub async fn count_open(tx: &mut dyn Tx, sandbox: SandboxId, most: i64) -> Result<i64> {
    let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM approvals WHERE sandbox_id = ?1 AND state = ?2 LIMIT ?3) AS found";
    let rows = tx.query(sql, &[text(sandbox), text(ApprovalState::Open), most.into()]).await?;
    first(rows).map_or(Ok(0), |mut row| row.int())
}

/// In a list: oldest first.
#[derive(Debug, Clone)]
pub struct Place {
    pub at: Timestamp,
    pub sandbox: SandboxId,
    pub approval: String,
}

/// As parameters of a comparison; before everything where there is none.
fn after(place: Option<&Place>) -> [Val<'_>; 3] {
    match place {
        Some(place) => [micros(place.at), text(place.sandbox), place.approval.as_str().into()],
        None => [i64::MIN.into(), "".into(), "".into()],
    }
}

/// Of one sandbox, newest last.
pub async fn of_sandbox(
    tx: &mut dyn Tx,
    sandbox: SandboxId,
    place: Option<&Place>,
    limit: i64,
) -> Result<Vec<Approval>> {
    let sql = select!(
        "WHERE a.sandbox_id = ?1 AND (a.requested_at > ?2 OR (a.requested_at = ?2 AND a.approval_id > ?3))
         ORDER BY a.requested_at, a.approval_id LIMIT ?4"
    );
    let [at, _, approval] = after(place);
    tx.query(sql, &[text(sandbox), at, approval, limit.into()]).await?.into_iter().map(approval_of).collect()
}

/// Those that an agent waits for, in sandboxes that run, oldest first.
pub async fn waiting(tx: &mut dyn Tx, among: &Among, place: Option<&Place>, limit: i64) -> Result<Vec<Approval>> {
    let sql = select!(
        "JOIN sandboxes s ON s.id = a.sandbox_id WHERE a.state = 'open' AND s.state = 'running'
         AND (?1 = '' OR ?1 LIKE '%' || s.project_id || '%')
         AND (a.requested_at > ?2 OR (a.requested_at = ?2
              AND (a.sandbox_id > ?3 OR (a.sandbox_id = ?3 AND a.approval_id > ?4))))
         ORDER BY a.requested_at, a.sandbox_id, a.approval_id LIMIT ?5"
    );
    let [at, sandbox, approval] = after(place);
    tx.query(sql, &[among.val(), at, sandbox, approval, limit.into()]).await?.into_iter().map(approval_of).collect()
}
