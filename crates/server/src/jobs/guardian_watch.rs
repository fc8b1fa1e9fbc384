//! Feeds the guardian: reads the new events of running sandboxes, and stores and takes the actions that follow.
//!
//! A watch is in memory only. A restarted server restores it from the stored interventions and the newest events. Each
//! finding is stored once, so that repeating an event changes nothing.

use super::judge::{Judge, JudgeRequest, Judgement};
use crate::app::guardian::{self, MAX_REBUILD_EVENTS, new_watch};
use crate::app::pausing::{Pauser, pause_running};
use crate::hub::News;
use crate::problem::Result;
use crate::state::App;
use atoll_core::event::Event;
use atoll_core::guardian::judge::EventDigest;
use atoll_core::guardian::{GuardianWatch, PastIntervention, WatchStep};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::sandbox::SandboxState;
use atoll_core::time::Timestamp;
use atoll_store::events::{self, EventLogFilter, EventLogOrder};
use atoll_store::interventions::{self, InterventionRow};
use atoll_store::{messages, sandboxes};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior};

/// Time between two passes, which bounds the reads under a flood of events.
const PASS_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of the work that no event causes: judgements, due restarts, lost wake-ups.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two looks for restarts that are due.
const RESTART_TICKS: u32 = 5;
/// Events are too old to act on after this time.
const MAX_EVENT_AGE: Duration = Duration::from_secs(120);
const PAGE_EVENTS: usize = 256;
/// Interventions that a restored watch knows.
const MAX_PAST: i64 = 200;
const MAX_UNWATCHED: usize = 10_000;
const LIST_PAGE: i64 = 500;

/// A running sandbox.
struct WatchedSandbox {
    watch: GuardianWatch,
    session: SessionId,
    project: ProjectId,
    /// The last event that was observed.
    seq: i64,
    judged: Option<JudgedAgent>,
}

/// An agent whose work the judge sees.
struct JudgedAgent {
    digest: EventDigest,
    goal: String,
    last: Instant,
    is_waiting: bool,
}

pub struct GuardianRunner {
    app: Arc<App>,
    watched: HashMap<SandboxId, WatchedSandbox>,
    /// Sandboxes without an agent.
    unwatched: HashSet<SandboxId>,
    judge: Option<Judge>,
}

/// Watches agents until the server stops.
pub async fn run_guardian(app: Arc<App>) {
    if app.config.guardian.enabled {
        let judge = Judge::from_config(&app);
        GuardianRunner { app, watched: HashMap::new(), unwatched: HashSet::new(), judge }.run().await;
    }
}

