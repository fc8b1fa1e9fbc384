//! Sessions. A session's row is the single lock for everything that belongs to it: its sandbox, inbox and log. A writer
//! locks it first, so lock order is never a problem.

use crate::error::{Error, Result};
use crate::projects::ProjectFilter;
use crate::sql::{Row, Tx, first_row, opt_text_param, text_param, time_param};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::sandbox::Reason;
use atoll_core::session::SessionState;
use atoll_core::time::Timestamp;

#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    pub id: SessionId,
    pub project_id: ProjectId,
    pub agent: Option<String>,
    pub title: String,
    pub branch: Option<String>,
    pub state: SessionState,
    /// The live sandbox.
    pub sandbox_id: Option<SandboxId>,
    /// The newest sandbox, live or not.
    pub last_sandbox_id: Option<SandboxId>,
    pub native_id: Option<String>,
    pub transcript: Option<String>,
    pub forked_from: Option<SessionId>,
    pub cost_micros: i64,
    pub next_position: i64,
    /// Why a person has to look at it.
    pub attention: Option<Reason>,
    /// Lists omit it.
    pub is_archived: bool,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, project_id, agent, title, branch, state, sandbox_id, last_sandbox_id, native_id, transcript,
             forked_from, cost_micros, next_position, attention, archived, created_by, created_at, updated_at FROM sessions ",
            $rest
        )
    };
}

fn session_from_row(row: Row) -> Result<SessionRow> {
    Ok(SessionRow {
        id: row.parse("id")?,
        project_id: row.parse("project_id")?,
        agent: row.opt_text("agent")?,
        title: row.text("title")?,
        branch: row.opt_text("branch")?,
        state: row.parse("state")?,
        sandbox_id: row.opt_parse("sandbox_id")?,
        last_sandbox_id: row.opt_parse("last_sandbox_id")?,
        native_id: row.opt_text("native_id")?,
        transcript: row.opt_text("transcript")?,
        forked_from: row.opt_parse("forked_from")?,
        cost_micros: row.int("cost_micros")?,
        next_position: row.int("next_position")?,
        attention: row.opt_json("attention")?,
        is_archived: row.bool("archived")?,
        created_by: row.opt_text("created_by")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}

pub async fn insert_session(tx: &mut dyn Tx, s: &SessionRow) -> Result<()> {
    let sql = "INSERT INTO sessions (id, project_id, agent, title, branch, state, sandbox_id, last_sandbox_id,
               native_id, transcript, forked_from, cost_micros, next_position, created_by, created_at, updated_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)";
    let params = [
        text_param(s.id),
        text_param(s.project_id),
        s.agent.as_deref().into(),
        (&s.title).into(),
        s.branch.as_deref().into(),
        text_param(s.state),
        opt_text_param(s.sandbox_id),
        opt_text_param(s.last_sandbox_id),
        s.native_id.as_deref().into(),
        s.transcript.as_deref().into(),
        opt_text_param(s.forked_from),
        s.cost_micros.into(),
        s.next_position.into(),
        s.created_by.as_deref().into(),
        time_param(s.created_at),
        time_param(s.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn update_session(tx: &mut dyn Tx, s: &SessionRow) -> Result<()> {
    let sql = "UPDATE sessions SET agent = ?2, title = ?3, branch = ?4, state = ?5, sandbox_id = ?6,
               last_sandbox_id = ?7, native_id = ?8, transcript = ?9, cost_micros = ?10, next_position = ?11,
               updated_at = ?12, archived = ?13, attention = ?14 WHERE id = ?1";
    let attention = s.attention.as_ref().map(serde_json::to_string).transpose().map_err(Error::internal)?;
    let params = [
        text_param(s.id),
        s.agent.as_deref().into(),
        (&s.title).into(),
        s.branch.as_deref().into(),
        text_param(s.state),
        opt_text_param(s.sandbox_id),
        opt_text_param(s.last_sandbox_id),
        s.native_id.as_deref().into(),
        s.transcript.as_deref().into(),
        s.cost_micros.into(),
        s.next_position.into(),
        time_param(s.updated_at),
        s.is_archived.into(),
        attention.as_deref().into(),
    ];
    match tx.execute(sql, &params).await? {
        1 => Ok(()),
        _ => Err(Error::Conflict { what: "session" }),
    }
}

pub async fn find_session(tx: &mut dyn Tx, id: SessionId) -> Result<Option<SessionRow>> {
    first_row(tx.query(select!("WHERE id = ?1"), &[text_param(id)]).await?).map(session_from_row).transpose()
}

/// Returns the session and locks it, with everything that belongs to it, until the transaction ends.
pub async fn lock_session(tx: &mut dyn Tx, id: SessionId) -> Result<Option<SessionRow>> {
    first_row(tx.query_for_update(select!("WHERE id = ?1"), &[text_param(id)]).await?).map(session_from_row).transpose()
}

/// Filter of a list.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    pub visible_projects: ProjectFilter,
    pub project: Option<ProjectId>,
    pub state: Option<SessionState>,
    /// Candidates for a reference (`core::reference`), which the caller must still compare.
    pub reference: Option<String>,
    pub with_archived: bool,
}

/// Lists sessions, newest first, from before `before`.
pub async fn list_sessions(
    tx: &mut dyn Tx,
    filter: &SessionFilter,
    before: Option<&str>,
    limit: i64,
) -> Result<Vec<SessionRow>> {
    let sql = select!(
        "WHERE id < ?1 AND (?2 = '' OR project_id = ?2) AND (?3 = '' OR state = ?3)
         AND (?4 = '' OR ?4 LIKE '%' || project_id || '%')
         AND (?6 = '' OR branch LIKE ?7 OR substr(id, 1, length(?6)) = ?6 OR substr(id, 5, length(?6)) = ?6
              OR substr(id, length(id) - length(?6) + 1) = ?6)
         AND (?8 = 1 OR archived = 0) ORDER BY id DESC LIMIT ?5"
    );
    let reference = filter.reference.as_deref().unwrap_or_default();
    let params = [
        before.unwrap_or("~").into(),
        text_param(filter.project.map(|id| id.to_string()).unwrap_or_default()),
        text_param(filter.state.map(SessionState::as_str).unwrap_or_default()),
        filter.visible_projects.as_param(),
        limit.into(),
        reference.into(),
        format!("%{reference}").into(),
        filter.with_archived.into(),
    ];
    tx.query(sql, &params).await?.into_iter().map(session_from_row).collect()
}

/// Returns true if another session would resume from this transcript of that sandbox.
pub async fn others_have_transcript(
    tx: &mut dyn Tx,
    session: SessionId,
    sandbox: SandboxId,
    transcript: &str,
) -> Result<bool> {
    let sql = "SELECT 1 FROM sessions WHERE last_sandbox_id = ?1 AND transcript = ?2 AND id <> ?3 LIMIT 1";
    Ok(!tx.query(sql, &[text_param(sandbox), transcript.into(), text_param(session)]).await?.is_empty())
}
