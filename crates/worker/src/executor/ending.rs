//! How things end: a turn that is broken off, an agent that dies, a worker that goes.

use super::agent::Agent;
use super::{Executor, failure};
use crate::driver::Standing;
use crate::hands::Ending;
use crate::input::Item;
use atoll_core::event::kind;
use atoll_core::json::raw;
use atoll_core::message::How;
use atoll_protocol::LeasedMessage;
use rustix::process::Signal;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// For an agent to follow an interrupt.
const OBEY: Duration = Duration::from_secs(5);
/// For one that did not, and was sent a signal.
const AFTER_SIGNAL: Duration = Duration::from_secs(2);
/// For the tool under way when the worker was told to go.
const TOOL: Duration = Duration::from_secs(10);
/// Between a polite end and the other one.
const POLITE: Duration = Duration::from_secs(1);
/// How much of an interrupt's words is told.
const TEXT: usize = 32 << 10;

/// An interrupt that the agent has been told, and how firm one has become since.
#[derive(Debug)]
pub(super) struct Interrupt {
    message: LeasedMessage,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Asked { until: Instant },
    Signalled { until: Instant },
    Killed,
}

impl Interrupt {
    pub(super) fn new(message: LeasedMessage) -> Self {
        Self { message, stage: Stage::Asked { until: Instant::now() + OBEY } }
    }

    pub(super) const fn until(&self) -> Option<Instant> {
        match self.stage {
            Stage::Asked { until } | Stage::Signalled { until } => Some(until),
            Stage::Killed => None,
        }
    }

    /// The agent ends because it was made to.
    fn was_forced(&self) -> bool {
        matches!(self.stage, Stage::Signalled { .. } | Stage::Killed)
    }

    /// What to send now.
    fn next(&mut self, now: Instant) -> Option<Signal> {
        if self.until().is_none_or(|until| now < until) {
            return None;
        }
        let (stage, signal) = match self.stage {
            Stage::Asked { .. } => (Stage::Signalled { until: now + AFTER_SIGNAL }, Signal::INT),
            Stage::Signalled { .. } | Stage::Killed => (Stage::Killed, Signal::KILL),
        };
        self.stage = stage;
        Some(signal)
    }
}

/// How far the executor is with going.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    No,
    /// The tool under way may be finished until then.
    AfterTool(Instant),
    Now,
    /// The agent was told to end; it is made to after this.
    Ending(Instant),
    Done,
}

impl Leaving {
    pub(super) fn now(&mut self) {
        match self {
            Self::No | Self::AfterTool(_) => *self = Self::Now,
            Self::Now | Self::Ending(_) | Self::Done => {}
        }
    }

    pub(super) fn after_tool(&mut self) {
        if *self == Self::No {
            *self = Self::AfterTool(Instant::now() + TOOL);
        }
    }

    pub(super) fn is_done(&self) -> bool {
        *self == Self::Done
    }

    pub(super) const fn until(&self) -> Option<Instant> {
        match self {
            Self::AfterTool(until) | Self::Ending(until) => Some(*until),
            Self::No | Self::Now | Self::Done => None,
        }
    }

    pub(super) fn wants_end(&self, uses_tools: bool, has_agent: bool, now: Instant) -> bool {
        match self {
            Self::AfterTool(until) => !has_agent || !uses_tools || *until <= now,
            Self::Now => true,
            Self::Ending(until) => has_agent && *until <= now,
            Self::No | Self::Done => false,
        }
    }

    pub(super) const fn is_ready(&self, has_agent: bool) -> bool {
        match self {
            Self::Ending(_) => !has_agent,
            Self::No | Self::AfterTool(_) | Self::Now | Self::Done => false,
        }
    }
}

impl Executor {
    /// Makes an agent do what it was asked for and does not do.
    pub(super) fn be_firm(&mut self, now: Instant) {
        let Some(agent) = &self.agent else { return };
        if let Some(signal) = self.interrupt.as_mut().and_then(|interrupt| interrupt.next(now)) {
            tracing::info!(?signal, "the agent did not follow an interrupt in time");
            agent.signal(signal);
        }
        if let Some((_, until)) = &mut self.failed
            && *until <= now
        {
            *until = now + POLITE;
            agent.signal(Signal::KILL);
        }
    }

    /// First by a word, then by force.
    pub(super) fn end_agent(&mut self, now: Instant) {
        let already = matches!(self.leaving, Leaving::Ending(_));
        if let Some(agent) = &mut self.agent {
            agent.close_input();
            // What stands still hears nothing.
            agent.hold(false);
            agent.signal(if already { Signal::KILL } else { Signal::TERM });
        }
        self.leaving = Leaving::Ending(now + POLITE);
    }

