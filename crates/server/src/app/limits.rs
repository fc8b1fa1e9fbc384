//! Agent limits: the worker counts turns and time, the gateway counts cost, and people raise limits. A limit warns, then
//! pauses the agent; it never ends it.

use super::targets::load_sandbox;
use super::views::load_limits_view;
use super::{Work, inbox};
use crate::auth::access::{CanSee, CanWork};
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::events::{EventData, LimitChanged, LimitResumed, LimitUse};
use atoll_api::{ChangeLimits, SandboxLimits};
use atoll_core::agent_status::Signal;
use atoll_core::budget::{Budget, BudgetPause, day_number};
use atoll_core::event::{EventSource, NewEvent, kind};
use atoll_core::id::{MessageId, ProjectId, SandboxId};
use atoll_core::limit::{self, Limit, WARNING_FRACTION};
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::{AgentLimits, SandboxState};
use atoll_core::time::Timestamp;
use atoll_protocol::frame::ServerFrame;
use atoll_store::budgets;
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::SessionRow;

/// Applies a worker's limit event to the row. Returns a warning to send to the agent, if any.
pub fn observe_event(sandbox: &mut SandboxRow, event: &NewEvent) -> Option<inbox::MessageDraft> {
    let data = event.data.get();
    let named = || serde_json::from_str::<LimitUse>(data).ok();
    match event.event_type.as_str() {
        kind::LIMIT_WARNED => named()
            .filter(|named| named.agent_informed != Some(true))
            .map(|named| warning_draft(named.limit, named.value)),
        kind::LIMIT_PAUSED => {
            // A cost limit takes precedence over the limits that the worker reports.
            if let Some(named) = named().filter(|_| !sandbox.status.pausing_limit().is_some_and(Limit::is_money)) {
                sandbox.apply_signal(Signal::LimitReached(named.limit));
            }
            None
        }
        kind::LIMIT_RESUMED => {
            if let Ok(LimitResumed { limit }) = serde_json::from_str(data) {
                sandbox.apply_signal(Signal::LimitRaised(limit));
            }
            None
        }
        _ => None,
    }
}

fn warning_draft(limit: Limit, value: f64) -> inbox::MessageDraft {
    inbox::MessageDraft {
        content: limit::warning_message(limit, value),
        message_type: MessageType::System,
        delivery: Delivery::Steer,
        sender: Some(limit::LIMITS_SENDER.to_owned()),
    }
}

