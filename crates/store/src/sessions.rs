//! Sessions. A session's row is the one lock of everything that belongs to it: its sandbox, its
//! inbox, its log. Whoever changes any of them locks it first, so there is no order to get wrong.

use crate::error::{Error, Result};
use crate::projects::Among;
use crate::sql::{Row, Tx, first, micros, opt_text, text};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::session::SessionState;
use atoll_core::time::Timestamp;

#[derive(Debug, Clone, PartialEq)]
pub struct Session {
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
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT id, project_id, agent, title, branch, state, sandbox_id, last_sandbox_id, native_id, transcript,
             forked_from, cost_micros, next_position, created_by, created_at, updated_at FROM sessions ",
            $rest
        )
    };
}

fn session(mut row: Row) -> Result<Session> {
    Ok(Session {
        id: row.parse()?,
        project_id: row.parse()?,
        agent: row.opt_text()?,
        title: row.text()?,
        branch: row.opt_text()?,
        state: row.parse()?,
        sandbox_id: row.opt_parse()?,
        last_sandbox_id: row.opt_parse()?,
        native_id: row.opt_text()?,
        transcript: row.opt_text()?,
        forked_from: row.opt_parse()?,
        cost_micros: row.int()?,
        next_position: row.int()?,
        created_by: row.opt_text()?,
        created_at: row.time()?,
        updated_at: row.time()?,
    })
}

pub async fn insert(tx: &mut dyn Tx, s: &Session) -> Result<()> {
    let sql = "INSERT INTO sessions (id, project_id, agent, title, branch, state, sandbox_id, last_sandbox_id,
               native_id, transcript, forked_from, cost_micros, next_position, created_by, created_at, updated_at)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)";
    let params = [
        text(s.id),
        text(s.project_id),
        s.agent.as_deref().into(),
        (&s.title).into(),
        s.branch.as_deref().into(),
        text(s.state),
        opt_text(s.sandbox_id),
        opt_text(s.last_sandbox_id),
        s.native_id.as_deref().into(),
        s.transcript.as_deref().into(),
        opt_text(s.forked_from),
        s.cost_micros.into(),
        s.next_position.into(),
        s.created_by.as_deref().into(),
        micros(s.created_at),
        micros(s.updated_at),
    ];
    tx.execute(sql, &params).await.map(drop)
}

pub async fn update(tx: &mut dyn Tx, s: &Session) -> Result<()> {
    let sql = "UPDATE sessions SET agent = ?2, title = ?3, branch = ?4, state = ?5, sandbox_id = ?6,
               last_sandbox_id = ?7, native_id = ?8, transcript = ?9, cost_micros = ?10, next_position = ?11,
               updated_at = ?12 WHERE id = ?1";
    let params = [
        text(s.id),
        s.agent.as_deref().into(),
        (&s.title).into(),
        s.branch.as_deref().into(),
        text(s.state),
        opt_text(s.sandbox_id),
        opt_text(s.last_sandbox_id),
        s.native_id.as_deref().into(),
        s.transcript.as_deref().into(),
        s.cost_micros.into(),
        s.next_position.into(),
        micros(s.updated_at),
    ];
    match tx.execute(sql, &params).await? {
        1 => Ok(()),
        _ => Err(Error::Conflict { what: "session" }),
    }
}

pub async fn get(tx: &mut dyn Tx, id: SessionId) -> Result<Option<Session>> {
    first(tx.query(select!("WHERE id = ?1"), &[text(id)]).await?).map(session).transpose()
}

/// The session, and nobody else changes it or what belongs to it until the transaction ends.
pub async fn lock(tx: &mut dyn Tx, id: SessionId) -> Result<Option<Session>> {
    first(tx.lock(select!("WHERE id = ?1"), &[text(id)]).await?).map(session).transpose()
}

/// Newest first, before `before`.
pub async fn list(
    tx: &mut dyn Tx,
    among: &Among,
    project: Option<ProjectId>,
    state: Option<SessionState>,
    before: Option<&str>,
    limit: i64,
) -> Result<Vec<Session>> {
    let sql = select!(
        "WHERE id < ?1 AND (?2 = '' OR project_id = ?2) AND (?3 = '' OR state = ?3)
         AND (?4 = '' OR ?4 LIKE '%' || project_id || '%') ORDER BY id DESC LIMIT ?5"
    );
    let params = [
        before.unwrap_or("~").into(),
        text(project.map(|id| id.to_string()).unwrap_or_default()),
        text(state.map(SessionState::as_str).unwrap_or_default()),
        among.val(),
        limit.into(),
    ];
    tx.query(sql, &params).await?.into_iter().map(session).collect()
}

/// Whether another session would go on with this transcript of that sandbox.
pub async fn others_have_transcript(
    tx: &mut dyn Tx,
    session: SessionId,
    sandbox: SandboxId,
    transcript: &str,
) -> Result<bool> {
    let sql = "SELECT 1 FROM sessions WHERE last_sandbox_id = ?1 AND transcript = ?2 AND id <> ?3 LIMIT 1";
    Ok(!tx.query(sql, &[text(sandbox), transcript.into(), text(session)]).await?.is_empty())
}
