//! Sandboxes and their labels.

use crate::error::{Error, Result};
use crate::projects::ProjectFilter;
use crate::sql::{Row, SqlParam, Tx, first_row, opt_text_param, opt_time_param, text_param, time_param};
use atoll_core::agent_status::{AgentStatus, Signal};
use atoll_core::health::PauseCause;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::lifecycle::LifecyclePhase;
use atoll_core::sandbox::{
    Activity, EndPolicy, Network, Outcome, ProviderKind, Reason, ResultsState, SandboxState, Settings,
};
use atoll_core::setup_phase::{SetupEnvironment, SetupPhase};
use atoll_core::time::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRow {
    pub id: SandboxId,
    /// The name that a person gave it.
    pub name: Option<String>,
    pub session_id: SessionId,
    pub project_id: ProjectId,
    pub provider: ProviderKind,
    pub provider_id: Option<String>,
    /// Server that owns the sandbox, for providers bound to one server.
    pub server_id: Option<String>,
    pub agent: Option<String>,
    pub settings: Settings,
    pub end: EndPolicy,
    pub state: SandboxState,
    pub ending: Option<Outcome>,
    pub outcome: Option<Outcome>,
    pub reason: Option<Reason>,
    pub results: ResultsState,
    pub status: AgentStatus,
    pub setup: SetupPhase,
    /// `update_sandbox` does not write it; see `update_setup_environment`.
    pub setup_environment: SetupEnvironment,
    pub version: i64,
    pub first_seq: i64,
    pub last_seq: i64,
    /// Number of noise events.
    pub noise_count: i64,
    /// Size of the stored events.
    pub log_bytes: i64,
    /// Size of the stored blobs. `update_sandbox` does not write it; see `blobs`.
    pub blob_bytes: i64,
    /// Number of events that the log's quota did not admit.
    pub dropped_events: i64,
    /// When a rate-limited agent may continue, if its model said so.
    pub rate_limited_until: Option<Timestamp>,
    pub heartbeat_count: i64,
    pub first_heartbeat: Option<Timestamp>,
    pub last_heartbeat: Option<Timestamp>,
    pub last_sample: Option<Timestamp>,
    /// The last work event, by the steady clock.
    pub work_at: Option<Timestamp>,
    /// Why it is paused, if it is.
    pub pause_cause: Option<PauseCause>,
    /// The current worker stream.
    pub stream: Option<Uuid>,
    pub boot: Option<i64>,
    /// The worker has exited, and no other has registered since.
    pub worker_has_exited: bool,
    /// The worker has sent its last batch, or its drain period is over.
    pub is_drained: bool,
    pub cost_model_micros: i64,
    pub cost_compute_micros: i64,
    /// Lists omit it. `update_sandbox` does not write it; see `archive_sandbox`.
    pub is_archived: bool,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub state_since: Timestamp,
    pub ended_at: Option<Timestamp>,
}

impl SandboxRow {
    pub const fn phase(&self) -> LifecyclePhase {
        LifecyclePhase { state: self.state, pending_outcome: self.ending }
    }

    /// True until the agent may start.
    pub const fn is_being_set_up(&self) -> bool {
        matches!(self.state, SandboxState::Creating) && self.setup.is_active()
    }

    /// The network policy that applies now.
    pub const fn current_network(&self) -> Option<&Network> {
        if self.is_being_set_up() { self.setup_environment.network.as_ref() } else { self.settings.network.as_ref() }
    }

    /// Applies a signal to the agent's status. Returns whether the status changed.
    pub fn apply_signal(&mut self, signal: Signal) -> bool {
        let before = self.status;
        self.status.apply(self.state, signal);
        self.status != before
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT s.id, s.name, s.archived, s.session_id, s.project_id, s.provider, s.provider_id, s.server_id, s.agent, s.settings,
             s.end_rule, s.state, s.ending, s.outcome, s.reason_code, s.reason_detail, s.results, s.activity, s.turn,
             s.turn_state, s.limit_paused, s.version, s.first_seq, s.last_seq, s.noise, s.heartbeats, s.first_heartbeat,
             s.last_heartbeat, s.last_sample, s.stream, s.boot, s.worker_left, s.drained, s.cost_model_micros,
             s.cost_compute_micros, s.log_bytes, s.blob_bytes, s.dropped_events, s.rate_limited_until, s.work_at, s.pause_cause, s.setup, s.setup_environment, s.created_by, s.created_at, s.updated_at, s.state_since, s.ended_at
             FROM sandboxes s ",
            $rest
        )
    };
}

