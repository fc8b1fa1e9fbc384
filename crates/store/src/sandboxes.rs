//! Sandboxes and their labels.

use crate::error::{Error, Result};
use crate::projects::Among;
use crate::sql::{Row, Tx, Val, first, micros, opt_micros, opt_text, text};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::lifecycle::Phase;
use atoll_core::limit::Limit;
use atoll_core::sandbox::{Activity, End, Outcome, ProviderKind, Reason, Results, SandboxState, Settings, TurnState};
use atoll_core::time::Timestamp;
use std::collections::BTreeMap;
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    pub id: SandboxId,
    pub session_id: SessionId,
    pub project_id: ProjectId,
    pub provider: ProviderKind,
    pub provider_id: Option<String>,
    /// Which server holds it, where it lives on one.
    pub server_id: Option<String>,
    pub agent: Option<String>,
    pub settings: Settings,
    pub end: End,
    pub state: SandboxState,
    pub ending: Option<Outcome>,
    pub outcome: Option<Outcome>,
    pub reason: Option<Reason>,
    pub results: Results,
    pub activity: Activity,
    pub turn: Option<i64>,
    pub turn_state: TurnState,
    pub version: i64,
    pub first_seq: i64,
    pub last_seq: i64,
    /// How many of its events are noise.
    pub noise: i64,
    pub heartbeats: i64,
    pub first_heartbeat: Option<Timestamp>,
    pub last_heartbeat: Option<Timestamp>,
    pub last_sample: Option<Timestamp>,
    /// The worker stream that speaks for it.
    pub stream: Option<Uuid>,
    pub boot: Option<i64>,
    /// The worker took its leave, and no other has come since.
    pub worker_left: bool,
    /// The worker said that nothing follows, or its time for that is over.
    pub drained: bool,
    /// The limit that its agent is held back by.
    pub limit_paused: Option<Limit>,
    pub cost_model_micros: i64,
    pub cost_compute_micros: i64,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub state_since: Timestamp,
    pub ended_at: Option<Timestamp>,
}

impl Sandbox {
    pub const fn phase(&self) -> Phase {
        Phase { state: self.state, ending: self.ending }
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT s.id, s.session_id, s.project_id, s.provider, s.provider_id, s.server_id, s.agent, s.settings,
             s.end_rule, s.state, s.ending, s.outcome, s.reason_code, s.reason_detail, s.results, s.activity, s.turn,
             s.turn_state, s.version, s.first_seq, s.last_seq, s.noise, s.heartbeats, s.first_heartbeat,
             s.last_heartbeat, s.last_sample, s.stream, s.boot, s.worker_left, s.drained, s.cost_model_micros,
             s.cost_compute_micros, s.created_by, s.created_at, s.updated_at, s.state_since, s.ended_at,
             s.limit_paused
             FROM sandboxes s ",
            $rest
        )
    };
}

fn sandbox(mut row: Row) -> Result<Sandbox> {
    Ok(Sandbox {
        id: row.parse()?,
        session_id: row.parse()?,
        project_id: row.parse()?,
        provider: row.parse()?,
        provider_id: row.opt_text()?,
        server_id: row.opt_text()?,
        agent: row.opt_text()?,
        settings: row.json()?,
        end: row.parse()?,
        state: row.parse()?,
        ending: row.opt_parse()?,
        outcome: row.opt_parse()?,
        reason: match (row.opt_text()?, row.opt_text()?) {
            (Some(code), detail) => Some(Reason { code, detail: detail.unwrap_or_default() }),
            (None, _) => None,
        },
        results: row.parse()?,
        activity: row.parse()?,
        turn: row.opt_int()?,
        turn_state: row.parse()?,
        version: row.int()?,
        first_seq: row.int()?,
        last_seq: row.int()?,
        noise: row.int()?,
        heartbeats: row.int()?,
        first_heartbeat: row.opt_time()?,
        last_heartbeat: row.opt_time()?,
        last_sample: row.opt_time()?,
        stream: row.opt_parse()?,
        boot: row.opt_int()?,
        worker_left: row.flag()?,
        drained: row.flag()?,
        cost_model_micros: row.int()?,
        cost_compute_micros: row.int()?,
        created_by: row.opt_text()?,
        created_at: row.time()?,
        updated_at: row.time()?,
        state_since: row.time()?,
        ended_at: row.opt_time()?,
        limit_paused: row.opt_parse()?,
    })
}

