//! The executor: owns the agent's process and its turns.
//!
//! One loop waits for orders of the dispatcher, the agent's lines, file changes and timers. Each part of the state has
//! its own module, which also holds the steps that concern it:
//!
//! | part | module |
//! |---|---|
//! | messages and turns | `atoll_dispatcher::conversation` (pure), `turn_start` |
//! | the agent's process: settings, start, output, interrupt, exit | `agent_launch`, `agent_process`, `agent_output`, `agent_exit` |
//! | complete model responses, assembled from events | `response_events` |
//! | file changes | `workspace_watcher` |
//! | approvals and tool rules | `approvals`, `tool_rules` |
//! | calls that the guardian denies | `call_denials` |
//! | limits (pure), and pausing the agent for them | `limit_tracker`, `limit_enforcement` |
//! | the agent's transcript and login files | `transcript_sync`, `login_sync` |
//! | services that run beside the agent | `service_control` |
//! | ports on which programs listen | `crate::ports` |
//! | shutdown and quiescing | `shutdown`, `agent_quiesce` |
//!
//! Invariant: before the executor reports the end of a tool or a turn, it reports all file changes up to then.

use crate::environment::Environment;
use crate::logins::Logins;
use crate::memory_counters::MemoryCounters;
use crate::ports::{PortTools, watch_ports};
use crate::spawner::Spawner;
use crate::transcript::TranscriptStore;
use agent_launch::LaunchState;
use agent_output::{AfterFlush, FlushBarrier, OutputPipeline};
use agent_process::{AgentLine, AgentProcess, AgentState};
use agent_quiesce::QuiesceState;
use approvals::Approvals;
use atoll_api::events::{Empty, EventData};
use atoll_core::event::{EventSource, EventType};
use atoll_core::time::{Clock, SystemClock, Timestamp};
use atoll_dispatcher::conversation::ConversationState;
use atoll_dispatcher::program::input::{Event, Item, Nack, Read};
use atoll_dispatcher::program::{Order, Program, ProgramOutput};
use atoll_drivers::{AgentTurn, ResponseRef};
use atoll_protocol::EventBlob;
use call_denials::CallDenials;
use limit_tracker::LimitTracker;
use login_sync::LoginSync;
use serde_json::value::RawValue;
use service_control::ServiceControl;
use shutdown::{Interrupt, Shutdown};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use transcript_sync::TranscriptSync;
use turn_start::NextTurn;
use workspace_watcher::WorkspaceWatcher;

mod agent_exit;
mod agent_launch;
mod agent_output;
mod agent_process;
mod agent_quiesce;
mod approval_input;
mod approvals;
mod call_denials;
mod edit_diff;
mod limit_enforcement;
mod limit_tracker;
mod login_sync;
mod response_events;
mod service_control;
mod shutdown;
mod tool_rules;
mod transcript_sync;
mod turn_start;
mod workspace_watcher;

pub use agent_quiesce::QuiesceRequest;

/// Capacity of the channel to the dispatcher, in packets of items.
const MAX_WAITING_PACKETS: usize = 4;
/// Back-pressure limit: stop reading the agent's output at this many unsent items.
const MAX_BUFFERED_ITEMS: usize = 256;
/// The same for the size of their data.
const MAX_BUFFERED_BYTES: usize = 1 << 20;

/// The services that the executor uses.
#[derive(Debug, Clone)]
pub struct Tools {
    pub spawner: Spawner,
    pub environment: Arc<Environment>,
    pub memory: Arc<MemoryCounters>,
    /// Path of the worker's program in the sandbox.
    pub worker: PathBuf,
    pub workspace: PathBuf,
    pub transcripts: Option<TranscriptStore>,
    pub logins: Option<Logins>,
}

/// Starts the executor and returns the dispatcher's side of it.
pub fn start_executor(tools: Tools, quiesce_requests: mpsc::Receiver<QuiesceRequest>) -> Program {
    let (sender, orders) = mpsc::unbounded_channel();
    let (items, input) = mpsc::channel(MAX_WAITING_PACKETS);
    let channels = Channels { orders, quiesce_requests, items };
    tokio::spawn(Executor::new(tools, channels).run());
    Program { input, output: ProgramOutput::Executor(sender) }
}

struct Channels {
    orders: mpsc::UnboundedReceiver<Order>,
    quiesce_requests: mpsc::Receiver<QuiesceRequest>,
    items: mpsc::Sender<Read>,
}

