//! Stops the agent: interrupts with escalation, exits, and the shutdown of the executor.

use super::agent_process::AgentProcess;
use super::{Executor, agent_exit};
use crate::spawner::ExitStatus;
use atoll_api::events::{AgentFailed, AgentInterrupted, EventData};
use atoll_core::message::DeliveryMethod;
use atoll_dispatcher::program::input::Item;
use atoll_drivers::AgentTurn;
use atoll_protocol::LeasedMessage;
use rustix::process::Signal;
use std::time::Duration;
use tokio::time::Instant;

/// Time for the agent to follow an interrupt.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the agent to exit after SIGINT.
const SIGINT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for the running tool when the worker exits.
const TOOL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between SIGTERM and SIGKILL.
const KILL_DELAY: Duration = Duration::from_secs(1);
/// Size limit of an interrupt's text in an event.
const MAX_TEXT_BYTES: usize = 32 << 10;

/// An interrupt that the agent has got, with its escalation stage.
#[derive(Debug)]
pub(super) struct Interrupt {
    message: LeasedMessage,
    stage: InterruptStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InterruptStage {
    Asked { deadline: Instant },
    Signalled { deadline: Instant },
    Killed,
}

impl Interrupt {
    pub(super) fn new(message: LeasedMessage) -> Self {
        Self { message, stage: InterruptStage::Asked { deadline: Instant::now() + INTERRUPT_TIMEOUT } }
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        match self.stage {
            InterruptStage::Asked { deadline } | InterruptStage::Signalled { deadline } => Some(deadline),
            InterruptStage::Killed => None,
        }
    }

    /// True if a signal made the agent exit.
    fn was_forced(&self) -> bool {
        matches!(self.stage, InterruptStage::Signalled { .. } | InterruptStage::Killed)
    }

    /// Returns the signal to send now, and escalates.
    fn next_signal(&mut self, now: Instant) -> Option<Signal> {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return None;
        }
        let (stage, signal) = match self.stage {
            InterruptStage::Asked { .. } => (InterruptStage::Signalled { deadline: now + SIGINT_TIMEOUT }, Signal::INT),
            InterruptStage::Signalled { .. } | InterruptStage::Killed => (InterruptStage::Killed, Signal::KILL),
        };
        self.stage = stage;
        Some(signal)
    }
}

/// The executor's shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shutdown {
    No,
    /// Wait for the running tool until this deadline.
    AfterTool(Instant),
    Now,
    /// The agent got SIGTERM; kill it after this deadline.
    Terminating(Instant),
    Done,
}

impl Shutdown {
    pub(super) fn start_now(&mut self) {
        match self {
            Self::No | Self::AfterTool(_) => *self = Self::Now,
            Self::Now | Self::Terminating(_) | Self::Done => {}
        }
    }

    pub(super) fn start_after_tool(&mut self) {
        if *self == Self::No {
            *self = Self::AfterTool(Instant::now() + TOOL_TIMEOUT);
        }
    }

    pub(super) fn is_done(&self) -> bool {
        *self == Self::Done
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        match self {
            Self::AfterTool(deadline) | Self::Terminating(deadline) => Some(*deadline),
            Self::No | Self::Now | Self::Done => None,
        }
    }

    pub(super) fn wants_exit(&self, uses_tools: bool, has_agent: bool, now: Instant) -> bool {
        match self {
            Self::AfterTool(deadline) => !has_agent || !uses_tools || *deadline <= now,
            Self::Now => true,
            Self::Terminating(deadline) => has_agent && *deadline <= now,
            Self::No | Self::Done => false,
        }
    }

    pub(super) const fn is_ready(&self, has_agent: bool) -> bool {
        match self {
            Self::Terminating(_) => !has_agent,
            Self::No | Self::AfterTool(_) | Self::Now | Self::Done => false,
        }
    }
}

impl Executor {
    /// Signals an agent that does not follow an interrupt or does not exit.
    pub(super) fn escalate_signals(&mut self, now: Instant) {
        let Some(agent) = &self.agent.process else { return };
        if let Some(signal) = self.agent.interrupt.as_mut().and_then(|interrupt| interrupt.next_signal(now)) {
            tracing::info!(?signal, "the agent did not follow an interrupt; sending a signal");
            agent.signal(signal);
        }
        if let Some((_, deadline)) = &mut self.agent.failed
            && *deadline <= now
        {
            *deadline = now + KILL_DELAY;
            agent.signal(Signal::KILL);
        }
    }

    /// Terminates the agent: first SIGTERM, then SIGKILL.
    pub(super) fn terminate_agent(&mut self, now: Instant) {
        let already = matches!(self.shutdown, Shutdown::Terminating(_));
        if let Some(agent) = &mut self.agent.process {
            agent.close_input();
            // A paused process does not handle signals.
            agent.set_paused(false);
            agent.signal(if already { Signal::KILL } else { Signal::TERM });
        }
        self.shutdown = Shutdown::Terminating(now + KILL_DELAY);
    }