/// The columns that change, in the order of `UPDATE` below.
fn changing(s: &Sandbox) -> [Val<'_>; 30] {
    [
        text(s.id),
        s.version.into(),
        s.provider_id.as_deref().into(),
        s.server_id.as_deref().into(),
        text(s.state),
        opt_text(s.ending),
        opt_text(s.outcome),
        s.reason.as_ref().map(|reason| reason.code.as_str()).into(),
        s.reason.as_ref().map(|reason| reason.detail.as_str()).into(),
        text(s.results),
        text(s.activity),
        s.turn.into(),
        text(s.turn_state),
        s.first_seq.into(),
        s.last_seq.into(),
        s.noise.into(),
        s.heartbeats.into(),
        opt_micros(s.first_heartbeat),
        opt_micros(s.last_heartbeat),
        opt_micros(s.last_sample),
        opt_text(s.stream),
        s.boot.into(),
        s.drained.into(),
        s.cost_model_micros.into(),
        s.cost_compute_micros.into(),
        micros(s.updated_at),
        micros(s.state_since),
        opt_micros(s.ended_at),
        s.worker_left.into(),
        opt_text(s.limit_paused),
    ]
}

const UPDATE: &str = "UPDATE sandboxes SET version = version + 1, provider_id = ?3, server_id = ?4, state = ?5,
    ending = ?6, outcome = ?7, reason_code = ?8, reason_detail = ?9, results = ?10, activity = ?11, turn = ?12,
    turn_state = ?13, first_seq = ?14, last_seq = ?15, noise = ?16, heartbeats = ?17, first_heartbeat = ?18,
    last_heartbeat = ?19, last_sample = ?20, stream = ?21, boot = ?22, drained = ?23, cost_model_micros = ?24,
    cost_compute_micros = ?25, updated_at = ?26, state_since = ?27, ended_at = ?28, worker_left = ?29,
    limit_paused = ?30
    WHERE id = ?1 AND version = ?2";

pub async fn insert(tx: &mut dyn Tx, s: &Sandbox, labels: &BTreeMap<String, String>) -> Result<()> {
    let sql = "INSERT INTO sandboxes (id, session_id, project_id, provider, agent, settings, end_rule, state, results,
               activity, turn_state, version, first_seq, last_seq, noise, heartbeats, worker_left, drained, cost_model_micros,
               cost_compute_micros, created_by, created_at, updated_at, state_since)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?17, 0, ?11, ?12, 0, 0, 0, 0, 0, 0, ?13, ?14, ?15, ?16)";
    let settings = serde_json::to_string(&s.settings).map_err(Error::internal)?;
    let params = [
        text(s.id),
        text(s.session_id),
        text(s.project_id),
        text(s.provider),
        s.agent.as_deref().into(),
        settings.into(),
        text(s.end),
        text(s.state),
        text(s.results),
        text(s.activity),
        s.first_seq.into(),
        s.last_seq.into(),
        s.created_by.as_deref().into(),
        micros(s.created_at),
        micros(s.updated_at),
        micros(s.state_since),
        text(s.turn_state),
    ];
    tx.execute(sql, &params).await?;
    for (key, value) in labels {
        let sql = "INSERT INTO labels (sandbox_id, key, value) VALUES (?1, ?2, ?3)";
        tx.execute(sql, &[text(s.id), key.into(), value.into()]).await?;
    }
    Ok(())
}

/// Writes the row if it still has the version it was read with, and raises it.
pub async fn update(tx: &mut dyn Tx, s: &mut Sandbox) -> Result<()> {
    match tx.execute(UPDATE, &changing(s)).await? {
        1 => {
            s.version += 1;
            Ok(())
        }
        _ => Err(Error::Conflict { what: "sandbox" }),
    }
}

/// Writes the settings, which `update` leaves alone since they hardly ever change. The caller writes the row too.
pub async fn set_settings(tx: &mut dyn Tx, s: &Sandbox) -> Result<()> {
    let settings = serde_json::to_string(&s.settings).map_err(Error::internal)?;
    tx.execute("UPDATE sandboxes SET settings = ?2 WHERE id = ?1", &[text(s.id), settings.into()]).await.map(drop)
}

pub async fn get(tx: &mut dyn Tx, id: SandboxId) -> Result<Option<Sandbox>> {
    first(tx.query(select!("WHERE s.id = ?1"), &[text(id)]).await?).map(sandbox).transpose()
}

/// Whose it is; both never change.
pub async fn owner(tx: &mut dyn Tx, id: SandboxId) -> Result<Option<(SessionId, ProjectId)>> {
    let rows = tx.query("SELECT session_id, project_id FROM sandboxes WHERE id = ?1", &[text(id)]).await?;
    first(rows).map(|mut row| Ok((row.parse()?, row.parse()?))).transpose()
}

