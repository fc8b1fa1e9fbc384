//! Limits carried out: the agent is told, stands still, and goes on. It is never ended for a limit.

use super::Executor;
use super::limits::Step;
use crate::driver::Standing;
use crate::input::Item;
use atoll_core::event::{Source, kind};
use atoll_core::json::raw;
use atoll_core::limit::{Limit, warning};
use atoll_core::sandbox::{Activity, AgentLimits};
use serde_json::json;
use tokio::time::Instant;

impl Executor {
    /// A person may have raised them, or the server holds the agent back.
    pub(super) fn set_limits(&mut self, limits: AgentLimits, held: Option<Limit>) {
        self.limits.set(limits, held);
    }

    pub(super) fn heed_limits(&mut self, now: Instant) {
        self.limits.waits(self.waits_for_person(), now);
        while let Some(step) = self.limits.step(self.talk.turn(), self.talk.wants_turn(), now) {
            let turn = self.turn();
            match step {
                Step::Warn { limit, value, used } => {
                    let data = json!({"limit": limit, "value": value, "used": rounded(used), "told": false});
                    self.emit_by(Source::Worker, kind::LIMIT_WARNED, turn, raw(&data));
                }
                Step::Pause { limit, value, used } => {
                    self.hold_agent(true);
                    // What the server counts, it has told itself.
                    if limit != Limit::CostUsd {
                        let data = json!({"limit": limit, "value": value, "used": rounded(used)});
                        self.emit_by(Source::Worker, kind::LIMIT_PAUSED, turn, raw(&data));
                    }
                    self.outgoing.push(Item::Activity(Activity::LimitPaused));
                }
                Step::GoOn { limit } => {
                    self.hold_agent(false);
                    if limit != Limit::CostUsd {
                        self.emit_by(Source::Worker, kind::LIMIT_RESUMED, turn, raw(&json!({"limit": limit})));
                    }
                    let activity = match self.talk.standing() {
                        Standing::InTurn if self.waits_for_person() => Activity::WaitingApproval,
                        Standing::InTurn => Activity::Working,
                        Standing::Idle => Activity::WaitingMessage,
                    };
                    self.outgoing.push(Item::Activity(activity));
                }
            }
        }
    }

    /// The last turn says so in its first words: a message beside them could come too late, and begin yet another one.
    pub(super) fn note_last_turn(&mut self) {
        let Some(value) = self.limits.turns().filter(|_| self.limits.is_last(self.talk.turn())) else { return };
        let data = json!({"limit": Limit::Turns, "value": value, "used": self.talk.turn() + 1, "told": true});
        self.emit_by(Source::Worker, kind::LIMIT_WARNED, self.turn(), raw(&data));
        self.note = Some(warning(Limit::Turns, value));
    }

    pub(super) fn hold_agent(&self, still: bool) {
        if let Some(agent) = &self.agent {
            agent.hold(still);
        }
    }
}

/// To the millisecond: more says nothing.
fn rounded(figure: f64) -> f64 {
    (figure * 1000.0).round() / 1000.0
}
