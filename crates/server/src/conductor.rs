//! The conductor: follows what each live agent does, from the event logs. `atoll_core::conductor` has the rules.

use crate::problem::Result;
use crate::state::App;
use atoll_api::ResourceSample;
use atoll_core::conductor::anomaly::ratio_to_median;
use atoll_core::conductor::{AgentProgress, AnomalyMeasure};
use atoll_core::id::SandboxId;
use atoll_store::Tx;
use atoll_store::events::{EventLogFilter, EventLogOrder, read_event_page};
use atoll_store::sandboxes::{self, SandboxFilter, SandboxRow};
use atoll_store::{messages, sessions};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Interval of the rounds that count anomalies.
const ROUND_INTERVAL: Duration = Duration::from_secs(30);
/// Agents that are followed.
pub const MAX_AGENTS: usize = 1000;
/// Agents per read of the store.
const PAGE_SIZE: i64 = 100;
/// Events that are read at most per agent and update: what is older says little about now.
const MAX_NEW_EVENTS: usize = 300;

/// One live agent with its row, its session's title and what it does.
pub struct FollowedAgent {
    pub row: SandboxRow,
    pub title: String,
    pub progress: Arc<AgentProgress>,
    pub measure: AnomalyMeasure,
}

/// The state of all live agents. It is a cache of the event logs: a restarted server builds it again.
#[derive(Debug, Default)]
pub struct Conductor {
    agents: Mutex<HashMap<SandboxId, Arc<AgentProgress>>>,
    /// Held by the one update that runs.
    turn: tokio::sync::Mutex<()>,
}

impl Conductor {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<AgentProgress>>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Brings the state of all live agents up to date. `counts_anomalies` is true for the rounds of the conductor itself.
/// Returns the agents, newest first, and whether there are more.
pub async fn follow_agents(app: &App, counts_anomalies: bool) -> Result<(Vec<FollowedAgent>, bool)> {
    let _turn = app.conductor.turn.lock().await;
    let mut followed: Vec<FollowedAgent> = Vec::new();
    let mut is_truncated = false;
    let mut before: Option<String> = None;
    let known = Arc::new(app.conductor.lock().clone());
    loop {
        let (place, known) = (before.clone(), Arc::clone(&known));
        let page = app.read(async move |tx| read_agents(tx, place.as_deref(), &known).await).await?;
        let Some(last) = page.last() else { break };
        before = Some(last.row.id.to_string());
        followed.extend(page);
        if followed.len() >= MAX_AGENTS {
            is_truncated = followed.len() > MAX_AGENTS;
            followed.truncate(MAX_AGENTS);
            break;
        }
    }
    let waiting = app.read(async move |tx| Ok(messages::count_waiting_by_session(tx).await?)).await?;
    let waiting: HashMap<_, _> = waiting.into_iter().collect();
    let samples: HashMap<SandboxId, ResourceSample> = app.samples.newest_points().into_iter().collect();
    let medians = ResourceMedians::new(&samples);
    for agent in &mut followed {
        agent.measure = AnomalyMeasure {
            latency_z: agent.progress.latency_z(),
            error_rate: agent.progress.error_rate(),
            resource_ratio: samples.get(&agent.row.id).map_or(1.0, |sample| medians.ratio(sample)),
            waiting_messages: waiting.get(&agent.row.session_id).copied().unwrap_or(0),
        };
        if counts_anomalies {
            Arc::make_mut(&mut agent.progress).anomalies.record_score(agent.measure.score());
        }
    }
    let state = followed.iter().map(|agent| (agent.row.id, Arc::clone(&agent.progress))).collect();
    *app.conductor.lock() = state;
    Ok((followed, is_truncated))
}

/// Reads a page of live agents with their new events.
async fn read_agents(
    tx: &mut dyn Tx,
    before: Option<&str>,
    known: &HashMap<SandboxId, Arc<AgentProgress>>,
) -> Result<Vec<FollowedAgent>> {
    let filter = SandboxFilter { is_live: true, ..SandboxFilter::default() };
    let mut agents = Vec::new();
    for row in sandboxes::list_sandboxes(tx, &filter, before, PAGE_SIZE).await? {
        let mut progress = known.get(&row.id).cloned().unwrap_or_default();
        add_new_events(tx, &row, &mut progress).await?;
        let title = sessions::find_session(tx, row.session_id).await?.map(|session| session.title).unwrap_or_default();
        agents.push(FollowedAgent { row, title, progress, measure: AnomalyMeasure::default() });
    }
    Ok(agents)
}

/// Adds the newest events that `progress` does not include.
async fn add_new_events(tx: &mut dyn Tx, row: &SandboxRow, progress: &mut Arc<AgentProgress>) -> Result<()> {
    if row.last_seq <= progress.last_seq() {
        return Ok(());
    }
    let filter = EventLogFilter { excludes_noise: true, ..EventLogFilter::default() };
    let log = (row.id, row.session_id);
    let from = row.last_seq.saturating_add(1);
    let count = usize::try_from(row.last_seq - progress.last_seq()).unwrap_or(MAX_NEW_EVENTS).min(MAX_NEW_EVENTS);
    let page = read_event_page(tx, log, &filter, EventLogOrder::NewestFirst, from, count).await?;
    let progress = Arc::make_mut(progress);
    page.events.iter().rev().for_each(|event| progress.observe_event(event));
    Ok(())
}

/// The samples of all agents, to compare one with.
struct ResourceMedians {
    cpu: Vec<f64>,
    memory: Vec<f64>,
}

#[allow(clippy::cast_precision_loss, reason = "bytes of memory are far from the limit of f64")]
const fn memory_of(sample: &ResourceSample) -> f64 {
    sample.memory_bytes as f64
}

impl ResourceMedians {
    fn new(samples: &HashMap<SandboxId, ResourceSample>) -> Self {
        let cpu = samples.values().filter_map(|sample| sample.cpu).collect();
        Self { cpu, memory: samples.values().map(memory_of).collect() }
    }

    fn ratio(&self, sample: &ResourceSample) -> f64 {
        let cpu = sample.cpu.map_or(1.0, |cpu| ratio_to_median(cpu, &self.cpu));
        cpu.max(ratio_to_median(memory_of(sample), &self.memory))
    }
}

/// Counts anomalies in rounds until the server stops.
pub async fn run_conductor(app: Arc<App>) {
    let mut stopping = app.stopping.clone();
    let mut clock = tokio::time::interval(ROUND_INTERVAL);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = clock.tick() => {}
            _ = stopping.wait_for(|stop| *stop) => break,
        }
        if let Err(problem) = follow_agents(&app, true).await {
            tracing::debug!(detail = %problem.detail, "failed to follow the agents");
        }
    }
}