/// Queues a message for the running agent and returns its id. Writes both rows and reads the sandbox again.
pub async fn notify_agent(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    draft: inbox::MessageDraft,
) -> Result<Option<MessageId>> {
    sandboxes::update_sandbox(work.tx, sandbox).await?;
    if sandbox.state != SandboxState::Running || session.sandbox_id != Some(sandbox.id) {
        return Ok(None);
    }
    let message = inbox::queue_message(work, session, draft).await?;
    *sandbox = sandboxes::find_sandbox(work.tx, sandbox.id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
    Ok(Some(message.id))
}

/// Warns the agent when the cost passes most of its limit. The caller has written the row.
pub async fn warn_at_cost(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    before: i64,
) -> Result<()> {
    let Some(value) = sandbox.settings.limits.and_then(|limits| limits.cost_usd) else { return Ok(()) };
    let warned_at = value * WARNING_FRACTION * 1e6;
    let is_over = |micros: i64| micros as f64 >= warned_at;
    if is_over(before) || !is_over(sandbox.cost_model_micros) {
        return Ok(());
    }
    let used = sandbox.cost_model_micros as f64 / 1e6;
    let warned = LimitUse { agent_informed: Some(false), ..limit_use(Limit::CostUsd, value, used) };
    work.log(sandbox, vec![EventData::LimitWarned(warned).into_event(work.now)]).await?;
    notify_agent(work, session, sandbox, warning_draft(Limit::CostUsd, value)).await.map(drop)
}

/// Pauses the agent after the gateway refused a request that could exceed the cost limit. The caller writes the row.
pub async fn pause_at_cost_limit(work: &mut Work<'_>, sandbox: &mut SandboxRow) -> Result<()> {
    let Some(value) = sandbox.settings.limits.and_then(|limits| limits.cost_usd) else { return Ok(()) };
    if sandbox.state != SandboxState::Running || sandbox.status.pausing_limit() == Some(Limit::CostUsd) {
        return Ok(());
    }
    sandbox.apply_signal(Signal::LimitReached(Limit::CostUsd));
    let used = sandbox.cost_model_micros as f64 / 1e6;
    let paused = EventData::LimitPaused(limit_use(Limit::CostUsd, value, used));
    work.log(sandbox, vec![paused.into_event(work.now)]).await?;
    work.out.states.push((sandbox.id, sandbox.state));
    Ok(())
}

/// The cost of one model request for a project.
#[derive(Debug, Clone, Copy)]
pub struct ProjectCharge {
    pub micros: i64,
    pub at: Timestamp,
    pub budget: Option<Budget>,
}

/// Adds a request's cost to the project and warns the agent when most of the budget is spent. The caller has written both
/// rows.
pub async fn charge_project(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    cost: &ProjectCharge,
) -> Result<()> {
    let project = sandbox.project_id;
    budgets::add_cost(work.tx, project, day_number(cost.at), cost.micros).await?;
    let Some(budget) = cost.budget else { return Ok(()) };
    let period = budget.per.period_at(cost.at);
    let spent = budgets::sum_costs(work.tx, project, &period).await?;
    let is_over = |micros: i64| micros as f64 >= budget.limit_micros() as f64 * WARNING_FRACTION;
    if is_over(spent.saturating_sub(cost.micros)) || !is_over(spent) {
        return Ok(());
    }
    let used = budget_use(&BudgetPause::from_budget(&budget, cost.at), spent, period.ends_at(), project);
    let warned = EventData::LimitWarned(LimitUse { agent_informed: Some(false), ..used });
    work.log(sandbox, vec![warned.into_event(work.now)]).await?;
    notify_agent(work, session, sandbox, warning_draft(Limit::ProjectBudget, budget.usd)).await.map(drop)
}

const fn limit_use(limit: Limit, value: f64, used: f64) -> LimitUse {
    LimitUse { limit, value, used, agent_informed: None, per: None, until: None, project_id: None }
}

fn budget_use(pause: &BudgetPause, spent: i64, until: Option<Timestamp>, project: ProjectId) -> LimitUse {
    let (value, used) = (pause.micros as f64 / 1e6, spent as f64 / 1e6);
    let (per, project_id) = (Some(pause.per), Some(project));
    LimitUse { per, until, project_id, ..limit_use(Limit::ProjectBudget, value, used) }
}

/// Pauses the agent after the gateway refused a request that could exceed the project's budget. The caller writes the row.
pub async fn pause_at_project_budget(
    work: &mut Work<'_>,
    sandbox: &mut SandboxRow,
    pause: &BudgetPause,
    spent: i64,
    until: Option<Timestamp>,
) -> Result<()> {
    if sandbox.state != SandboxState::Running {
        return Ok(());
    }
    budgets::record_budget_pause(work.tx, sandbox.id, pause).await?;
    if sandbox.status.pausing_limit() == Some(Limit::ProjectBudget) {
        return Ok(());
    }
    sandbox.apply_signal(Signal::LimitReached(Limit::ProjectBudget));
    let paused = EventData::LimitPaused(budget_use(pause, spent, until, sandbox.project_id));
    work.log(sandbox, vec![paused.into_event(work.now)]).await?;
    work.out.states.push((sandbox.id, sandbox.state));
    Ok(())
}

/// Resumes an agent whose project has budget again.
pub async fn resume_after_budget(work: &mut Work<'_>, id: SandboxId, pause: &BudgetPause) -> Result<()> {
    let (_, mut sandbox) = work.lock_sandbox(id).await?;
    // The agent may have resumed and been paused again since the caller read the row.
    if budgets::find_budget_pause(work.tx, id).await?.as_ref() != Some(pause) {
        return Ok(());
    }
    budgets::delete_budget_pause(work.tx, id).await?;
    if sandbox.status.pausing_limit() != Some(Limit::ProjectBudget) {
        return Ok(());
    }
    sandbox.apply_signal(Signal::LimitRaised(Limit::ProjectBudget));
    let event = EventData::LimitResumed(LimitResumed { limit: Limit::ProjectBudget }).into_event(work.now);
    work.log(&mut sandbox, vec![event]).await?;
    sandbox.updated_at = work.now;
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    work.out.states.push((sandbox.id, sandbox.state));
    Ok(())
}

/// A change of limits: absent keeps a value, `Some(None)` removes it.
#[derive(Debug, Default)]
pub struct LimitsChange {
    pub turns: Option<Option<u32>>,
    pub cost_usd: Option<Option<f64>>,
    pub turn_s: Option<Option<u32>>,
    pub no_progress_s: Option<Option<u32>>,
}

impl LimitsChange {
    fn apply_to(&self, now: AgentLimits) -> AgentLimits {
        AgentLimits {
            turns: self.turns.unwrap_or(now.turns),
            cost_usd: self.cost_usd.unwrap_or(now.cost_usd),
            turn_s: self.turn_s.unwrap_or(now.turn_s),
            no_progress_s: self.no_progress_s.unwrap_or(now.no_progress_s),
        }
    }
}

/// Changes the limits of a live sandbox. Raising the limit that pauses the agent resumes it.
pub async fn change_limits(
    work: &mut Work<'_>,
    id: SandboxId,
    change: &LimitsChange,
    actor: String,
) -> Result<SandboxRow> {
    let (_, mut sandbox) = work.lock_sandbox(id).await?;
    if sandbox.state.has_ended() {
        return Err(Problem::new(Code::SandboxEnded, "the sandbox has ended, so its limits no longer apply"));
    }
    let before = sandbox.settings.limits.unwrap_or_default();
    let after = change.apply_to(before);
    after.check_bounds("limits")?;
    if before == after {
        return Ok(sandbox);
    }
    sandbox.settings.limits = Some(after);
    sandboxes::update_settings(work.tx, &sandbox).await?;
    let changed = EventData::LimitChanged(LimitChanged { before, limits: after }).into_event(work.now);
    let mut events = vec![changed.with_source(EventSource::User, Some(actor))];
    // The worker reports when the other limits have room again.
    if sandbox.status.pausing_limit() == Some(Limit::CostUsd)
        && after.cost_usd.is_none_or(|now| before.cost_usd < Some(now))
    {
        sandbox.apply_signal(Signal::LimitRaised(Limit::CostUsd));
        events.push(EventData::LimitResumed(LimitResumed { limit: Limit::CostUsd }).into_event(work.now));
    }
    work.log(&mut sandbox, events).await?;
    sandbox.updated_at = work.now;
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    work.out.states.push((sandbox.id, sandbox.state));
    Ok(sandbox)
}

/// The frame that tells a worker its limits. The server counts cost, so it also tells the worker to pause for it.
pub fn limits_frame(sandbox: &SandboxRow) -> ServerFrame {
    ServerFrame::Limits {
        limits: sandbox.settings.limits.unwrap_or_default(),
        // The worker does not distinguish the sandbox's limit from the project's budget.
        held: sandbox.status.pausing_limit().filter(|limit| limit.is_money()).map(|_| Limit::CostUsd),
    }
}

pub async fn read_limits(app: &App, access: CanSee<SandboxId>) -> Result<SandboxLimits> {
    let row = load_sandbox(app, &access).await?;
    app.read(async move |tx| load_limits_view(tx, &row).await).await
}

/// Changes the limits and tells the gateway, which caches the cost limit.
pub async fn submit_change(
    app: &App,
    access: CanWork<SandboxId>,
    key: IdempotencyKey,
    change: ChangeLimits,
) -> Result<JsonResponse> {
    let ChangeLimits { turns, cost_usd, turn_s, no_progress_s } = change;
    let change = LimitsChange { turns, cost_usd, turn_s, no_progress_s };
    let (id, actor) = (access.id, access.actor());
    let changed = app.write_once(&access.caller, key, async move |work| {
        let row = change_limits(work, id, &change, actor).await?;
        JsonResponse::ok(load_limits_view(work.tx, &row).await?)
    });
    let response = changed.await?;
    if let Ok(row) = load_sandbox(app, &access).await {
        app.gateway.update_limits(id, &row.settings.limits.unwrap_or_default());
    }
    Ok(response)
}
