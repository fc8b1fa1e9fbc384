//! Limits of an agent: the worker counts turns and time, the gateway counts money, and people raise them. A limit
//! warns, then holds the agent back, and never ends it.

use super::{Work, inbox};
use crate::problem::{Code, Problem, Result};
use atoll_core::budget::{Budget, Held, day_of};
use atoll_core::event::{NewEvent, Source, kind};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::limit::{self, Limit, WARNED_AT};
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::{Activity, AgentLimits, SandboxState, TurnState};
use atoll_core::time::Timestamp;
use atoll_protocol::frame::ServerFrame;
use atoll_store::budgets;
use atoll_store::sandboxes::{self, Sandbox};
use atoll_store::sessions::Session;
use serde::Deserialize;
use serde_json::{Value, json};

/// As much of a worker's events as is needed.
#[derive(Deserialize)]
struct Named {
    limit: Limit,
    #[serde(default)]
    value: f64,
    /// The agent has heard of it already.
    #[serde(default)]
    told: bool,
}

/// An event of a worker is about to be stored. What it says for the agent to hear is given back.
pub fn observed(sandbox: &mut Sandbox, event: &NewEvent) -> Option<inbox::Draft> {
    let named = || serde_json::from_str::<Named>(event.data.get()).ok();
    match event.event_type.as_str() {
        kind::LIMIT_WARNED => named().filter(|named| !named.told).map(|named| words(named.limit, named.value)),
        kind::LIMIT_PAUSED => {
            // A worker that stands still for money has no other limit to wait for, whatever it said on the way there.
            if let Some(named) = named().filter(|_| !sandbox.limit_paused.is_some_and(Limit::is_money)) {
                hold(sandbox, named.limit);
            }
            None
        }
        kind::LIMIT_RESUMED => {
            if named().is_some_and(|named| sandbox.limit_paused == Some(named.limit)) {
                release(sandbox);
            }
            None
        }
        _ => None,
    }
}

fn words(limit: Limit, value: f64) -> inbox::Draft {
    inbox::Draft {
        content: limit::warning(limit, value),
        message_type: MessageType::System,
        delivery: Delivery::Steer,
        sender: Some(limit::SENDER.to_owned()),
    }
}

fn hold(sandbox: &mut Sandbox, limit: Limit) {
    if sandbox.state == SandboxState::Running {
        sandbox.limit_paused = Some(limit);
        if sandbox.activity != Activity::Paused {
            sandbox.activity = Activity::LimitPaused;
        }
    }
}

fn release(sandbox: &mut Sandbox) {
    sandbox.limit_paused = None;
    if sandbox.activity == Activity::LimitPaused {
        sandbox.activity = match sandbox.turn_state {
            TurnState::Open => Activity::Working,
            TurnState::Idle | TurnState::Done => Activity::WaitingMessage,
        };
    }
}

