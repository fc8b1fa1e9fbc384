//! Whoever the worker works for: a program that writes and reads lines, or the agent that the worker itself runs.
//! To the dispatcher both are the same: items come in; keys, messages, a stop and errors go out.

use crate::executor::Order;
use crate::heartbeat::Start;
use crate::input::{self, Item, Read};
use crate::output::Output;
use atoll_core::approval::ApprovalAnswer;
use atoll_core::limit::Limit;
use atoll_core::sandbox::{AgentLimits, SandboxState};
use atoll_protocol::LeasedMessage;
use serde_json::json;
use std::ops::RangeInclusive;
use tokio::sync::mpsc;

pub struct Program {
    pub input: mpsc::Receiver<Read>,
    pub output: Outlet,
}

/// The way to it. Nothing here waits.
#[derive(Debug)]
pub enum Outlet {
    /// To a program, as lines.
    Lines(Output),
    /// To the executor, which owns the agent.
    Executor(mpsc::UnboundedSender<Order>),
}

impl Program {
    /// The program at the other end of standard input and output.
    pub fn of_lines() -> std::io::Result<Self> {
        let output = Outlet::Lines(Output::start(std::io::stdout())?);
        Ok(Self { input: input::start(std::io::stdin())?, output })
    }

    /// What has been read already and not been looked at.
    pub fn rest(&mut self) -> Vec<Item> {
        let mut items = Vec::new();
        while let Ok(Read::Items(more)) = self.input.try_recv() {
            items.extend(more);
        }
        items
    }
}

impl Outlet {
    /// What the server said to begin with. The prompt itself comes as a message.
    pub fn begin(&self, start: &Start) {
        match self {
            Self::Lines(_) => {}
            Self::Executor(orders) => drop(orders.send(Order::Begin(Box::new(start.clone())))),
        }
    }

    pub fn message(&self, message: Box<LeasedMessage>) {
        match self {
            Self::Lines(output) => output.say(&json!({"message": message})),
            Self::Executor(orders) => drop(orders.send(Order::Message(message))),
        }
    }

    /// A program at the other end of two pipes reads it as a line, like a message.
    pub fn answer(&self, answer: Box<ApprovalAnswer>) {
        match self {
            Self::Lines(output) => output.say(&json!({"approval": answer})),
            Self::Executor(orders) => drop(orders.send(Order::Answer(answer))),
        }
    }

    /// How much the agent may use. A program at the other end of two pipes has an agent of its own.
    pub fn limits(&self, limits: AgentLimits, held: Option<Limit>) {
        match self {
            Self::Lines(_) => {}
            Self::Executor(orders) => drop(orders.send(Order::Limits(limits, held))),
        }
    }

    /// The sandbox is ending.
    pub fn stop(&self, state: SandboxState) {
        match self {
            Self::Lines(output) => output.say(&json!({"stop": state})),
            Self::Executor(orders) => drop(orders.send(Order::Stop)),
        }
    }

    /// The worker was told to go.
    pub fn leave(&self) {
        match self {
            Self::Lines(_) => {}
            Self::Executor(orders) => drop(orders.send(Order::Leave)),
        }
    }

    /// Events are on disk.
    pub fn keys(&self, keys: RangeInclusive<i64>) {
        match self {
            Self::Lines(output) => output.keys(keys),
            Self::Executor(_) => {}
        }
    }

    /// Something that was asked for can't be done.
    pub fn error(&self, error: &str) {
        match self {
            Self::Lines(output) => output.say(&json!({"error": error})),
            Self::Executor(_) => tracing::warn!(error, "the executor asked for something that can't be done"),
        }
    }

    pub fn has_room(&self) -> bool {
        match self {
            Self::Lines(output) => output.has_room(),
            Self::Executor(_) => true,
        }
    }

    /// Returns when everything that was said has been read.
    pub async fn emptied(&self) {
        match self {
            Self::Lines(output) => {
                while !output.is_empty() {
                    output.written().await;
                }
            }
            Self::Executor(_) => {}
        }
    }

    /// Returns when something has been read since the last call.
    pub async fn written(&self) {
        match self {
            Self::Lines(output) => output.written().await,
            Self::Executor(_) => std::future::pending().await,
        }
    }
}