fn sandbox_from_row(row: Row) -> Result<SandboxRow> {
    Ok(SandboxRow {
        id: row.parse("id")?,
        name: row.opt_text("name")?,
        is_archived: row.bool("archived")?,
        session_id: row.parse("session_id")?,
        project_id: row.parse("project_id")?,
        provider: row.parse("provider")?,
        provider_id: row.opt_text("provider_id")?,
        server_id: row.opt_text("server_id")?,
        agent: row.opt_text("agent")?,
        settings: row.json("settings")?,
        end: row.parse("end_rule")?,
        state: row.parse("state")?,
        ending: row.opt_parse("ending")?,
        outcome: row.opt_parse("outcome")?,
        reason: match (row.opt_text("reason_code")?, row.opt_text("reason_detail")?) {
            (Some(code), detail) => Some(Reason { code, detail: detail.unwrap_or_default() }),
            (None, _) => None,
        },
        results: row.parse("results")?,
        status: AgentStatus::restore(
            row.parse("activity")?,
            row.opt_int("turn")?,
            row.parse("turn_state")?,
            row.opt_parse("limit_paused")?,
        ),
        version: row.int("version")?,
        first_seq: row.int("first_seq")?,
        last_seq: row.int("last_seq")?,
        noise_count: row.int("noise")?,
        log_bytes: row.int("log_bytes")?,
        blob_bytes: row.int("blob_bytes")?,
        dropped_events: row.int("dropped_events")?,
        rate_limited_until: row.opt_time("rate_limited_until")?,
        work_at: row.opt_time("work_at")?,
        pause_cause: row.opt_parse("pause_cause")?,
        setup: row.parse("setup")?,
        setup_environment: row.json("setup_environment")?,
        heartbeat_count: row.int("heartbeats")?,
        first_heartbeat: row.opt_time("first_heartbeat")?,
        last_heartbeat: row.opt_time("last_heartbeat")?,
        last_sample: row.opt_time("last_sample")?,
        stream: row.opt_parse("stream")?,
        boot: row.opt_int("boot")?,
        worker_has_exited: row.bool("worker_left")?,
        is_drained: row.bool("drained")?,
        cost_model_micros: row.int("cost_model_micros")?,
        cost_compute_micros: row.int("cost_compute_micros")?,
        created_by: row.opt_text("created_by")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
        state_since: row.time("state_since")?,
        ended_at: row.opt_time("ended_at")?,
    })
}

/// Returns the mutable columns, in the order of `UPDATE` below.
fn mutable_column_params(s: &SandboxRow) -> [SqlParam<'_>; 36] {
    [
        text_param(s.id),
        s.version.into(),
        s.provider_id.as_deref().into(),
        s.server_id.as_deref().into(),
        text_param(s.state),
        opt_text_param(s.ending),
        opt_text_param(s.outcome),
        s.reason.as_ref().map(|reason| reason.code.as_str()).into(),
        s.reason.as_ref().map(|reason| reason.detail.as_str()).into(),
        text_param(s.results),
        text_param(s.status.activity()),
        s.status.turn().into(),
        text_param(s.status.turn_state()),
        s.first_seq.into(),
        s.last_seq.into(),
        s.noise_count.into(),
        s.heartbeat_count.into(),
        opt_time_param(s.first_heartbeat),
        opt_time_param(s.last_heartbeat),
        opt_time_param(s.last_sample),
        opt_text_param(s.stream),
        s.boot.into(),
        s.is_drained.into(),
        s.cost_model_micros.into(),
        s.cost_compute_micros.into(),
        time_param(s.updated_at),
        time_param(s.state_since),
        opt_time_param(s.ended_at),
        s.worker_has_exited.into(),
        opt_text_param(s.status.pausing_limit()),
        s.log_bytes.into(),
        s.dropped_events.into(),
        opt_time_param(s.rate_limited_until),
        text_param(s.setup),
        opt_time_param(s.work_at),
        opt_text_param(s.pause_cause),
    ]
}

