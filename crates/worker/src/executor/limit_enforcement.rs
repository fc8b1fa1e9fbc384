//! Enforces limits: warns and pauses the agent, never kills it.

use super::Executor;
use super::limit_tracker::LimitStep;
use atoll_api::events::{EventData, LimitResumed, LimitUse};
use atoll_core::limit::{Limit, warning_message};
use atoll_core::sandbox::Activity;
use atoll_dispatcher::program::input::Item;
use atoll_drivers::AgentTurn;
use tokio::time::Instant;

impl Executor {
    pub(super) fn enforce_limits(&mut self, now: Instant) {
        self.limits.set_waiting(self.is_waiting_for_person(), now);
        while let Some(step) = self.limits.next_step(self.conversation.turn(), self.conversation.wants_turn(), now) {
            match step {
                LimitStep::Warn { limit, value, used } => {
                    self.emit_worker_event(&EventData::LimitWarned(limit_use(limit, value, used, Some(false))));
                }
                LimitStep::Pause { limit, value, used } => {
                    self.set_agent_paused(true);
                    // The server reports the limits that it counts.
                    if limit != Limit::CostUsd {
                        self.emit_worker_event(&EventData::LimitPaused(limit_use(limit, value, used, None)));
                    }
                    self.outgoing.push(Item::Activity(Activity::LimitPaused));
                }
                LimitStep::Resume { limit } => {
                    self.set_agent_paused(false);
                    if limit != Limit::CostUsd {
                        self.emit_worker_event(&EventData::LimitResumed(LimitResumed { limit }));
                    }
                    let activity = match self.conversation.turn_state() {
                        AgentTurn::InTurn if self.is_waiting_for_person() => Activity::WaitingApproval,
                        AgentTurn::InTurn => Activity::Working,
                        AgentTurn::Idle => Activity::WaitingMessage,
                    };
                    self.outgoing.push(Item::Activity(activity));
                }
            }
        }
    }

    /// Notes in the prompt that this is the last turn: a separate message could come late and begin another turn.
    pub(super) fn note_last_turn(&mut self) {
        let Some(value) = self.limits.max_turns().filter(|_| self.limits.is_last_turn(self.conversation.turn())) else {
            return;
        };
        #[allow(clippy::cast_precision_loss, reason = "turns are few")]
        let used = (self.conversation.turn() + 1) as f64;
        self.emit_worker_event(&EventData::LimitWarned(limit_use(Limit::Turns, value, used, Some(true))));
        self.next_turn.note = Some(warning_message(Limit::Turns, value));
    }

    fn set_agent_paused(&self, paused: bool) {
        if let Some(agent) = &self.agent.process {
            agent.set_paused(paused);
        }
    }
}

/// Rounds `used` to three decimals.
fn limit_use(limit: Limit, value: f64, used: f64, agent_informed: Option<bool>) -> LimitUse {
    LimitUse {
        limit,
        value,
        used: (used * 1000.0).round() / 1000.0,
        agent_informed,
        per: None,
        until: None,
        project_id: None,
    }
}
