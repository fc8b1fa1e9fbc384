//! The executor of a fake sandbox: passes messages to the demo agent through its driver, and the agent's output to the
//! dispatcher.

use super::environment::SandboxRuntime;
use super::memory_host::{HostOutput, MemoryHost};
use atoll_api::events::{AgentFailed, Empty, EventData, FileEdited};
use atoll_core::event::{EventSource, EventType};
use atoll_core::sandbox::Activity;
use atoll_core::time::{Clock, SystemClock};
use atoll_dispatcher::conversation::{ConversationState, DeliveryStep};
use atoll_dispatcher::program::Order;
use atoll_dispatcher::program::input::{Event, Item, Nack, Read};
use atoll_drivers::demo::DemoDriver;
use atoll_drivers::demo::agent::{DemoAgent, DemoFailure, DemoOptions, HostInput};
use atoll_drivers::{AgentOutput, AgentTurn, Driver, EventEffect, clip_event};
use atoll_protocol::{EventBlob, LeasedMessage};
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Capacity of the channel to the dispatcher, in packets of items.
pub(super) const MAX_WAITING_PACKETS: usize = 4;
/// Time for sending the events before a `crash`.
const CRASH_FLUSH_TIME: Duration = Duration::from_millis(500);

pub(super) struct FakeExecutor {
    runtime: Arc<SandboxRuntime>,
    orders: mpsc::UnboundedReceiver<Order>,
    items: mpsc::Sender<Read>,
    conversation: ConversationState,
    outgoing: Vec<Item>,
    clock: SystemClock,
}

#[derive(PartialEq, Eq)]
enum AfterOutput {
    Continue,
    Crash,
}

impl FakeExecutor {
    pub(super) fn new(
        runtime: Arc<SandboxRuntime>,
        orders: mpsc::UnboundedReceiver<Order>,
        items: mpsc::Sender<Read>,
    ) -> Self {
        let mut conversation = ConversationState::default();
        conversation.set_abilities(DemoDriver.abilities());
        Self { runtime, orders, items, conversation, outgoing: Vec::new(), clock: SystemClock::start() }
    }

    /// Returns only if the worker must crash.
    pub(super) async fn run(mut self) {
        let (host, to_agent, mut outputs) = MemoryHost::new(self.runtime.clone());
        let agent = DemoAgent::new(host, DemoOptions::default()).run();
        tokio::pin!(agent);
        let mut is_running = true;
        loop {
            self.deliver_messages(&to_agent);
            self.send_items().await;
            tokio::select! {
                biased;
                Some(output) = outputs.recv() => {
                    if self.handle_output(output) == AfterOutput::Crash {
                        self.send_items().await;
                        return tokio::time::sleep(CRASH_FLUSH_TIME).await;
                    }
                }
                _ = &mut agent, if is_running => is_running = false,
                Some(order) = self.orders.recv() => match order {
                    Order::Start(start) if start.prompt.is_none() => self.emit_waiting(),
                    Order::Message(message) => self.conversation.enqueue(*message),
                    Order::Stop | Order::Leave => break,
                    Order::Start(_) | Order::Answer(_) | Order::Limits(..) | Order::Denials(_) => {}
                },
            }
        }
        self.runtime.processes.kill_all();
        self.end_conversation();
        self.send_items().await;
        drop(self.items.send(Read::Ended(None)).await);
        std::future::pending().await
    }

    async fn send_items(&mut self) {
        if !self.outgoing.is_empty() {
            // Fails only while the worker exits.
            drop(self.items.send(Read::Items(std::mem::take(&mut self.outgoing))).await);
        }
    }

    fn deliver_messages(&mut self, to_agent: &mpsc::UnboundedSender<HostInput>) {
        let send = |message: &LeasedMessage, state| {
            // The agent reads every line of its driver.
            if let Ok(line) = serde_json::from_slice(&DemoDriver.encode_message(message, state)) {
                drop(to_agent.send(HostInput::Line(line)));
            }
        };
        while let Some(step) = self.conversation.next_step(true) {
            match step {
                DeliveryStep::Begin(message) => {
                    self.outgoing.push(Item::Activity(Activity::Working));
                    send(&message, AgentTurn::Idle);
                }
                DeliveryStep::Steer(message) | DeliveryStep::Interrupt(message) => send(&message, AgentTurn::InTurn),
                DeliveryStep::Acknowledge(ack) => self.outgoing.push(Item::Ack(ack)),
                DeliveryStep::TooLate(message) => {
                    let reason = "the turn was over".to_owned();
                    self.outgoing.push(Item::Nack(Nack { id: message.id, handed: false, reason, retry: false }));
                }
            }
        }
    }