const UPDATE_SANDBOX: &str = "UPDATE sandboxes SET version = version + 1, provider_id = ?3, server_id = ?4, state = ?5,
    ending = ?6, outcome = ?7, reason_code = ?8, reason_detail = ?9, results = ?10, activity = ?11, turn = ?12,
    turn_state = ?13, first_seq = ?14, last_seq = ?15, noise = ?16, heartbeats = ?17, first_heartbeat = ?18,
    last_heartbeat = ?19, last_sample = ?20, stream = ?21, boot = ?22, drained = ?23, cost_model_micros = ?24,
    cost_compute_micros = ?25, updated_at = ?26, state_since = ?27, ended_at = ?28, worker_left = ?29,
    limit_paused = ?30, log_bytes = ?31, dropped_events = ?32, rate_limited_until = ?33, setup = ?34,
    work_at = ?35, pause_cause = ?36
    WHERE id = ?1 AND version = ?2";

pub async fn insert_sandbox(tx: &mut dyn Tx, s: &SandboxRow, labels: &BTreeMap<String, String>) -> Result<()> {
    let sql = "INSERT INTO sandboxes (id, session_id, project_id, provider, agent, settings, end_rule, state, results,
               activity, turn_state, version, first_seq, last_seq, noise, heartbeats, worker_left, drained, cost_model_micros,
               cost_compute_micros, created_by, created_at, updated_at, state_since, name)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?17, 0, ?11, ?12, 0, 0, 0, 0, 0, 0, ?13, ?14, ?15, ?16, ?18)";
    let settings = serde_json::to_string(&s.settings).map_err(Error::internal)?;
    let params = [
        text_param(s.id),
        text_param(s.session_id),
        text_param(s.project_id),
        text_param(s.provider),
        s.agent.as_deref().into(),
        settings.into(),
        text_param(s.end),
        text_param(s.state),
        text_param(s.results),
        text_param(s.status.activity()),
        s.first_seq.into(),
        s.last_seq.into(),
        s.created_by.as_deref().into(),
        time_param(s.created_at),
        time_param(s.updated_at),
        time_param(s.state_since),
        text_param(s.status.turn_state()),
        s.name.as_deref().into(),
    ];
    tx.execute(sql, &params).await.map_err(|error| match (error, &s.name) {
        (Error::AlreadyExists { .. }, Some(name)) => {
            Error::AlreadyExists { what: format!("a live sandbox named `{name}` in the project") }
        }
        (error, _) => error,
    })?;
    for (key, value) in labels {
        let sql = "INSERT INTO labels (sandbox_id, key, value) VALUES (?1, ?2, ?3)";
        tx.execute(sql, &[text_param(s.id), key.into(), value.into()]).await?;
    }
    Ok(())
}

/// Writes the row if its version is unchanged, and increments the version.
pub async fn update_sandbox(tx: &mut dyn Tx, s: &mut SandboxRow) -> Result<()> {
    match tx.execute(UPDATE_SANDBOX, &mutable_column_params(s)).await? {
        1 => {
            s.version += 1;
            Ok(())
        }
        _ => Err(Error::Conflict { what: "sandbox" }),
    }
}

/// Writes the settings, which `update` skips since they rarely change. The caller also writes the row.
pub async fn update_settings(tx: &mut dyn Tx, s: &SandboxRow) -> Result<()> {
    let settings = serde_json::to_string(&s.settings).map_err(Error::internal)?;
    tx.execute("UPDATE sandboxes SET settings = ?2 WHERE id = ?1", &[text_param(s.id), settings.into()]).await.map(drop)
}

/// Writes what the set-up plan gives to the sandbox. The caller also writes the row.
pub async fn update_setup_environment(tx: &mut dyn Tx, s: &SandboxRow) -> Result<()> {
    let environment = serde_json::to_string(&s.setup_environment).map_err(Error::internal)?;
    let sql = "UPDATE sandboxes SET setup_environment = ?2 WHERE id = ?1";
    tx.execute(sql, &[text_param(s.id), environment.into()]).await.map(drop)
}

/// Marks a sandbox as removed from lists.
pub async fn archive_sandbox(tx: &mut dyn Tx, s: &mut SandboxRow) -> Result<()> {
    tx.execute("UPDATE sandboxes SET archived = 1 WHERE id = ?1", &[text_param(s.id)]).await?;
    s.is_archived = true;
    Ok(())
}

