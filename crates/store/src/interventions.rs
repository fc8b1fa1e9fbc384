//! Interventions of the guardian.

use crate::error::{Error, Result};
use crate::projects::ProjectFilter;
use crate::sql::{Row, Tx, first_row, opt_text_param, text_param, time_param};
use atoll_core::guardian::{Detector, Finding, GuardianAction, HeldBack, InterventionOutcome};
use atoll_core::id::{InterventionId, MessageId, ProjectId, SandboxId, SessionId};
use atoll_core::time::Timestamp;

/// State of a restart whose sandbox has not been replaced yet.
const RESTART_DUE: &str = "due";

#[derive(Debug, Clone, PartialEq)]
pub struct InterventionRow {
    pub id: InterventionId,
    pub sandbox_id: SandboxId,
    pub session_id: SessionId,
    pub project_id: ProjectId,
    pub finding: Finding,
    pub action: GuardianAction,
    pub held_back: Option<HeldBack>,
    /// The message to the agent.
    pub text: Option<String>,
    pub message_id: Option<MessageId>,
    pub outcome: Option<InterventionOutcome>,
    pub outcome_seq: Option<i64>,
    pub next_sandbox_id: Option<SandboxId>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, sandbox_id, session_id, project_id, finding, action, held_back, text, message_id, outcome,
             outcome_seq, next_sandbox_id, created_at, updated_at FROM interventions ",
            $rest
        )
    };
}

