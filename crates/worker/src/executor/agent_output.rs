//! The agent's output: parses lines, and reports the end of tools and turns after the file changes before it.

use super::Executor;
use super::agent_process::AgentLine;
use super::shutdown::Shutdown;
use super::transcript_sync::AfterSave;
use crate::spawner::ExitStatus;
use atoll_api::events::{AgentRateLimited, EventData};
use atoll_core::event::{EventSource, kind};
use atoll_core::observation::is_progress;
use atoll_core::sandbox::Activity;
use atoll_core::time::Timestamp;
use atoll_dispatcher::program::input::{Event, Item, MAX_LINE_BYTES};
use atoll_drivers::response_assembly::ResponseAssembler;
use atoll_drivers::{AgentEvent, AgentOutput, EventEffect};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Time limit for flushing file changes. Later changes are reported later.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Ignore rate limits that claim to last longer.
const MAX_RATE_LIMIT_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time for an agent that reported a fatal error to exit.
const EXIT_GRACE: Duration = Duration::from_secs(2);
/// Time for the server to end the sandbox after a turn, before the agent counts as waiting.
const LAST_TURN_GRACE: Duration = Duration::from_millis(200);

/// Output that the executor has not handled yet.
pub(super) enum PendingOutput {
    Parsed(AgentOutput),
    Unparsed(Option<Event>),
}

/// The agent's output on its way to the dispatcher.
#[derive(Default)]
pub(super) struct OutputPipeline {
    pub pending: VecDeque<PendingOutput>,
    pub barrier: Option<FlushBarrier>,
    /// Assembles complete model responses from events.
    pub responses: ResponseAssembler,
}

impl OutputPipeline {
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.barrier.is_none()
    }
}

/// Delays a step until the watcher has reported all changes.
#[derive(Debug)]
pub(super) struct FlushBarrier {
    pub after: AfterFlush,
    /// Number of the flush that opens the barrier.
    number: u64,
    deadline: Instant,
    is_open: bool,
}

/// A step that follows a flush.
#[derive(Debug)]
pub(super) enum AfterFlush {
    /// The end of a tool or a turn.
    Emit(AgentEvent),
    /// Confirm to the agent that the changes of this tool are reported.
    ConfirmTool(String),
    AgentExited(ExitStatus),
    Shutdown,
}

impl FlushBarrier {
    pub(super) const fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn is_closed(&self, now: Instant) -> bool {
        !self.is_open && now < self.deadline
    }

    pub(super) const fn mark_flushed(&mut self, number: u64) {
        self.is_open |= number >= self.number;
    }
}

impl Executor {
    pub(super) fn handle_lines(&mut self, lines: Vec<AgentLine>) {
        let Some(driver) = &mut self.launch.driver else { return };
        if !lines.is_empty() {
            self.transcript.mark_dirty();
            if let Some(process) = &mut self.agent.process {
                process.record_output(self.tools.memory.kills());
            }
        }
        for line in lines {
            let (line, bytes, outputs) = match line {
                AgentLine::Complete(line) => {
                    let (bytes, outputs) = (line.len(), driver.handle_line(&line));
                    (line, bytes, outputs)
                }
                AgentLine::TooLong { head, bytes } => {
                    let reason = format!("the line has {bytes} bytes; the limit is {MAX_LINE_BYTES}");
                    (head, bytes, vec![AgentOutput::Unparsed { reason }])
                }
            };
            for output in outputs {
                // Protocol replies go at once: the agent may wait for them.
                if let AgentOutput::Reply(bytes) = &output
                    && let Some(process) = &mut self.agent.process
                {
                    process.write_line(bytes);
                    continue;
                }
                self.output.pending.push_back(match output {
                    AgentOutput::Unparsed { reason } => {
                        PendingOutput::Unparsed(Event::unparsed(&line, bytes, &reason, self.outgoing.now()))
                    }
                    output => PendingOutput::Parsed(output),
                });
            }
        }
    }

    pub(super) fn handle_output(&mut self, output: PendingOutput) {
        match output {
            PendingOutput::Unparsed(event) => {
                let turn = self.current_turn();
                self.outgoing.extend(event.map(|event| Item::Event(Event { turn, ..event })));
            }
            PendingOutput::Parsed(AgentOutput::Event(event)) => match &event.effect {
                EventEffect::ToolEnded(_) | EventEffect::TurnEnded => self.run_after_flush(AfterFlush::Emit(event)),
                EventEffect::None
                | EventEffect::TurnStarted
                | EventEffect::ToolStarted(_)
                | EventEffect::ApprovalRequested
                | EventEffect::ApprovalResolved => {
                    match event.effect {
                        EventEffect::TurnStarted => self.note_native_turn(),
                        EventEffect::ApprovalRequested => self.approvals.asked_natively = true,
                        EventEffect::ApprovalResolved => self.approvals.asked_natively = false,
                        EventEffect::None
                        | EventEffect::TurnEnded
                        | EventEffect::ToolStarted(_)
                        | EventEffect::ToolEnded(_) => {}
                    }
                    self.conversation.apply_effect(&event.effect);
                    self.emit_agent_event(event);
                }
            },
            PendingOutput::Parsed(AgentOutput::Acknowledged { id, how }) => {
                match self.conversation.acknowledge(id, how) {
                    Some(ack) => self.outgoing.push(Item::Ack(ack)),
                    None => tracing::warn!(message = %id, "the agent confirmed a message that it did not get"),
                }
            }
            PendingOutput::Parsed(AgentOutput::Idle) => self.handle_idle(),
            PendingOutput::Parsed(AgentOutput::Failed { error }) => {
                self.agent.failed = Some((error, Instant::now() + EXIT_GRACE))
            }
            PendingOutput::Parsed(AgentOutput::Request(request)) => self.handle_approval_request(request),
            PendingOutput::Parsed(AgentOutput::ResponseEnded { parent }) => self.end_response(parent.as_deref()),
            PendingOutput::Parsed(AgentOutput::AwaitingScan { tool_use_id }) => {
                self.run_after_flush(AfterFlush::ConfirmTool(tool_use_id))
            }
            PendingOutput::Parsed(AgentOutput::TextDelta(data)) => self.outgoing.push(Item::Live(data)),
            PendingOutput::Parsed(AgentOutput::NativeId { id }) => self.launch.native_id = Some(id),
            PendingOutput::Parsed(AgentOutput::RateLimited { wait }) => self.report_rate_limit(wait),
            // `handle_lines` has sent it already.
            PendingOutput::Parsed(AgentOutput::Reply(_)) => {}
            PendingOutput::Parsed(AgentOutput::Unparsed { reason }) => {
                tracing::warn!(reason, "failed to parse a line of the agent")
            }
        }
    }