pub async fn find_sandbox(tx: &mut dyn Tx, id: SandboxId) -> Result<Option<SandboxRow>> {
    first_row(tx.query(select!("WHERE s.id = ?1"), &[text_param(id)]).await?).map(sandbox_from_row).transpose()
}

/// Returns the session and project of a sandbox; both are immutable.
pub async fn find_owner_ids(tx: &mut dyn Tx, id: SandboxId) -> Result<Option<(SessionId, ProjectId)>> {
    let rows = tx.query("SELECT session_id, project_id FROM sandboxes WHERE id = ?1", &[text_param(id)]).await?;
    first_row(rows).map(|row| Ok((row.parse("session_id")?, row.parse("project_id")?))).transpose()
}

/// Lists the branches that live sandboxes of a repository will create and whose names begin with `stem`.
pub async fn list_planned_branches(tx: &mut dyn Tx, location: &str, stem: &str) -> Result<BTreeSet<String>> {
    // The pattern only narrows the search: the settings decide.
    let stem = serde_json::to_string(stem).map_err(Error::internal)?;
    let pattern = format!("%\"branch\":{}%", stem.trim_end_matches('"'));
    let sql = "SELECT settings FROM sandboxes
               WHERE state IN ('pending', 'creating', 'running', 'completing') AND settings LIKE ?1";
    let mut planned = BTreeSet::new();
    for row in tx.query(sql, &[pattern.into()]).await? {
        let settings: Settings = serde_json::from_str(&row.text("settings")?).map_err(Error::internal)?;
        let repo = settings.repo.filter(|repo| repo.location() == Some(location));
        planned.extend(repo.and_then(|repo| repo.branch));
    }
    Ok(planned)
}

pub async fn list_labels(tx: &mut dyn Tx, id: SandboxId) -> Result<BTreeMap<String, String>> {
    let rows = tx.query("SELECT key, value FROM labels WHERE sandbox_id = ?1", &[text_param(id)]).await?;
    rows.into_iter().map(|row| Ok((row.text("key")?, row.text("value")?))).collect()
}

/// Filter of a list.
#[derive(Debug, Clone, Default)]
pub struct SandboxFilter {
    pub visible_projects: ProjectFilter,
    pub state: Option<SandboxState>,
    pub activity: Option<Activity>,
    pub provider: Option<ProviderKind>,
    pub project: Option<ProjectId>,
    pub session: Option<SessionId>,
    pub label: Option<(String, Option<String>)>,
    /// Candidates for a reference (`core::reference`), which the caller must still compare.
    pub reference: Option<String>,
    pub created_by: Option<String>,
    pub is_live: bool,
    pub with_archived: bool,
}

/// Lists sandboxes, newest first, from before `before`.
pub async fn list_sandboxes(
    tx: &mut dyn Tx,
    filter: &SandboxFilter,
    before: Option<&str>,
    limit: i64,
) -> Result<Vec<SandboxRow>> {
    let sql = select!(
        "WHERE s.id < ?1 AND (?2 = '' OR s.state = ?2) AND (?3 = '' OR s.activity = ?3)
         AND (?4 = '' OR s.provider = ?4) AND (?5 = '' OR s.project_id = ?5) AND (?6 = '' OR s.session_id = ?6)
         AND (?7 = '' OR EXISTS (SELECT 1 FROM labels l WHERE l.sandbox_id = s.id AND l.key = ?7
                                 AND (?8 = 0 OR l.value = ?9)))
         AND (?10 = '' OR ?10 LIKE '%' || s.project_id || '%')
         AND (?12 = '' OR s.name = ?12 OR substr(s.id, 1, length(?12)) = ?12
              OR substr(s.id, 5, length(?12)) = ?12 OR substr(s.id, length(s.id) - length(?12) + 1) = ?12
              OR s.settings LIKE ?13
              OR EXISTS (SELECT 1 FROM sessions e WHERE e.id = s.session_id AND e.branch LIKE ?14))
         AND (?15 = '' OR s.created_by = ?15) AND (?16 = 1 OR s.archived = 0)
         AND (?17 = 0 OR s.state IN ('pending', 'creating', 'running', 'completing'))
         ORDER BY s.id DESC LIMIT ?11"
    );
    let (key, value) = match &filter.label {
        Some((key, value)) => (key.as_str(), value.as_deref()),
        None => ("", None),
    };
    let reference = filter.reference.as_deref().unwrap_or_default();
    let quoted = serde_json::to_string(reference).map_err(Error::internal)?;
    let params = [
        before.unwrap_or("~").into(),
        text_param(filter.state.map(SandboxState::as_str).unwrap_or_default()),
        text_param(filter.activity.map(Activity::as_str).unwrap_or_default()),
        text_param(filter.provider.map(ProviderKind::as_str).unwrap_or_default()),
        text_param(filter.project.map(|id| id.to_string()).unwrap_or_default()),
        text_param(filter.session.map(|id| id.to_string()).unwrap_or_default()),
        key.into(),
        value.is_some().into(),
        value.unwrap_or("").into(),
        filter.visible_projects.as_param(),
        limit.into(),
        reference.into(),
        format!("%\"branch\":\"%{}%", quoted.trim_start_matches('"')).into(),
        format!("%{reference}").into(),
        filter.created_by.as_deref().unwrap_or_default().into(),
        filter.with_archived.into(),
        filter.is_live.into(),
    ];
    tx.query(sql, &params).await?.into_iter().map(sandbox_from_row).collect()
}

