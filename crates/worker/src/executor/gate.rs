//! What waits until the changes before it are told.

use super::ending::Leaving;
use super::saving::After;
use super::{Executor, Heard, LAST_TURN};
use crate::driver::{Mark, Said, Told};
use crate::hands::Ending;
use crate::input::Item;
use atoll_core::event::{Source, kind};
use atoll_core::json::raw;
use atoll_core::observe::is_work;
use atoll_core::sandbox::Activity;
use atoll_core::time::{Clock, Timestamp};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// As long as something waits for it. What is seen later is told later.
const LONGEST: Duration = Duration::from_secs(2);
/// A model that wants one to wait for longer is not believed.
const LONGEST_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);
/// For an agent that has given up to go by itself.
const GIVING_UP: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Gate {
    pub then: Then,
    /// Opens when this is said to be flushed.
    number: u64,
    until: Instant,
    is_open: bool,
}

/// What is behind it.
#[derive(Debug)]
pub(super) enum Then {
    /// The end of a tool or a turn.
    Tell(Told),
    /// A tool has run, and the agent waits for a word that its changes were seen.
    Ran(String),
    AgentEnded(Ending),
    Leave,
}

impl Gate {
    pub(super) const fn until(&self) -> Instant {
        self.until
    }

    pub(super) fn is_shut(&self, now: Instant) -> bool {
        !self.is_open && now < self.until
    }

    pub(super) const fn reached(&mut self, number: u64) {
        self.is_open |= number >= self.number;
    }
}

impl Executor {
    pub(super) fn take(&mut self, heard: Heard) {
        match heard {
            Heard::Nonsense(event) => {
                self.outgoing.extend(event.map(|event| Item::Event(crate::input::Event { turn: self.turn(), ..event })))
            }
            Heard::Said(Said::Event(told)) => match &told.mark {
                Mark::ToolEnds(_) | Mark::TurnEnds => self.through_gate(Then::Tell(told)),
                Mark::Plain | Mark::TurnBegins | Mark::ToolBegins(_) | Mark::Asks | Mark::Answered => {
                    match told.mark {
                        Mark::TurnBegins => self.begins_by_itself(),
                        Mark::Asks => self.asks_by_itself = true,
                        Mark::Answered => self.asks_by_itself = false,
                        Mark::Plain | Mark::TurnEnds | Mark::ToolBegins(_) | Mark::ToolEnds(_) => {}
                    }
                    self.talk.mark(&told.mark);
                    self.tell_on(told);
                }
            },
            Heard::Said(Said::Receipt { id, how }) => match self.talk.receipt(id, how) {
                Some(ack) => self.outgoing.push(Item::Ack(ack)),
                None => tracing::warn!(message = %id, "the agent confirms a message that it was not told"),
            },
            Heard::Said(Said::Idle) => self.is_idle(),
            Heard::Said(Said::Failed { error }) => self.failed = Some((error, Instant::now() + GIVING_UP)),
            Heard::Said(Said::Asks(ask)) => self.asked(ask),
            Heard::Said(Said::AnswerEnds { parent }) => self.answer_ends(parent.as_deref()),
            Heard::Said(Said::ToolRan { tool_use_id }) => self.through_gate(Then::Ran(tool_use_id)),
            Heard::Said(Said::Live(data)) => self.outgoing.push(Item::Live(data)),
            Heard::Said(Said::Native { id }) => self.native_id = Some(id),
            Heard::Said(Said::RateLimited { wait }) => self.rate_limited(wait),
            // Told at once, when it was heard.
            Heard::Said(Said::Reply(_)) => {}
            Heard::Said(Said::Unparsed { reason }) => tracing::warn!(reason, "a line of the agent was not understood"),
        }
    }