impl GuardianRunner {
    async fn run(mut self) {
        let mut news = self.app.hub.subscribe_news();
        let mut states = self.app.hub.subscribe_states();
        let mut stopping = self.app.stopping.clone();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut dirty = self.list_running().await;
        let (mut ended, mut ticks, mut may_restart) = (Vec::new(), 0_u32, true);
        loop {
            let mut judgement = None;
            tokio::select! {
                one = news.recv() => match one {
                    Ok(News::Events(id)) => drop(dirty.insert(id)),
                    Ok(News::Live(_)) => {}
                    Err(RecvError::Lagged(_)) => dirty.extend(self.list_running().await),
                    Err(RecvError::Closed) => return,
                },
                one = states.recv() => match one {
                    Ok((id, state)) if state.has_ended() => ended.push(id),
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
                _ = tick.tick() => {
                    ticks = ticks.wrapping_add(1);
                    may_restart |= ticks.is_multiple_of(RESTART_TICKS);
                    self.request_judgements();
                }
                done = next_judgement(&mut self.judge) => judgement = Some(done),
                _ = stopping.changed() => return,
            }
            while let Ok(one) = news.try_recv() {
                if let News::Events(id) = one {
                    dirty.insert(id);
                }
            }
            if let Some(judgement) = judgement {
                self.handle_judgement(judgement).await;
            }
            let has_work = !dirty.is_empty();
            for id in std::mem::take(&mut dirty) {
                if let Err(problem) = self.observe_sandbox(id).await {
                    tracing::debug!(sandbox = %id, detail = %problem.detail, "the guardian failed to read events; will retry");
                }
            }
            for id in std::mem::take(&mut ended) {
                self.watched.remove(&id);
                may_restart = true;
            }
            if std::mem::take(&mut may_restart)
                && let Err(problem) = guardian::restart_sessions(&self.app).await
            {
                tracing::debug!(detail = %problem.detail, "failed to restart sessions; will retry");
            }
            if has_work {
                tokio::time::sleep(PASS_INTERVAL).await;
            }
        }
    }

    /// The sandboxes that may have unread events.
    async fn list_running(&self) -> HashSet<SandboxId> {
        let listed = self.app.read(async move |tx| {
            let (mut all, mut after) = (HashSet::new(), None);
            loop {
                let page = sandboxes::list_running_ids(tx, after, LIST_PAGE).await?;
                after = page.last().copied();
                let is_last = (page.len() as i64) < LIST_PAGE;
                all.extend(page);
                if is_last {
                    return Ok(all);
                }
            }
        });
        listed.await.unwrap_or_else(|problem| {
            tracing::warn!(detail = %problem.detail, "the guardian failed to list the running sandboxes");
            self.watched.keys().copied().collect()
        })
    }

    /// Observes the new events of a sandbox.
    async fn observe_sandbox(&mut self, id: SandboxId) -> Result<()> {
        if !self.watched.contains_key(&id) {
            match self.load_sandbox(id).await? {
                Some(loaded) => drop(self.watched.insert(id, loaded)),
                None => return Ok(()),
            }
        }
        loop {
            let Some(watched) = self.watched.get_mut(&id) else { return Ok(()) };
            let (log, from) = ((id, watched.session), watched.seq);
            let read = self.app.read(async move |tx| {
                let filter = EventLogFilter::default();
                Ok(events::read_event_page(tx, log, &filter, EventLogOrder::OldestFirst, from, PAGE_EVENTS).await?)
            });
            let page = read.await?;
            let now = self.app.clock.now();
            let mut step = WatchStep::default();
            for event in &page.events {
                let next = watched.observe(event, now);
                step.follow_ups.extend(next.follow_ups);
                step.decisions.extend(next.decisions);
            }
            self.record_step(id, step).await?;
            if page.next_cursor.is_none() {
                return Ok(());
            }
        }
    }

    /// Creates or restores the watch of a running sandbox with an agent.
    async fn load_sandbox(&mut self, id: SandboxId) -> Result<Option<WatchedSandbox>> {
        if self.unwatched.contains(&id) {
            return Ok(None);
        }
        let loaded = self.app.read(async move |tx| {
            let Some(row) = sandboxes::find_sandbox(tx, id).await? else { return Ok(None) };
            let past = interventions::list_of_sandbox(tx, id, MAX_PAST).await?;
            let goal = messages::list_messages(tx, row.session_id, None, -1, 1).await?.pop();
            let has_restarted = interventions::has_restarted(tx, row.session_id, id).await?;
            Ok(Some((row, past, goal.map(|message| message.content).unwrap_or_default(), has_restarted)))
        });
        let Some((row, past, goal, has_restarted)) = loaded.await? else { return Ok(None) };
        if row.agent.is_none() {
            if self.unwatched.len() >= MAX_UNWATCHED {
                self.unwatched.clear();
            }
            self.unwatched.insert(id);
            return Ok(None);
        }
        if row.state != SandboxState::Running {
            return Ok(None);
        }
        let settings = row.settings.guardian.clone().unwrap_or_default();
        let wants_judge = self.judge.is_some() && settings.judge == Some(true);
        let mut watch = new_watch(&self.app.config, &row, settings, has_restarted);
        watch.restore(&past.into_iter().map(to_past).collect::<Vec<_>>());
        let judged = wants_judge.then(|| JudgedAgent {
            digest: EventDigest::default(),
            goal,
            last: Instant::now(),
            is_waiting: false,
        });
        let seq = (row.last_seq - MAX_REBUILD_EVENTS).max(row.first_seq - 1);
        Ok(Some(WatchedSandbox { watch, session: row.session_id, project: row.project_id, seq, judged }))
    }

    /// Stores what follows from an event, and pauses the sandbox if the guardian chose so.
    async fn record_step(&self, id: SandboxId, step: WatchStep) -> Result<()> {
        if step.is_empty() {
            return Ok(());
        }
        let must_pause = self.app.write(async move |work| guardian::record_step(work, id, &step).await).await?;
        if must_pause {
            let app = Arc::clone(&self.app);
            // The provider may take its time, and other sandboxes must not wait.
            tokio::spawn(async move {
                if let Err(problem) = pause_running(app, id, Pauser::Guardian).await {
                    tracing::warn!(sandbox = %id, detail = %problem.detail, "the guardian failed to pause a sandbox");
                }
            });
        }
        Ok(())
    }

    /// Asks the judge about each agent that has worked since its last judgement.
    fn request_judgements(&mut self) {
        let Some(judge) = &mut self.judge else { return };
        for (id, watched) in &mut self.watched {
            let Some(agent) = &mut watched.judged else { continue };
            if agent.is_waiting || !agent.digest.has_news() || agent.last.elapsed() < judge.interval {
                continue;
            }
            let Some(permit) = judge.try_acquire() else { return };
            let (question, seqs) = agent.digest.take_question(&agent.goal);
            (agent.is_waiting, agent.last) = (true, Instant::now());
            let request = JudgeRequest { sandbox: *id, project: watched.project, question, seqs };
            judge.ask(&self.app, request, permit);
        }
    }

    async fn handle_judgement(&mut self, judgement: Judgement) {
        let Judgement { sandbox, seqs, outcome } = judgement;
        let report = outcome.report.clone();
        let result = if report.is_some() { "report" } else { "bad" };
        metrics::counter!(crate::metrics::JUDGEMENTS, "result" => result).increment(1);
        let stored = self.app.write(async move |work| guardian::record_judgement(work, sandbox, outcome).await).await;
        if let Err(problem) = stored {
            tracing::warn!(%sandbox, detail = %problem.detail, "failed to store a judgement");
        }
        let now = self.app.clock.now();
        let Some(watched) = self.watched.get_mut(&sandbox) else { return };
        if let Some(agent) = &mut watched.judged {
            agent.is_waiting = false;
        }
        let Some(finding) = report.and_then(|report| report.finding(&seqs)) else { return };
        let step = watched.watch.record_finding(finding, now);
        if let Err(problem) = self.record_step(sandbox, step).await {
            tracing::warn!(%sandbox, detail = %problem.detail, "failed to store a finding of the judge");
        }
    }
}

impl WatchedSandbox {
    fn observe(&mut self, event: &Event, now: Timestamp) -> WatchStep {
        self.seq = event.seq;
        if let Some(agent) = &mut self.judged {
            agent.digest.record(event);
        }
        if now.elapsed_since(event.received_at) > MAX_EVENT_AGE {
            self.watch.observe_past(event);
            return WatchStep::default();
        }
        self.watch.observe(event)
    }
}

fn to_past(row: InterventionRow) -> PastIntervention {
    PastIntervention {
        finding: row.finding,
        action: row.action,
        held_back: row.held_back,
        outcome: row.outcome,
        at: row.created_at,
    }
}

/// The next judgement that arrives; never without a judge.
async fn next_judgement(judge: &mut Option<Judge>) -> Judgement {
    match judge {
        Some(judge) => judge.next().await,
        None => std::future::pending().await,
    }
}
