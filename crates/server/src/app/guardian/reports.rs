//! What people see of the guardian: interventions, its state for a sandbox, and the replay of a log.

use crate::app::targets::load_sandbox;
use crate::app::views::{cut_page, to_dollars};
use crate::auth::access::{CanList, CanSee};
use crate::cursor::decode_id;
use crate::extract::page_size;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_api::{
    DetectorStatus, GuardianReplay, GuardianStatus, Intervention, InterventionListQuery, JudgeStatus, Page, PageQuery,
    ReplayGuardian, ReplayStep,
};
use atoll_config::Config;
use atoll_core::guardian::{
    Decision, GuardianAction, GuardianSettings, GuardianWatch, PolicyRules, WatchStep, WatchedTask, escalation_text,
    nudge_text,
};
use atoll_core::id::{InterventionId, SandboxId};
use atoll_core::time::Timestamp;
use atoll_store::events::{self, EventLogFilter, EventLogOrder};
use atoll_store::interventions::{self, InterventionFilter, InterventionRow};
use atoll_store::judgements::{self, JudgementRow};
use atoll_store::sandboxes::SandboxRow;

/// Events that a watch reads of an existing log, for its detectors.
pub const MAX_REBUILD_EVENTS: i64 = 5000;
/// Bounds of a replay.
const MAX_REPLAY_EVENTS: u64 = 200_000;
const MAX_REPLAY_STEPS: usize = 1000;
const REPLAY_PAGE: usize = 1000;

/// True if the agent asks before every tool.
fn asks_before_tools(agent: &str) -> bool {
    atoll_drivers::create_driver(agent).is_some_and(|driver| driver.abilities().hooks)
}

/// A watch for a sandbox, with these settings. A session is restarted once at most: a second time would hardly help.
pub fn new_watch(
    config: &Config,
    sandbox: &SandboxRow,
    settings: GuardianSettings,
    has_restarted: bool,
) -> GuardianWatch {
    let delivers = sandbox.settings.repo.is_some() && sandbox.settings.deliver != Some(false);
    let rules = PolicyRules {
        can_deny: sandbox.agent.as_deref().is_some_and(asks_before_tools),
        can_restart: delivers && !has_restarted,
        ..config.guardian.policy_rules()
    };
    let mut own = sandbox.settings.clone();
    own.guardian = Some(settings.clone());
    GuardianWatch::new(settings, config.guardian.thresholds(), rules, WatchedTask::from_settings(&own))
}

pub async fn list_all(app: &App, access: CanList, query: InterventionListQuery) -> Result<Page<Intervention>> {
    let filter = InterventionFilter {
        visible_projects: access.projects.as_filter(),
        project: query.project,
        sandbox: None,
        detector: query.detector,
        action: query.action,
        is_open: query.open,
    };
    list_page(app, filter, query.limit, query.cursor).await
}

pub async fn list_of_sandbox(app: &App, access: CanSee<SandboxId>, query: PageQuery) -> Result<Page<Intervention>> {
    let filter = InterventionFilter { sandbox: Some(access.id), ..InterventionFilter::default() };
    list_page(app, filter, query.limit, query.cursor).await
}

async fn list_page(
    app: &App,
    filter: InterventionFilter,
    limit: Option<i64>,
    cursor: Option<String>,
) -> Result<Page<Intervention>> {
    let limit = page_size(limit, 50, 200)?;
    let before = decode_id::<InterventionId>("interventions", cursor.as_deref())?;
    app.read(async move |tx| {
        let rows = interventions::list_interventions(tx, &filter, before.as_deref(), limit + 1).await?;
        let page = cut_page("interventions", rows, limit, |row| row.id.to_string());
        Ok(Page { items: page.items.into_iter().map(view_intervention).collect(), next_cursor: page.next_cursor })
    })
    .await
}

pub async fn read_intervention(app: &App, access: CanSee<InterventionId>) -> Result<Intervention> {
    let row = app.read(async move |tx| Ok(interventions::find_intervention(tx, access.id).await?)).await?;
    row.map(view_intervention).ok_or_else(|| Problem::not_found("intervention"))
}

fn view_intervention(row: InterventionRow) -> Intervention {
    let summary = escalation_text(&row.finding);
    Intervention {
        id: row.id,
        sandbox_id: row.sandbox_id,
        session_id: row.session_id,
        project_id: row.project_id,
        detector: row.finding.detector,
        summary,
        evidence: row.finding.evidence,
        seq: row.finding.seq,
        tool: row.finding.tool,
        path: row.finding.path,
        times: row.finding.times,
        action: row.action,
        held_back: row.held_back,
        text: row.text,
        message_id: row.message_id,
        outcome: row.outcome,
        outcome_seq: row.outcome_seq,
        next_sandbox_id: row.next_sandbox_id,
        created_at: row.created_at,
        updated_at: row.updated_at,
    }
}