/// Says something to the agent in its running turn. Both rows are written, and read again.
pub async fn say(work: &mut Work<'_>, session: &mut Session, sandbox: &mut Sandbox, draft: inbox::Draft) -> Result<()> {
    sandboxes::update(work.tx, sandbox).await?;
    if sandbox.state != SandboxState::Running || session.sandbox_id != Some(sandbox.id) {
        return Ok(());
    }
    inbox::queue(work, session, draft).await?;
    *sandbox = sandboxes::get(work.tx, sandbox.id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
    Ok(())
}

/// Models have cost more: most of the limit may be used by it. The caller has written the row.
pub async fn costs(work: &mut Work<'_>, session: &mut Session, sandbox: &mut Sandbox, before: i64) -> Result<()> {
    let Some(value) = sandbox.settings.limits.and_then(|limits| limits.cost_usd) else { return Ok(()) };
    let warned_at = value * WARNED_AT * 1e6;
    let is_over = |micros: i64| micros as f64 >= warned_at;
    if is_over(before) || !is_over(sandbox.cost_model_micros) {
        return Ok(());
    }
    let used = sandbox.cost_model_micros as f64 / 1e6;
    let data = json!({ "limit": Limit::CostUsd, "value": value, "used": used, "told": false });
    let event = NewEvent::system(kind::LIMIT_WARNED, work.now, &data);
    work.log(sandbox, vec![event]).await?;
    say(work, session, sandbox, words(Limit::CostUsd, value)).await
}

/// A request to a model was refused, since it could cost more than is left. The caller writes the row.
pub async fn spent_out(work: &mut Work<'_>, sandbox: &mut Sandbox) -> Result<()> {
    let Some(value) = sandbox.settings.limits.and_then(|limits| limits.cost_usd) else { return Ok(()) };
    if sandbox.state != SandboxState::Running || sandbox.limit_paused == Some(Limit::CostUsd) {
        return Ok(());
    }
    hold(sandbox, Limit::CostUsd);
    let used = sandbox.cost_model_micros as f64 / 1e6;
    let data = json!({ "limit": Limit::CostUsd, "value": value, "used": used });
    let event = NewEvent::system(kind::LIMIT_PAUSED, work.now, &data);
    work.log(sandbox, vec![event]).await?;
    work.out.states.push((sandbox.id, sandbox.state));
    Ok(())
}

/// What a request has cost a project, and when.
#[derive(Debug, Clone, Copy)]
pub struct Shared {
    pub micros: i64,
    pub at: Timestamp,
    pub budget: Option<Budget>,
}

/// Models have cost a project more: most of its budget may be used by it. The caller has written both rows.
pub async fn project_costs(
    work: &mut Work<'_>,
    session: &mut Session,
    sandbox: &mut Sandbox,
    cost: &Shared,
) -> Result<()> {
    let project = sandbox.project_id;
    budgets::add_cost(work.tx, project, day_of(cost.at), cost.micros).await?;
    let Some(budget) = cost.budget else { return Ok(()) };
    let period = budget.per.period(cost.at);
    let spent = budgets::spent(work.tx, project, &period).await?;
    let is_over = |micros: i64| micros as f64 >= budget.micros() as f64 * WARNED_AT;
    if is_over(spent.saturating_sub(cost.micros)) || !is_over(spent) {
        return Ok(());
    }
    let mut data = of_project(&Held::by(&budget, cost.at), spent, period.until(), project);
    data["told"] = false.into();
    work.log(sandbox, vec![NewEvent::system(kind::LIMIT_WARNED, work.now, &data)]).await?;
    say(work, session, sandbox, words(Limit::ProjectBudget, budget.usd)).await
}

fn of_project(held: &Held, spent: i64, until: Option<Timestamp>, project: ProjectId) -> Value {
    let (value, used) = (held.micros as f64 / 1e6, spent as f64 / 1e6);
    json!({ "limit": Limit::ProjectBudget, "value": value, "used": used, "per": held.per, "until": until,
            "project_id": project })
}

/// A request to a model was refused, since it could cost more than its project has left. The caller writes the row.
pub async fn project_spent_out(
    work: &mut Work<'_>,
    sandbox: &mut Sandbox,
    held: &Held,
    spent: i64,
    until: Option<Timestamp>,
) -> Result<()> {
    if sandbox.state != SandboxState::Running {
        return Ok(());
    }
    budgets::hold(work.tx, sandbox.id, held).await?;
    if sandbox.limit_paused == Some(Limit::ProjectBudget) {
        return Ok(());
    }
    hold(sandbox, Limit::ProjectBudget);
    let data = of_project(held, spent, until, sandbox.project_id);
    work.log(sandbox, vec![NewEvent::system(kind::LIMIT_PAUSED, work.now, &data)]).await?;
    work.out.states.push((sandbox.id, sandbox.state));
    Ok(())
}

/// A project has more to spend than when this agent was held back.
pub async fn project_has_more(work: &mut Work<'_>, id: SandboxId, held: &Held) -> Result<()> {
    let (_, mut sandbox) = work.locked(id).await?;
    // It may have gone on, and be held back anew, since somebody looked.
    if budgets::held(work.tx, id).await?.as_ref() != Some(held) {
        return Ok(());
    }
    budgets::release(work.tx, id).await?;
    if sandbox.limit_paused != Some(Limit::ProjectBudget) {
        return Ok(());
    }
    release(&mut sandbox);
    let event = NewEvent::system(kind::LIMIT_RESUMED, work.now, &json!({ "limit": Limit::ProjectBudget }));
    work.log(&mut sandbox, vec![event]).await?;
    sandbox.updated_at = work.now;
    sandboxes::update(work.tx, &mut sandbox).await?;
    work.out.states.push((sandbox.id, sandbox.state));
    Ok(())
}

/// What is left as it is, taken away, or set.
#[derive(Debug, Default)]
pub struct Change {
    pub turns: Option<Option<u32>>,
    pub cost_usd: Option<Option<f64>>,
    pub turn_s: Option<Option<u32>>,
    pub no_progress_s: Option<Option<u32>>,
}

impl Change {
    fn applied_to(&self, now: AgentLimits) -> AgentLimits {
        AgentLimits {
            turns: self.turns.unwrap_or(now.turns),
            cost_usd: self.cost_usd.unwrap_or(now.cost_usd),
            turn_s: self.turn_s.unwrap_or(now.turn_s),
            no_progress_s: self.no_progress_s.unwrap_or(now.no_progress_s),
        }
    }
}

/// A person changes the limits of a living sandbox. An agent that is held back by one that is raised goes on.
pub async fn change(work: &mut Work<'_>, id: SandboxId, change: &Change, actor: String) -> Result<Sandbox> {
    let (_, mut sandbox) = work.locked(id).await?;
    if sandbox.state.has_ended() {
        return Err(Problem::new(Code::SandboxEnded, "its agent uses nothing any more"));
    }
    let before = sandbox.settings.limits.unwrap_or_default();
    let after = change.applied_to(before);
    after.check("limits")?;
    if before == after {
        return Ok(sandbox);
    }
    sandbox.settings.limits = Some(after);
    sandboxes::set_settings(work.tx, &sandbox).await?;
    let changed = NewEvent::system(kind::LIMIT_CHANGED, work.now, &json!({ "before": before, "limits": after }));
    let mut events = vec![changed.by(Source::User, Some(actor))];
    // Of the others the worker says when they have room again.
    if sandbox.limit_paused == Some(Limit::CostUsd) && after.cost_usd.is_none_or(|now| before.cost_usd < Some(now)) {
        release(&mut sandbox);
        events.push(NewEvent::system(kind::LIMIT_RESUMED, work.now, &json!({ "limit": Limit::CostUsd })));
    }
    work.log(&mut sandbox, events).await?;
    sandbox.updated_at = work.now;
    sandboxes::update(work.tx, &mut sandbox).await?;
    work.out.states.push((sandbox.id, sandbox.state));
    Ok(sandbox)
}

/// What a worker has to know. Money is counted here, so the word to hold the agent back is the server's.
pub fn frame(sandbox: &Sandbox) -> ServerFrame {
    ServerFrame::Limits {
        limits: sandbox.settings.limits.unwrap_or_default(),
        // For the agent it is one thing whose money it is.
        held: sandbox.limit_paused.filter(|limit| limit.is_money()).map(|_| Limit::CostUsd),
    }
}