fn intervention_from_row(row: Row) -> Result<InterventionRow> {
    Ok(InterventionRow {
        id: row.parse("id")?,
        sandbox_id: row.parse("sandbox_id")?,
        session_id: row.parse("session_id")?,
        project_id: row.parse("project_id")?,
        finding: row.json("finding")?,
        action: row.parse("action")?,
        held_back: row.opt_parse("held_back")?,
        text: row.opt_text("text")?,
        message_id: row.opt_parse("message_id")?,
        outcome: row.opt_parse("outcome")?,
        outcome_seq: row.opt_int("outcome_seq")?,
        next_sandbox_id: row.opt_parse("next_sandbox_id")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

/// Stores an intervention. Returns false if its finding is stored already.
pub async fn insert_intervention(tx: &mut dyn Tx, i: &InterventionRow) -> Result<bool> {
    let sql =
        "INSERT INTO interventions (id, sandbox_id, session_id, project_id, detector, seq, finding, action, held_back,
               text, message_id, restart, created_at, updated_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
               ON CONFLICT (sandbox_id, detector, seq) DO NOTHING";
    let finding = serde_json::to_string(&i.finding).map_err(Error::internal)?;
    let restart = (i.action == GuardianAction::Restart).then_some(RESTART_DUE);
    let params = [
        text_param(i.id),
        text_param(i.sandbox_id),
        text_param(i.session_id),
        text_param(i.project_id),
        text_param(i.finding.detector),
        i.finding.seq.into(),
        finding.as_str().into(),
        text_param(i.action),
        opt_text_param(i.held_back),
        i.text.as_deref().into(),
        opt_text_param(i.message_id),
        restart.into(),
        time_param(i.created_at),
        time_param(i.updated_at),
    ];
    Ok(tx.execute(sql, &params).await? > 0)
}

/// Stores the message of an intervention.
pub async fn record_message(tx: &mut dyn Tx, id: InterventionId, message: MessageId) -> Result<()> {
    let sql = "UPDATE interventions SET message_id = ?2 WHERE id = ?1";
    tx.execute(sql, &[text_param(id), text_param(message)]).await.map(drop)
}

/// Stores the outcome of an open intervention and returns it.
pub async fn record_outcome(
    tx: &mut dyn Tx,
    sandbox: SandboxId,
    (detector, seq): (Detector, i64),
    (outcome, shown_by): (InterventionOutcome, i64),
    now: Timestamp,
) -> Result<Option<InterventionRow>> {
    let sql = "UPDATE interventions SET outcome = ?4, outcome_seq = ?5, updated_at = ?6
               WHERE sandbox_id = ?1 AND detector = ?2 AND seq = ?3 AND outcome IS NULL";
    let params =
        [text_param(sandbox), text_param(detector), seq.into(), text_param(outcome), shown_by.into(), time_param(now)];
    if tx.execute(sql, &params).await? == 0 {
        return Ok(None);
    }
    let sql = select!("WHERE sandbox_id = ?1 AND detector = ?2 AND seq = ?3");
    let rows = tx.query(sql, &[text_param(sandbox), text_param(detector), seq.into()]).await?;
    first_row(rows).map(intervention_from_row).transpose()
}

pub async fn find_intervention(tx: &mut dyn Tx, id: InterventionId) -> Result<Option<InterventionRow>> {
    let rows = tx.query(select!("WHERE id = ?1"), &[text_param(id)]).await?;
    first_row(rows).map(intervention_from_row).transpose()
}

/// Filter of a list.
#[derive(Debug, Clone, Default)]
pub struct InterventionFilter {
    pub visible_projects: ProjectFilter,
    pub project: Option<ProjectId>,
    pub sandbox: Option<SandboxId>,
    pub detector: Option<Detector>,
    pub action: Option<GuardianAction>,
    pub is_open: Option<bool>,
}

/// Lists interventions, newest first, from before `before`.
pub async fn list_interventions(
    tx: &mut dyn Tx,
    filter: &InterventionFilter,
    before: Option<&str>,
    limit: i64,
) -> Result<Vec<InterventionRow>> {
    let sql = select!(
        "WHERE id < ?1 AND (?2 = '' OR project_id = ?2) AND (?3 = '' OR ?3 LIKE '%' || project_id || '%')
         AND (?4 = '' OR sandbox_id = ?4) AND (?5 = '' OR detector = ?5) AND (?6 = '' OR action = ?6)
         AND (?7 < 0 OR (?7 = 1 AND outcome IS NULL) OR (?7 = 0 AND outcome IS NOT NULL))
         ORDER BY id DESC LIMIT ?8"
    );
    let params = [
        before.unwrap_or("~").into(),
        text_param(filter.project.map(|id| id.to_string()).unwrap_or_default()),
        filter.visible_projects.as_param(),
        text_param(filter.sandbox.map(|id| id.to_string()).unwrap_or_default()),
        text_param(filter.detector.map(Detector::as_str).unwrap_or_default()),
        text_param(filter.action.map(GuardianAction::as_str).unwrap_or_default()),
        filter.is_open.map_or(-1, i64::from).into(),
        limit.into(),
    ];
    tx.query(sql, &params).await?.into_iter().map(intervention_from_row).collect()
}

/// Lists the newest interventions of a sandbox, oldest first.
pub async fn list_of_sandbox(tx: &mut dyn Tx, sandbox: SandboxId, limit: i64) -> Result<Vec<InterventionRow>> {
    let sql = select!("WHERE sandbox_id = ?1 ORDER BY seq DESC, id DESC LIMIT ?2");
    let rows = tx.query(sql, &[text_param(sandbox), limit.into()]).await?;
    let mut rows: Vec<_> = rows.into_iter().map(intervention_from_row).collect::<Result<_>>()?;
    rows.reverse();
    Ok(rows)
}

/// Lists the restarts whose sandboxes have ended.
pub async fn list_due_restarts(tx: &mut dyn Tx, limit: i64) -> Result<Vec<InterventionRow>> {
    let sql = select!(
        "WHERE restart = 'due' AND sandbox_id IN (SELECT id FROM sandboxes WHERE state IN ('completed', 'failed'))
         ORDER BY id LIMIT ?1"
    );
    tx.query(sql, &[limit.into()]).await?.into_iter().map(intervention_from_row).collect()
}

/// Returns true if the guardian has restarted the session from another sandbox.
pub async fn has_restarted(tx: &mut dyn Tx, session: SessionId, sandbox: SandboxId) -> Result<bool> {
    let sql = "SELECT 1 FROM interventions WHERE session_id = ?1 AND sandbox_id <> ?2 AND restart IS NOT NULL LIMIT 1";
    Ok(!tx.query(sql, &[text_param(session), text_param(sandbox)]).await?.is_empty())
}

/// Ends a restart. Returns false if another server has ended it.
pub async fn end_restart(tx: &mut dyn Tx, id: InterventionId, next: Option<SandboxId>, now: Timestamp) -> Result<bool> {
    let sql = "UPDATE interventions SET restart = ?2, next_sandbox_id = ?3, updated_at = ?4
               WHERE id = ?1 AND restart = 'due'";
    let state = if next.is_some() { "done" } else { "failed" };
    let params = [text_param(id), state.into(), opt_text_param(next), time_param(now)];
    Ok(tx.execute(sql, &params).await? > 0)
}