/// The detectors' counts, from the newest events of the log.
pub async fn read_status(app: &App, access: CanSee<SandboxId>) -> Result<GuardianStatus> {
    let sandbox = load_sandbox(app, &access).await?;
    let settings = sandbox.settings.guardian.clone().unwrap_or_default();
    let mut watch = new_watch(&app.config, &sandbox, settings.clone(), false);
    let mut seq = (sandbox.last_seq - MAX_REBUILD_EVENTS).max(sandbox.first_seq - 1);
    while let Some(page) = read_page(app, &sandbox, &mut seq).await? {
        page.iter().for_each(|event| watch.observe_past(event));
    }
    let id = sandbox.id;
    let judged = app.read(async move |tx| Ok(judgements::find_judgements(tx, id).await?)).await?;
    let has_judge = settings.judge == Some(true) && app.config.guardian.judge_model.is_some();
    let detectors = watch.progress().into_iter().map(|progress| DetectorStatus {
        detector: progress.detector,
        act: settings.strongest_action(progress.detector),
        count: progress.count,
        at: progress.threshold,
    });
    Ok(GuardianStatus {
        sandbox_id: id,
        act: settings.act.unwrap_or(GuardianAction::Observe),
        detectors: detectors.collect(),
        judge: judged.or_else(|| has_judge.then(JudgementRow::default)).map(view_judge),
    })
}

fn view_judge(row: JudgementRow) -> JudgeStatus {
    let count = |number: i64| u64::try_from(number).unwrap_or(0);
    JudgeStatus {
        requests: count(row.requests),
        bad_responses: count(row.bad_responses),
        input_tokens: count(row.input),
        output_tokens: count(row.output),
        cost_usd: to_dollars(row.cost_micros),
        report: row.report,
        judged_at: row.judged_at,
    }
}

/// Replays the stored log with other settings. The judge takes no part: its responses were to other questions.
pub async fn replay_log(app: &App, access: CanSee<SandboxId>, request: ReplayGuardian) -> Result<GuardianReplay> {
    let sandbox = load_sandbox(app, &access).await?;
    if let Some(settings) = &request.guardian {
        settings.check_bounds("guardian")?;
    }
    let settings = request.guardian.or_else(|| sandbox.settings.guardian.clone()).unwrap_or_default();
    let (session, id) = (sandbox.session_id, sandbox.id);
    let restarted = app.read(async move |tx| Ok(interventions::has_restarted(tx, session, id).await?)).await?;
    let mut watch = new_watch(&app.config, &sandbox, settings, restarted);
    let mut replay = GuardianReplay { sandbox_id: sandbox.id, events: 0, truncated: false, steps: Vec::new() };
    let mut seq = sandbox.first_seq - 1;
    while let Some(page) = read_page(app, &sandbox, &mut seq).await? {
        for event in page {
            replay.events += 1;
            add_steps(&mut replay.steps, watch.observe(&event), event.received_at);
        }
        if replay.events >= MAX_REPLAY_EVENTS || replay.steps.len() >= MAX_REPLAY_STEPS {
            replay.truncated = true;
            break;
        }
    }
    replay.steps.truncate(MAX_REPLAY_STEPS);
    Ok(replay)
}

/// The events after `seq`, which it advances; `None` at the end.
async fn read_page(app: &App, sandbox: &SandboxRow, seq: &mut i64) -> Result<Option<Vec<atoll_core::event::Event>>> {
    let (log, from) = ((sandbox.id, sandbox.session_id), *seq);
    let read = app.read(async move |tx| {
        let filter = EventLogFilter::default();
        Ok(events::read_event_page(tx, log, &filter, EventLogOrder::OldestFirst, from, REPLAY_PAGE).await?)
    });
    let page = read.await?.events;
    if let Some(last) = page.last() {
        *seq = last.seq;
    }
    Ok(Some(page).filter(|page| !page.is_empty()))
}

fn add_steps(steps: &mut Vec<ReplayStep>, step: WatchStep, at: Timestamp) {
    for follow_up in step.follow_ups {
        let is_meant = |one: &&mut ReplayStep| one.detector == follow_up.detector && one.seq == follow_up.seq;
        if let Some(one) = steps.iter_mut().rev().find(is_meant) {
            (one.outcome, one.outcome_seq) = (Some(follow_up.outcome), Some(follow_up.shown_by));
        }
    }
    for Decision { finding, action, held_back } in step.decisions {
        let text = match action {
            GuardianAction::Nudge | GuardianAction::Deny | GuardianAction::Interrupt => Some(nudge_text(&finding)),
            GuardianAction::Observe | GuardianAction::Escalate | GuardianAction::Pause | GuardianAction::Restart => {
                None
            }
        };
        steps.push(ReplayStep {
            seq: finding.seq,
            at,
            detector: finding.detector,
            summary: escalation_text(&finding),
            evidence: finding.evidence,
            action,
            held_back,
            text,
            outcome: None,
            outcome_seq: None,
        });
    }
}
