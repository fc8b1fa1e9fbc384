//! Frames of the worker's WebSocket, as JSON text. Heartbeats, events and acknowledgements use HTTP.

use crate::LeasedMessage;
use atoll_core::approval::ApprovalAnswer;
use atoll_core::id::LeaseId;
use atoll_core::limit::Limit;
use atoll_core::sandbox::{AgentLimits, SandboxState};
use serde::{Deserialize, Serialize};

/// Frame from the server. A `message` frame is a lease.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ServerFrame {
    Message {
        message: LeasedMessage,
    },
    /// Answer to an approval request. The server resends it on each new connection until the worker reports that
    /// the agent has received it.
    Approval {
        answer: ApprovalAnswer,
    },
    /// The agent's limits, sent at the start of each connection and on every change.
    Limits {
        limits: AgentLimits,
        /// The server pauses the agent because this limit, which the server counts, is used up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        held: Option<Limit>,
    },
    /// Tool calls that the guardian denies from now on, sent at the start of each connection and on every change.
    Denials {
        calls: Vec<DeniedCall>,
    },
    /// A command for the worker itself.
    Command {
        id: u64,
        command: WorkerCommand,
    },
    /// The server did not renew this lease.
    Refused {
        lease: LeaseId,
        code: String,
        detail: String,
    },
    Ping {
        id: u64,
    },
    /// A frame of a newer server.
    #[serde(other)]
    Unknown,
}

/// A call that the agent must not repeat: every later call of the same tool with the same input is denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedCall {
    /// An earlier call, by its id; the worker remembers its input.
    pub tool_use_id: String,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum WorkerCommand {
    /// The sandbox has left `running`: stop the agent, flush and exit.
    Stop { state: SandboxState },
    /// A command of a newer server.
    #[serde(other)]
    Unknown,
}

/// Frame from the worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum WorkerFrame {
    Renew {
        leases: Vec<LeaseId>,
    },
    /// Streamed text that is never stored; `after_key` gives its position.
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