    pub(super) fn handle_agent_exit(&mut self, status: ExitStatus) {
        let Some(agent) = self.agent.process.take() else { return };
        self.cancel_approvals("the agent ended");
        self.approvals.asked_natively = false;
        self.limits.end_turn();
        let (interrupt, failed) = (self.agent.interrupt.take(), self.agent.failed.take());
        self.return_undelivered();
        self.flush_responses();
        // A shutdown or quiesce handles unconfirmed messages by itself.
        if self.shutdown != Shutdown::No || self.quiesce.is_requested() {
            return;
        }
        match interrupt.filter(Interrupt::was_forced) {
            Some(interrupt) => self.report_forced_interrupt(&interrupt.message),
            None => self.report_agent_exit(&agent, status, failed.map(|(error, _)| error)),
        }
    }

    /// Reports an interrupt that ended the agent. The next message starts it again.
    fn report_forced_interrupt(&mut self, message: &LeasedMessage) {
        let ack = self.conversation.acknowledge(message.id, DeliveryMethod::Injected);
        self.outgoing.extend(ack.map(Item::Ack));
        let text = Some(message.content[..message.content.floor_char_boundary(MAX_TEXT_BYTES)].to_owned());
        let (turn, message_id) = (self.current_turn(), Some(message.id));
        self.emit_event(&EventData::AgentInterrupted(AgentInterrupted { turn, message_id, text, forced: true }));
        let lost = self.conversation.handle_agent_exit();
        self.outgoing.extend(lost.into_iter().map(Item::Nack));
        self.handle_idle();
    }

    fn report_agent_exit(&mut self, agent: &AgentProcess, status: ExitStatus, reported: Option<String>) {
        let memory = &self.tools.memory;
        let starved = memory.killed_agent(agent.kills_before, agent.kills_at_output, status);
        let out_of_memory = starved.then(|| (memory.limit, memory.peak()));
        let failure = agent_exit::failure_data(agent_exit::AgentExit {
            status,
            in_turn: self.conversation.turn_state() == AgentTurn::InTurn,
            reported: reported.as_deref(),
            out_of_memory,
            stderr_tail: &agent.stderr_text(),
        });
        let turn = self.current_turn();
        let lost = self.conversation.handle_agent_exit();
        self.outgoing.extend(lost.into_iter().map(Item::Nack));
        match failure {
            Some(data) => {
                self.emit_event(&EventData::AgentFailed(AgentFailed { turn, ..data }));
                // In continuous mode the server may begin another run.
                if self.launch.settings.continuous.is_none() {
                    self.conversation.end_conversation();
                }
            }
            None => tracing::info!("the agent exited between two turns; the next message starts it again"),
        }
    }

    /// Reports that the agent could not start.
    pub(super) fn report_launch_failure(&mut self, error: &str) {
        self.emit_event(&EventData::AgentFailed(agent_exit::launch_failure_data(error)));
        self.conversation.end_conversation();
    }

    /// Ends the shutdown: returns all undelivered messages.
    pub(super) fn finish_shutdown(&mut self) {
        self.return_undelivered();
        let back = self.conversation.return_all();
        self.outgoing.extend(back.into_iter().map(Item::Nack));
        self.shutdown = Shutdown::Done;
    }

    /// Puts back a message that was about to begin a turn.
    fn return_undelivered(&mut self) {
        let opening = self.next_turn.opening.take().map(|(message, _)| message);
        for message in opening.into_iter().chain(self.logins.take_waiting()) {
            self.conversation.return_message(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::message::Delivery;

    #[test]
    fn an_interrupt_escalates() {
        let mut interrupt = Interrupt::new(LeasedMessage::example("enough", Delivery::Steer));
        let began = Instant::now();
        assert_eq!((interrupt.next_signal(began), interrupt.was_forced()), (None, false));
        let later = began + INTERRUPT_TIMEOUT + Duration::from_millis(100);
        assert_eq!((interrupt.next_signal(later), interrupt.was_forced()), (Some(Signal::INT), true));
        assert_eq!(interrupt.next_signal(later), None, "the SIGINT timeout has not expired");
        assert_eq!(interrupt.next_signal(later + SIGINT_TIMEOUT), Some(Signal::KILL));
        assert_eq!((interrupt.next_signal(later + INTERRUPT_TIMEOUT), interrupt.deadline()), (None, None));
    }

    #[test]
    fn an_exiting_worker_waits_for_the_tool_and_an_ended_sandbox_does_not() {
        let now = Instant::now();
        let mut shutdown = Shutdown::No;
        shutdown.start_after_tool();
        assert!(!shutdown.wants_exit(true, true, now), "waits for the running tool");
        assert!(shutdown.wants_exit(false, true, now) && shutdown.wants_exit(true, false, now));
        assert!(shutdown.wants_exit(true, true, now + TOOL_TIMEOUT + KILL_DELAY), "stops waiting at the deadline");
        shutdown.start_after_tool();
        shutdown.start_now();
        assert!(shutdown.wants_exit(true, true, now) && !shutdown.is_ready(false));
        shutdown = Shutdown::Terminating(now + KILL_DELAY);
        assert!(!shutdown.wants_exit(true, true, now) && shutdown.wants_exit(true, true, now + KILL_DELAY));
        assert!(shutdown.is_ready(false) && !shutdown.is_ready(true));
        shutdown.start_now();
        assert_eq!(shutdown, Shutdown::Terminating(now + KILL_DELAY), "it is under way already");
    }
}