/// Items for the dispatcher.
struct Outgoing {
    items: Vec<Item>,
    /// Size of the items' data.
    bytes: usize,
    clock: SystemClock,
}

impl Outgoing {
    fn push(&mut self, item: Item) {
        self.bytes += match &item {
            Item::Event(event) => event.data.get().len() + event.blob.as_ref().map_or(0, |blob| blob.content.len()),
            Item::Live(data) => data.get().len(),
            _ => 0,
        };
        self.items.push(item);
    }

    fn extend(&mut self, items: impl IntoIterator<Item = Item>) {
        items.into_iter().for_each(|item| self.push(item));
    }

    fn take_items(&mut self) -> Vec<Item> {
        self.bytes = 0;
        std::mem::take(&mut self.items)
    }

    fn has_room(&self) -> bool {
        self.items.len() < MAX_BUFFERED_ITEMS && self.bytes < MAX_BUFFERED_BYTES
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

struct Executor {
    tools: Tools,
    channels: Channels,
    outgoing: Outgoing,
    launch: LaunchState,
    agent: AgentState,
    output: OutputPipeline,
    conversation: ConversationState,
    next_turn: NextTurn,
    watcher: WorkspaceWatcher,
    approvals: Approvals,
    denials: CallDenials,
    limits: LimitTracker,
    transcript: TranscriptSync,
    logins: LoginSync,
    services: ServiceControl,
    /// Changes of the ports on which programs listen.
    ports: mpsc::Receiver<Vec<EventData>>,
    shutdown: Shutdown,
    quiesce: QuiesceState,
}

impl Executor {
    fn new(tools: Tools, channels: Channels) -> Self {
        Self {
            channels,
            outgoing: Outgoing { items: Vec::new(), bytes: 0, clock: SystemClock::start() },
            launch: LaunchState::default(),
            agent: AgentState::default(),
            output: OutputPipeline::default(),
            conversation: ConversationState::default(),
            next_turn: NextTurn::default(),
            watcher: WorkspaceWatcher::new(tools.spawner.clone(), tools.workspace.clone()),
            approvals: Approvals::default(),
            denials: CallDenials::default(),
            limits: LimitTracker::default(),
            transcript: TranscriptSync::new(tools.transcripts.clone()),
            logins: LoginSync::new(tools.logins.clone()),
            services: ServiceControl::default(),
            ports: watch_ports(PortTools {
                spawner: tools.spawner.clone(),
                environment: Arc::clone(&tools.environment),
                worker: tools.worker.clone(),
            }),
            shutdown: Shutdown::No,
            quiesce: QuiesceState::No,
            tools,
        }
    }

    async fn run(mut self) {
        let items = self.channels.items.clone();
        loop {
            self.advance().await;
            if self.shutdown.is_done() {
                break;
            }
            let listen = self.output.is_empty() && self.outgoing.has_room();
            let deadline = self.next_deadline();
            tokio::select! {
                order = self.channels.orders.recv() => match order {
                    Some(order) => self.handle_order(order),
                    None => return,
                },
                permit = items.reserve(), if !self.outgoing.items.is_empty() => match permit {
                    Ok(permit) => permit.send(Read::Items(self.outgoing.take_items())),
                    Err(_) => return,
                },
                events = self.watcher.next_events(), if self.outgoing.has_room() => self.handle_watch_events(events),
                lines = next_lines(self.agent.process.as_mut(), listen) => self.handle_lines(lines),
                Some(request) = self.channels.quiesce_requests.recv() => self.handle_quiesce(request),
                () = self.quiesce.wait_for_resume() => {
                    self.quiesce = QuiesceState::No;
                    self.start_services();
                }
                report = self.services.next_report() => self.handle_service_report(report),
                Some(events) = self.ports.recv(), if self.outgoing.has_room() => {
                    events.iter().for_each(|event| self.emit_worker_event(event));
                }
                result = self.transcript.next_result() => self.handle_transcript_result(result),
                uploaded = self.approvals.next_upload() => self.handle_upload(uploaded),
                result = self.logins.next_result() => self.handle_login_result(result),
                () = sleep_until_deadline(deadline) => {}
            }
        }
        self.logins.remove_files().await;
        if !self.outgoing.items.is_empty() {
            drop(items.send(Read::Items(self.outgoing.items)).await);
        }
        drop(items.send(Read::Ended(None)).await);
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [
            self.next_turn.deadline(),
            self.output.barrier.as_ref().map(FlushBarrier::deadline),
            self.agent.interrupt.as_ref().and_then(Interrupt::deadline),
            self.agent.failed.as_ref().map(|(_, deadline)| *deadline),
            self.shutdown.deadline(),
            self.approvals.deadline(),
            self.transcript.deadline(),
            self.limits.deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Does everything that is possible now.
    async fn advance(&mut self) {
        loop {
            let now = Instant::now();
            if self.transcript.blocks_others(now) {
                break;
            }
            if self.output.barrier.as_ref().is_some_and(|barrier| barrier.is_closed(now) && self.watcher.is_open()) {
                // Messages to the agent need not wait for its output.
                if self.conversation.turn_state() == AgentTurn::InTurn {
                    while self.deliver_next(now).await {}
                }
                break;
            }
            let has_agent = self.agent.process.is_some();
            if let Some(barrier) = self.output.barrier.take() {
                self.run_flushed(barrier.after);
            } else if self.advance_save(now) {
            } else if let Some(output) = self.output.pending.pop_front() {
                self.handle_output(output);
            } else if let Some(status) = self.agent.process.as_ref().and_then(AgentProcess::exit_status) {
                self.run_after_flush(AfterFlush::AgentExited(status));
            } else if self.shutdown.wants_exit(self.conversation.uses_tools(), has_agent, now) {
                self.stop_agent(now);
            } else if self.shutdown.is_ready(has_agent) {
                self.run_after_flush(AfterFlush::Shutdown);
            } else if !self.deliver_next(now).await {
                break;
            }
            if self.shutdown.is_done() {
                return;
            }
        }
        self.finish_quiesce().await;
        let now = Instant::now();
        self.save_if_due(now);
        self.enforce_limits(now);
        self.escalate_signals(now);
        self.deny_expired(now);
        if self.next_turn.take_waiting(now) {
            self.emit_event(&EventData::AgentWaiting(Empty {}));
        }
    }

    fn handle_order(&mut self, order: Order) {
        match order {
            Order::Start(start) => self.handle_start(*start),
            Order::Message(message) => {
                self.next_turn.waiting_due = None;
                if self.launch.has_no_agent {
                    let reason = "no agent".to_owned();
                    self.outgoing.push(Item::Nack(Nack { id: message.id, handed: false, reason, retry: false }));
                } else {
                    self.conversation.enqueue(*message);
                }
            }
            Order::Answer(answer) => self.handle_answer(*answer),
            Order::Limits(limits, exhausted) => self.limits.set_limits(limits, exhausted),
            Order::Denials(calls) => self.denials.add_denials(calls),
            Order::Stop => self.shutdown.start_now(),
            Order::Leave => self.shutdown.start_after_tool(),
        }
    }

    /// The current turn, or the last one.
    fn current_turn(&self) -> Option<i64> {
        Some(self.conversation.turn()).filter(|turn| *turn > 0)
    }

    /// Emits an event of the agent.
    fn emit_event(&mut self, data: &EventData) {
        self.emit_raw_event(data.event_type(), data.to_json(), None);
    }

    fn emit_raw_event(&mut self, event_type: &str, data: Box<RawValue>, blob: Option<EventBlob>) {
        let turn = self.current_turn();
        self.assemble_responses(event_type, turn, data.get(), &ResponseRef::Unknown);
        self.emit_event_from(EventSource::Agent, event_type, turn, data, blob);
    }

    fn emit_event_from(
        &mut self,
        source: EventSource,
        event_type: &str,
        turn: Option<i64>,
        data: Box<RawValue>,
        blob: Option<EventBlob>,
    ) {
        if let Ok(event_type) = EventType::new(event_type) {
            let event = Event { event_type, source, at: self.outgoing.now(), turn, data, blob };
            self.outgoing.push(Item::Event(event));
        }
    }

    /// Emits an event of the worker itself.
    fn emit_worker_event(&mut self, data: &EventData) {
        let turn = self.current_turn();
        self.emit_event_from(EventSource::Worker, data.event_type(), turn, data.to_json(), None);
    }
}

async fn next_lines(process: Option<&mut AgentProcess>, listen: bool) -> Vec<AgentLine> {
    match process {
        Some(process) => process.next_lines(listen).await,
        None => std::future::pending().await,
    }
}

async fn sleep_until_deadline(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
