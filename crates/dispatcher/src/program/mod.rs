//! The program that the worker serves: a process that reads and writes lines, or the executor with its agent.
//! The dispatcher treats both alike: items come in; keys, messages, a stop and errors go out.

use crate::link::heartbeat::Start;
use atoll_core::approval::ApprovalAnswer;
use atoll_core::limit::Limit;
use atoll_core::sandbox::{AgentLimits, SandboxState};
use atoll_protocol::LeasedMessage;
use atoll_protocol::frame::DeniedCall;
use serde_json::json;
use std::ops::RangeInclusive;
use tokio::sync::mpsc;

pub mod input;
mod output;

use input::{Item, Read};
use output::LineWriter;

pub struct Program {
    pub input: mpsc::Receiver<Read>,
    pub output: ProgramOutput,
}

/// An order of the dispatcher to the executor.
#[derive(Debug)]
pub enum Order {
    /// The server's settings and how to start the agent.
    Start(Box<Start>),
    Message(Box<LeasedMessage>),
    /// The answer to an approval that the agent requested.
    Answer(Box<ApprovalAnswer>),
    /// The agent's limits, and the one for which the server pauses it.
    Limits(AgentLimits, Option<Limit>),
    Denials(Vec<DeniedCall>),
    /// The sandbox is ending: stop the agent.
    Stop,
    /// The worker is exiting: let the agent finish its current tool.
    Leave,
}

/// The channel to the program. Sending never waits.
#[derive(Debug)]
pub enum ProgramOutput {
    /// To a process, as lines.
    Lines(LineWriter),
    /// To the executor, which owns the agent.
    Executor(mpsc::UnboundedSender<Order>),
}

impl Program {
    /// The process at the other end of stdin and stdout.
    pub fn on_stdio() -> std::io::Result<Self> {
        let output = ProgramOutput::Lines(LineWriter::start(std::io::stdout())?);
        Ok(Self { input: input::start_reader(std::io::stdin())?, output })
    }

    /// Takes the items that were read and not handled yet.
    pub fn take_unread(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        while let Ok(Read::Items(more)) = self.input.try_recv() {
            items.extend(more);
        }
        items
    }
}

impl ProgramOutput {
    /// Sends the server's settings. The prompt follows as a message.
    pub fn send_start(&self, start: &Start) {
        match self {
            Self::Lines(_) => {}
            Self::Executor(orders) => drop(orders.send(Order::Start(Box::new(start.clone())))),
        }
    }

    pub fn send_message(&self, message: Box<LeasedMessage>) {
        match self {
            Self::Lines(output) => output.write_value(&json!({"message": message})),
            Self::Executor(orders) => drop(orders.send(Order::Message(message))),
        }
    }

    pub fn send_answer(&self, answer: Box<ApprovalAnswer>) {
        match self {
            Self::Lines(output) => output.write_value(&json!({"approval": answer})),
            Self::Executor(orders) => drop(orders.send(Order::Answer(answer))),
        }
    }

    /// Sends the agent's limits. A process on stdio has an agent of its own, without limits.
    pub fn send_limits(&self, limits: AgentLimits, exhausted: Option<Limit>) {
        match self {
            Self::Lines(_) => {}
            Self::Executor(orders) => drop(orders.send(Order::Limits(limits, exhausted))),
        }
    }

    /// Sends the tool calls that the guardian denies. A process on stdio decides about its own calls.
    pub fn send_denials(&self, calls: Vec<DeniedCall>) {
        match self {
            Self::Lines(_) => {}
            Self::Executor(orders) => drop(orders.send(Order::Denials(calls))),
        }
    }

    /// Announces the end of the sandbox.
    pub fn send_stop(&self, state: SandboxState) {
        match self {
            Self::Lines(output) => output.write_value(&json!({"stop": state})),
            Self::Executor(orders) => drop(orders.send(Order::Stop)),
        }
    }

    /// Announces the worker's exit.
    pub fn send_leave(&self) {
        match self {
            Self::Lines(_) => {}
            Self::Executor(orders) => drop(orders.send(Order::Leave)),
        }
    }

    /// Sends the keys of events that are on disk.
    pub fn send_keys(&self, keys: RangeInclusive<i64>) {
        match self {
            Self::Lines(output) => output.write_keys(keys),
            Self::Executor(_) => {}
        }
    }

    /// Reports an item that the worker could not process.
    pub fn send_error(&self, error: &str) {
        match self {
            Self::Lines(output) => output.write_value(&json!({"error": error})),
            Self::Executor(_) => tracing::warn!(error, "failed to process an item of the executor"),
        }
    }

    pub fn has_room(&self) -> bool {
        match self {
            Self::Lines(output) => output.has_room(),
            Self::Executor(_) => true,
        }
    }

    /// Waits until the program has read everything.
    pub async fn wait_until_empty(&self) {
        match self {
            Self::Lines(output) => {
                while !output.is_empty() {
                    output.wait_for_write().await;
                }
            }
            Self::Executor(_) => {}
        }
    }

    /// Waits until the program has read something since the last call.
    pub async fn wait_for_read(&self) {
        match self {
            Self::Lines(output) => output.wait_for_write().await,
            Self::Executor(_) => std::future::pending().await,
        }
    }
}