    fn report_rate_limit(&mut self, wait: Option<Duration>) {
        let later = |wait: Duration| {
            let micros =
                self.outgoing.now().as_micros().saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX));
            Timestamp::from_micros(micros)
        };
        let until = wait.filter(|wait| *wait < MAX_RATE_LIMIT_WAIT).map(later);
        self.emit_event(&EventData::AgentRateLimited(AgentRateLimited { until }));
        self.outgoing.push(Item::Activity(Activity::RateLimited));
    }

    /// Runs a step after the watcher has reported all changes up to now.
    pub(super) fn run_after_flush(&mut self, after: AfterFlush) {
        if self.watcher.is_watching() {
            let number = self.watcher.flush();
            let deadline = Instant::now() + FLUSH_TIMEOUT;
            self.output.barrier = Some(FlushBarrier { after, number, deadline, is_open: false });
        } else {
            self.run_flushed(after);
        }
    }

    pub(super) fn run_flushed(&mut self, after: AfterFlush) {
        match after {
            AfterFlush::Emit(event) => {
                let effect = event.effect.clone();
                self.emit_agent_event(event);
                self.conversation.apply_effect(&effect);
                if effect == EventEffect::TurnEnded {
                    self.approvals.asked_natively = false;
                    self.limits.end_turn();
                }
                match &effect {
                    // The agent begins another turn at once, so keep watching.
                    EventEffect::TurnEnded if self.conversation.has_unconfirmed() => {}
                    EventEffect::TurnEnded => self.watcher.stop(),
                    EventEffect::ToolEnded(tool) => self.confirm_tool_flush(tool),
                    EventEffect::None
                    | EventEffect::TurnStarted
                    | EventEffect::ToolStarted(_)
                    | EventEffect::ApprovalRequested
                    | EventEffect::ApprovalResolved => {}
                }
            }
            AfterFlush::ConfirmTool(tool) => self.confirm_tool_flush(&tool),
            AfterFlush::AgentExited(status) => {
                self.watcher.stop();
                // A stopped agent has nothing new to save, or the shutdown saves it.
                if self.shutdown == Shutdown::No && !self.quiesce.is_requested() {
                    self.save_then(AfterSave::AgentExited(status));
                } else {
                    self.handle_agent_exit(status);
                }
            }
            AfterFlush::Shutdown => {
                self.watcher.stop();
                self.save_then(AfterSave::Shutdown);
            }
        }
    }

    /// Handles a turn that the agent began by itself.
    fn note_native_turn(&mut self) {
        self.next_turn.waiting_due = None;
        self.limits.ensure_turn(Instant::now());
        if !self.watcher.is_watching() && !self.watcher.is_starting() {
            self.outgoing.push(Item::Activity(Activity::Working));
            self.watcher.start();
        }
    }

    fn confirm_tool_flush(&mut self, tool: &str) {
        if let (Some(driver), Some(agent)) = (&mut self.launch.driver, &mut self.agent.process)
            && let Some(line) = driver.confirm_scan(tool)
        {
            agent.write_line(&line);
        }
    }

    fn emit_agent_event(&mut self, event: AgentEvent) {
        match event.effect {
            EventEffect::ApprovalRequested => self.outgoing.push(Item::Activity(Activity::WaitingApproval)),
            EventEffect::ApprovalResolved => self.outgoing.push(Item::Activity(Activity::Working)),
            EventEffect::None
            | EventEffect::TurnStarted
            | EventEffect::TurnEnded
            | EventEffect::ToolStarted(_)
            | EventEffect::ToolEnded(_) => {}
        }
        let (turn, now) = (self.current_turn(), Instant::now());
        // Getting a message is not progress.
        let event_type = event.event_type.as_str();
        if is_progress(event_type) && event_type != kind::AGENT_MESSAGE_INJECTED {
            self.limits.record_progress(now);
        }
        let data = event.data.get().to_owned();
        self.assemble_responses(event_type, turn, &data, &event.response);
        self.emit_event_from(EventSource::Agent, event_type, turn, event.data, event.blob);
    }

    /// Ends the turn: the agent is ready for the next message.
    pub(super) fn handle_idle(&mut self) {
        let acks = self.conversation.acknowledge_interrupts();
        self.outgoing.extend(acks.into_iter().map(Item::Ack));
        self.conversation.end_turn();
        self.limits.end_turn();
        self.agent.interrupt = None;
        self.cancel_approvals("the turn is over");
        self.schedule_save();
        if self.conversation.is_waiting() {
            self.outgoing.push(Item::Activity(Activity::WaitingMessage));
            self.next_turn.waiting_due = Some(Instant::now() + LAST_TURN_GRACE);
        }
    }
}