pub async fn labels(tx: &mut dyn Tx, id: SandboxId) -> Result<BTreeMap<String, String>> {
    let rows = tx.query("SELECT key, value FROM labels WHERE sandbox_id = ?1", &[text(id)]).await?;
    rows.into_iter().map(|mut row| Ok((row.text()?, row.text()?))).collect()
}

/// What a list can be narrowed by.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub among: Among,
    pub state: Option<SandboxState>,
    pub activity: Option<Activity>,
    pub provider: Option<ProviderKind>,
    pub project: Option<ProjectId>,
    pub session: Option<SessionId>,
    pub label: Option<(String, Option<String>)>,
}

/// Newest first, before `before`.
pub async fn list(tx: &mut dyn Tx, filter: &Filter, before: Option<&str>, limit: i64) -> Result<Vec<Sandbox>> {
    let sql = select!(
        "WHERE s.id < ?1 AND (?2 = '' OR s.state = ?2) AND (?3 = '' OR s.activity = ?3)
         AND (?4 = '' OR s.provider = ?4) AND (?5 = '' OR s.project_id = ?5) AND (?6 = '' OR s.session_id = ?6)
         AND (?7 = '' OR EXISTS (SELECT 1 FROM labels l WHERE l.sandbox_id = s.id AND l.key = ?7
                                 AND (?8 = 0 OR l.value = ?9)))
         AND (?10 = '' OR ?10 LIKE '%' || s.project_id || '%')
         ORDER BY s.id DESC LIMIT ?11"
    );
    let (key, value) = match &filter.label {
        Some((key, value)) => (key.as_str(), value.as_deref()),
        None => ("", None),
    };
    let params = [
        before.unwrap_or("~").into(),
        text(filter.state.map(SandboxState::as_str).unwrap_or_default()),
        text(filter.activity.map(Activity::as_str).unwrap_or_default()),
        text(filter.provider.map(ProviderKind::as_str).unwrap_or_default()),
        text(filter.project.map(|id| id.to_string()).unwrap_or_default()),
        text(filter.session.map(|id| id.to_string()).unwrap_or_default()),
        key.into(),
        value.is_some().into(),
        value.unwrap_or("").into(),
        filter.among.val(),
        limit.into(),
    ];
    tx.query(sql, &params).await?.into_iter().map(sandbox).collect()
}

/// Id, project and newest seq of the sandboxes after `after`, oldest first: what a reader of all of them follows.
pub async fn positions(
    tx: &mut dyn Tx,
    after: Option<SandboxId>,
    limit: i64,
) -> Result<Vec<(SandboxId, ProjectId, i64)>> {
    let sql = "SELECT id, project_id, last_seq FROM sandboxes WHERE id > ?1 ORDER BY id LIMIT ?2";
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    let rows = tx.query(sql, &[after.into(), limit.into()]).await?;
    rows.into_iter().map(|mut row| Ok((row.parse()?, row.parse()?, row.int()?))).collect()
}

/// How many there are by state.
pub async fn count_by_state(tx: &mut dyn Tx) -> Result<Vec<(SandboxState, i64)>> {
    let rows = tx.query("SELECT state, COUNT(*) FROM sandboxes GROUP BY state", &[]).await?;
    rows.into_iter().map(|mut row| Ok((row.parse()?, row.int()?))).collect()
}

/// Running sandboxes whose last heartbeat is older than `before` and that don't say so yet. A paused one may be silent.
pub async fn silent(tx: &mut dyn Tx, before: Timestamp, limit: i64) -> Result<Vec<SandboxId>> {
    let sql = "SELECT id FROM sandboxes WHERE state = 'running' AND activity NOT IN ('unreachable', 'paused')
               AND last_heartbeat < ?1 ORDER BY id LIMIT ?2";
    let rows = tx.query(sql, &[micros(before), limit.into()]).await?;
    rows.into_iter().map(|mut row| row.parse()).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    pub at: Timestamp,
    pub cpu_milli: Option<i64>,
    pub memory_bytes: Option<i64>,
    pub disk_bytes: Option<i64>,
}

pub async fn add_sample(tx: &mut dyn Tx, id: SandboxId, sample: &Sample) -> Result<()> {
    let sql = "INSERT INTO heartbeat_samples (sandbox_id, at, cpu_milli, memory_bytes, disk_bytes)
               VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING";
    let params =
        [text(id), micros(sample.at), sample.cpu_milli.into(), sample.memory_bytes.into(), sample.disk_bytes.into()];
    tx.execute(sql, &params).await.map(drop)
}