    fn handle_output(&mut self, output: HostOutput) -> AfterOutput {
        match output {
            HostOutput::Line(line) => {
                for output in DemoDriver.handle_line(&line) {
                    self.handle_agent_output(output);
                }
            }
            HostOutput::FileEdited(edit) => {
                let (turn, tool_use_id) = (self.current_turn(), self.conversation.only_tool().map(str::to_owned));
                self.emit_event(EventData::AgentFileEdited(FileEdited { turn, tool_use_id, ..*edit }));
            }
            HostOutput::Failed(DemoFailure::OutOfMemory) => {
                self.fail_agent("out_of_memory", "the agent was killed because its memory ran out".to_owned());
            }
            HostOutput::Failed(DemoFailure::Hang) => {}
            HostOutput::Failed(DemoFailure::Crash) => return AfterOutput::Crash,
        }
        AfterOutput::Continue
    }

    fn handle_agent_output(&mut self, output: AgentOutput) {
        match output {
            AgentOutput::Event(event) => {
                match event.effect {
                    EventEffect::ApprovalRequested => self.outgoing.push(Item::Activity(Activity::WaitingApproval)),
                    EventEffect::ApprovalResolved => self.outgoing.push(Item::Activity(Activity::Working)),
                    EventEffect::None
                    | EventEffect::TurnStarted
                    | EventEffect::TurnEnded
                    | EventEffect::ToolStarted(_)
                    | EventEffect::ToolEnded(_) => {}
                }
                self.conversation.apply_effect(&event.effect);
                self.push_event(event.event_type, event.data, event.blob);
            }
            AgentOutput::Acknowledged { id, how } => {
                self.outgoing.extend(self.conversation.acknowledge(id, how).map(Item::Ack));
            }
            AgentOutput::Idle => {
                self.outgoing.extend(self.conversation.acknowledge_interrupts().into_iter().map(Item::Ack));
                self.conversation.end_turn();
                if self.conversation.is_waiting() {
                    self.outgoing.push(Item::Activity(Activity::WaitingMessage));
                    self.emit_waiting();
                }
            }
            AgentOutput::Failed { error } => self.fail_agent("agent_failed", error),
            AgentOutput::Unparsed { reason } => tracing::warn!(reason, "failed to parse a line of the demo agent"),
            AgentOutput::Reply(_)
            | AgentOutput::TextDelta(_)
            | AgentOutput::Request(_)
            | AgentOutput::NativeId { .. }
            | AgentOutput::RateLimited { .. }
            | AgentOutput::ResponseEnded { .. }
            | AgentOutput::AwaitingScan { .. } => {}
        }
    }

    fn fail_agent(&mut self, reason: &str, error: String) {
        let (turn, reason) = (self.current_turn(), reason.to_owned());
        self.emit_event(EventData::AgentFailed(AgentFailed { turn, reason, error, ..AgentFailed::default() }));
        self.outgoing.push(Item::Activity(Activity::Ended));
        self.conversation.end_conversation();
    }

    /// Returns what the agent has not confirmed.
    fn end_conversation(&mut self) {
        let mut back = self.conversation.return_all();
        back.extend(self.conversation.handle_agent_exit());
        self.outgoing.extend(back.into_iter().map(Item::Nack));
    }

    fn emit_waiting(&mut self) {
        self.emit_event(EventData::AgentWaiting(Empty {}));
    }

    /// The current turn, or the last one.
    fn current_turn(&self) -> Option<i64> {
        Some(self.conversation.turn()).filter(|turn| *turn > 0)
    }

    fn emit_event(&mut self, mut data: EventData) {
        let blob = clip_event(&mut data);
        // Every type of the catalogue is valid.
        if let Ok(event_type) = EventType::new(data.event_type()) {
            self.push_event(event_type, data.to_json(), blob);
        }
    }

    fn push_event(&mut self, event_type: EventType, data: Box<RawValue>, blob: Option<EventBlob>) {
        let (at, turn) = (self.clock.now(), self.current_turn());
        self.outgoing.push(Item::Event(Event { event_type, source: EventSource::Agent, at, turn, data, blob }));
    }
}