    fn rate_limited(&mut self, wait: Option<Duration>) {
        let later = |wait: Duration| {
            let micros =
                self.clock.now().as_micros().saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX));
            Timestamp::from_micros(micros)
        };
        let until = wait.filter(|wait| *wait < LONGEST_WAIT).map(later);
        let turn = self.turn();
        self.emit(kind::AGENT_RATE_LIMITED, turn, raw(&json!({"until": until})));
        self.outgoing.push(Item::Activity(Activity::RateLimited));
    }

    /// Before this, everything that has changed until now.
    pub(super) fn through_gate(&mut self, then: Then) {
        if self.files.is_watching() {
            let number = self.files.flush();
            self.gate = Some(Gate { then, number, until: Instant::now() + LONGEST, is_open: false });
        } else {
            self.pass(then);
        }
    }

    pub(super) fn pass(&mut self, then: Then) {
        match then {
            Then::Tell(told) => {
                let mark = told.mark.clone();
                self.tell_on(told);
                self.talk.mark(&mark);
                if mark == Mark::TurnEnds {
                    self.asks_by_itself = false;
                    self.limits.ends();
                }
                match &mark {
                    // With more to do it goes on at once, and what it changes then is to be seen too.
                    Mark::TurnEnds if self.talk.goes_on() => {}
                    Mark::TurnEnds => self.files.stop(),
                    Mark::ToolEnds(tool) => self.tool_seen(tool),
                    Mark::Plain | Mark::TurnBegins | Mark::ToolBegins(_) | Mark::Asks | Mark::Answered => {}
                }
            }
            Then::Ran(tool) => self.tool_seen(&tool),
            Then::AgentEnded(ending) => {
                self.files.stop();
                // One that was made to go has nothing new to say, or says it when the worker leaves.
                if self.leaving == Leaving::No && !self.stillness.is_asked() {
                    self.when_saved(After::AgentEnded(ending));
                } else {
                    self.agent_ended(ending);
                }
            }
            Then::Leave => {
                self.files.stop();
                self.when_saved(After::Leave);
            }
        }
    }

    /// A turn that nobody began here is one like any other.
    fn begins_by_itself(&mut self) {
        self.waiting_due = None;
        self.limits.begins_if_not(Instant::now());
        if !self.files.is_watching() && !self.files.is_opening() {
            self.outgoing.push(Item::Activity(Activity::Working));
            self.files.start();
        }
    }

    fn tool_seen(&mut self, tool: &str) {
        if let (Some(driver), Some(agent)) = (&mut self.driver, &mut self.agent)
            && let Some(line) = driver.tool_seen(tool)
        {
            agent.tell(&line);
        }
    }

    fn tell_on(&mut self, told: Told) {
        match told.mark {
            Mark::Asks => self.outgoing.push(Item::Activity(Activity::WaitingApproval)),
            Mark::Answered => self.outgoing.push(Item::Activity(Activity::Working)),
            Mark::Plain | Mark::TurnBegins | Mark::TurnEnds | Mark::ToolBegins(_) | Mark::ToolEnds(_) => {}
        }
        let (turn, now) = (self.turn(), Instant::now());
        // Being told something is not yet doing something.
        let event_type = told.event_type.as_str();
        if is_work(event_type) && event_type != kind::AGENT_MESSAGE_INJECTED {
            self.limits.progress(now);
        }
        let data = told.data.get().to_owned();
        self.compose(event_type, turn, &data, &told.origin);
        self.emit_by(Source::Agent, event_type, turn, told.data);
        self.watch(told.event_type.as_str(), &data, now);
    }

    /// The agent takes the next message, or there is none and it waits.
    pub(super) fn is_idle(&mut self) {
        let over = self.talk.broken_off();
        self.outgoing.extend(over.into_iter().map(Item::Ack));
        self.talk.idle();
        self.limits.ends();
        self.interrupt = None;
        self.forget_questions("the turn is over");
        self.save_later();
        if self.talk.waits() {
            self.outgoing.push(Item::Activity(Activity::WaitingMessage));
            self.waiting_due = Some(Instant::now() + LAST_TURN);
        }
    }

    /// The running turn, or the last one.
    pub(super) fn turn(&self) -> Option<i64> {
        Some(self.talk.turn()).filter(|turn| *turn > 0)
    }
}