/// Returns id, project and newest seq of the sandboxes after `after`, oldest first, for readers that follow all.
pub async fn list_log_positions(
    tx: &mut dyn Tx,
    after: Option<SandboxId>,
    limit: i64,
) -> Result<Vec<(SandboxId, ProjectId, i64)>> {
    let sql = "SELECT id, project_id, last_seq FROM sandboxes WHERE id > ?1 ORDER BY id LIMIT ?2";
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    let rows = tx.query(sql, &[after.into(), limit.into()]).await?;
    rows.into_iter().map(|row| Ok((row.parse("id")?, row.parse("project_id")?, row.int("last_seq")?))).collect()
}

/// Lists the running sandboxes with an agent after `after`, oldest first.
pub async fn list_running_ids(tx: &mut dyn Tx, after: Option<SandboxId>, limit: i64) -> Result<Vec<SandboxId>> {
    let sql = "SELECT id FROM sandboxes WHERE state = 'running' AND agent IS NOT NULL AND id > ?1 ORDER BY id LIMIT ?2";
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    tx.query(sql, &[after.into(), limit.into()]).await?.into_iter().map(|row| row.parse("id")).collect()
}

/// Counts sandboxes by state.
pub async fn count_by_state(tx: &mut dyn Tx) -> Result<Vec<(SandboxState, i64)>> {
    let rows = tx.query("SELECT state, COUNT(*) AS count FROM sandboxes GROUP BY state", &[]).await?;
    rows.into_iter().map(|row| Ok((row.parse("state")?, row.int("count")?))).collect()
}

/// Counts live sandboxes by activity.
pub async fn count_by_activity(tx: &mut dyn Tx) -> Result<Vec<(Activity, i64)>> {
    let sql = "SELECT activity, COUNT(*) AS count FROM sandboxes
               WHERE state IN ('pending', 'creating', 'running', 'completing') GROUP BY activity";
    let rows = tx.query(sql, &[]).await?;
    rows.into_iter().map(|row| Ok((row.parse("activity")?, row.int("count")?))).collect()
}

/// Moves the heartbeats before a jump of the wall clock by that jump, so that their age stays the same. `now` is the time
/// after the jump; heartbeats after it are left alone.
pub async fn shift_heartbeats(tx: &mut dyn Tx, now: Timestamp, jump_micros: i64) -> Result<()> {
    let (sql, bound) = if jump_micros > 0 {
        let bound = Timestamp::from_micros(now.as_micros() - jump_micros / 2);
        (
            "UPDATE sandboxes SET last_heartbeat = last_heartbeat + ?1 WHERE state = 'running' AND last_heartbeat < ?2",
            bound,
        )
    } else {
        (
            "UPDATE sandboxes SET last_heartbeat = last_heartbeat + ?1 WHERE state = 'running' AND last_heartbeat > ?2",
            now,
        )
    };
    tx.execute(sql, &[jump_micros.into(), time_param(bound)]).await?;
    Ok(())
}