    pub(super) fn agent_ended(&mut self, ending: Ending) {
        let Some(agent) = self.agent.take() else { return };
        self.forget_questions("the agent ended");
        self.asks_by_itself = false;
        self.limits.ends();
        let (interrupt, failed) = (self.interrupt.take(), self.failed.take());
        self.take_back_opening();
        self.compose_what_is_left();
        // It was made to go, and what it had not confirmed is answered with everything else.
        if self.leaving != Leaving::No || self.stillness.is_asked() {
            return;
        }
        match interrupt.filter(Interrupt::was_forced) {
            Some(interrupt) => self.interrupted(&interrupt.message),
            None => self.fell(&agent, ending, failed.map(|(error, _)| error)),
        }
    }

    /// The turn is broken off, and the agent with it. The next message begins another one.
    fn interrupted(&mut self, message: &LeasedMessage) {
        let ack = self.talk.receipt(message.id, How::Injected);
        self.outgoing.extend(ack.map(Item::Ack));
        let text = &message.content[..message.content.floor_char_boundary(TEXT)];
        let turn = self.turn();
        let data = json!({"turn": turn, "message_id": message.id, "text": text, "forced": true});
        self.emit(kind::AGENT_INTERRUPTED, turn, raw(&data));
        let lost = self.talk.gone();
        self.outgoing.extend(lost.into_iter().map(Item::Nack));
        self.is_idle();
    }

    fn fell(&mut self, agent: &Agent, ending: Ending, said: Option<String>) {
        let memory = &self.tools.memory;
        let starved = memory.ended_agent(agent.kills_before, agent.kills_heard, ending);
        let out_of_memory = starved.then(|| (memory.limit, memory.peak()));
        let failure = failure::of(failure::End {
            ending,
            in_turn: self.talk.standing() == Standing::InTurn,
            said: said.as_deref(),
            out_of_memory,
            stderr_tail: &agent.complaints(),
        });
        let turn = self.turn();
        let lost = self.talk.gone();
        self.outgoing.extend(lost.into_iter().map(Item::Nack));
        match failure {
            Some(mut data) => {
                if turn.is_some() {
                    data["turn"] = turn.into();
                }
                self.emit(kind::AGENT_FAILED, turn, raw(&data));
                // Else the server may begin another run, which starts it again.
                if self.settings.continuous.is_none() {
                    self.talk.over();
                }
            }
            None => tracing::info!("the agent left between two turns; the next message starts it again"),
        }
    }

    /// There is no agent and will be none.
    pub(super) fn not_started(&mut self, error: &str) {
        let turn = self.turn();
        self.emit(kind::AGENT_FAILED, turn, raw(&failure::not_started(error)));
        self.talk.over();
    }

    /// The last that is said: what the agent was not told goes back.
    pub(super) fn leave(&mut self) {
        self.take_back_opening();
        let back = self.talk.give_back();
        self.outgoing.extend(back.into_iter().map(Item::Nack));
        self.leaving = Leaving::Done;
    }

    /// What would have begun a turn was not told yet.
    fn take_back_opening(&mut self) {
        let opening = self.opening.take().map(|(message, _)| message);
        for message in opening.into_iter().chain(self.login.take_back()) {
            self.talk.take_back(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::tests::message;
    use atoll_core::message::Delivery;

    #[test]
    fn an_interrupt_becomes_firmer() {
        let mut interrupt = Interrupt::new(message("enough", Delivery::Steer));
        let begun = Instant::now();
        assert_eq!((interrupt.next(begun), interrupt.was_forced()), (None, false));
        let later = begun + OBEY + Duration::from_millis(100);
        assert_eq!((interrupt.next(later), interrupt.was_forced()), (Some(Signal::INT), true));
        assert_eq!(interrupt.next(later), None, "it has a while to go");
        assert_eq!(interrupt.next(later + AFTER_SIGNAL), Some(Signal::KILL));
        assert_eq!((interrupt.next(later + OBEY), interrupt.until()), (None, None));
    }

    #[test]
    fn who_is_told_to_go_finishes_the_tool_and_whose_sandbox_ended_does_not() {
        let now = Instant::now();
        let mut leaving = Leaving::No;
        leaving.after_tool();
        assert!(!leaving.wants_end(true, true, now), "the tool may be finished");
        assert!(leaving.wants_end(false, true, now) && leaving.wants_end(true, false, now));
        assert!(leaving.wants_end(true, true, now + TOOL + POLITE), "but not for ever");
        leaving.after_tool();
        leaving.now();
        assert!(leaving.wants_end(true, true, now) && !leaving.is_ready(false));
        leaving = Leaving::Ending(now + POLITE);
        assert!(!leaving.wants_end(true, true, now) && leaving.wants_end(true, true, now + POLITE));
        assert!(leaving.is_ready(false) && !leaving.is_ready(true));
        leaving.now();
        assert_eq!(leaving, Leaving::Ending(now + POLITE), "it is under way already");
    }
}
