//! Frames of the worker's WebSocket, as JSON text.

use crate::{Ack, Heartbeat, HeartbeatAnswer, LeasedMessage, Nack};
use atoll_core::approval::ApprovalAnswer;
use atoll_core::id::{LeaseId, MessageId};
use atoll_core::limit::Limit;
use atoll_core::sandbox::{AgentLimits, SandboxState};
use serde::{Deserialize, Serialize};

/// From the server. A `message` frame is a lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ServerFrame {
    Message {
        message: LeasedMessage,
    },
    /// What became of something that the agent asked; again after each new connection, until the worker says that the
    /// agent has it.
    Approval {
        answer: ApprovalAnswer,
    },
    /// How much the agent may use, at the beginning of each connection and whenever that changes.
    Limits {
        limits: AgentLimits,
        /// The server itself holds the agent back: what it counts is used up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        held: Option<Limit>,
    },
    /// Something for the worker itself to do.
    Command {
        id: u64,
        command: Command,
    },
    /// The answer to a `heartbeat` frame.
    Heartbeat {
        answer: Box<HeartbeatAnswer>,
    },
    /// The answer to an `ack`, `nack` or `renew` frame: what could not be done, and why.
    Refused {
        id: Option<MessageId>,
        lease: LeaseId,
        code: String,
        detail: String,
    },
    /// An `ack` or `nack` frame is stored.
    Settled {
        id: MessageId,
        lease: LeaseId,
    },
    Ping {
        id: u64,
    },
    /// A frame of a newer server.
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Command {
    /// The sandbox has left `running`: stop the agent, flush and go.
    Stop { state: SandboxState },
    /// A command of a newer server.
    #[serde(other)]
    Unknown,
}

/// From the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WorkerFrame {
    Renew {
        leases: Vec<LeaseId>,
    },
    Ack {
        id: MessageId,
        #[serde(flatten)]
        ack: Ack,
    },
    Nack {
        id: MessageId,
        #[serde(flatten)]
        nack: Nack,
    },
    Heartbeat {
        #[serde(flatten)]
        heartbeat: Heartbeat,
        /// Nobody waits for an answer that says nothing new.
        #[serde(default)]
        quiet: bool,
    },
    /// Streamed text that is never stored; `after_key` places it.
    Live {
        after_key: i64,
        data: serde_json::Value,
    },
    Pong {
        id: u64,
    },
    /// A frame of a newer worker.
    #[serde(other)]
    Unknown,
}
