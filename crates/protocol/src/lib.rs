//! What a worker and the server say to each other.
//!
//! The protocol carries a version, and a newer server talks to an older worker: fields are only
//! added, unknown ones are ignored on both sides. `tests` freezes the written form.

use atoll_core::event::{EventType, Source};
use atoll_core::id::{LeaseId, MessageId, SandboxId, SessionId};
use atoll_core::message::{Delivery, How, MessageType};
use atoll_core::sandbox::{Activity, SandboxState, Settings};
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

pub mod exec;
pub mod files;
pub mod frame;
pub mod link;
#[cfg(test)]
mod tests;

pub const VERSION: u32 = 1;

/// Events on their way up. `stream` is made anew at each start of a worker and `key` counts
/// 1, 2, 3 … within it. What an earlier stream left is sent with that `stream` and `by` the sender's own.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Batch {
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub stream: Uuid,
    /// Kept beside the spool and raised before each start; the highest registered one wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = "uuid"))]
    pub by: Option<Uuid>,
    /// Nothing follows after this batch.
    #[serde(default, rename = "final", skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<BatchEvent>, max_items = 500))]
    pub events: Vec<Box<RawValue>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchEvent {
    pub key: i64,
    #[serde(rename = "type")]
    pub event_type: EventType,
    #[serde(default = "agent")]
    pub source: Source,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    #[serde(default = "empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: Box<RawValue>,
}

const fn agent() -> Source {
    Source::Agent
}

fn empty() -> Box<RawValue> {
    atoll_core::json::raw(&serde_json::json!({}))
}

/// The one field that an event in a batch can't do without.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct KeyOnly {
    pub key: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rejected {
    pub key: i64,
    pub code: String,
    pub detail: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BatchAnswer {
    pub stored: u64,
    pub duplicates: u64,
    pub rejected: Vec<Rejected>,
    pub last_key: i64,
    pub last_seq: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Heartbeat {
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub stream: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<i64>,
    #[serde(default = "first_version")]
    pub protocol: u32,
    pub at: Timestamp,
    #[serde(default)]
    pub last_key: i64,
    /// While it is `starting`, the answer holds `start`.
    pub activity: Activity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<f64>,
}

const fn first_version() -> u32 {
    1
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeartbeatAnswer {
    pub state: SandboxState,
    pub interval_s: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
}

/// What a worker needs to begin: settings, the first message already leased to it, and what to resume.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Start {
    pub sandbox_id: SandboxId,
    pub session_id: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<LeasedMessage>,
    pub settings: Settings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
    /// Where the agent's program lies in the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Gateway>,
}

/// How the sandbox reaches models. The key is a placeholder that is good for nothing elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gateway {
    /// The origin, without a path; each API has its own below it: `/anthropic`, `/openai/v1`, `/gemini`.
    pub base_url: String,
    pub key: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Resume {
    /// The agent's own name for the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native_id: Option<String>,
    /// The blob of this sandbox that holds the agent's own transcript.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<String>,
    /// The agent's files are in the sandbox already, as they were in the one that it comes from.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_place: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeasedMessage {
    pub id: MessageId,
    pub session_id: SessionId,
    #[serde(rename = "type")]
    pub message_type: MessageType,
    pub delivery: Delivery,
    pub content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<String>,
    pub position: i64,
    pub created_at: Timestamp,
    pub lease: LeaseId,
    pub lease_until: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseRequest {
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub stream: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<i64>,
    #[serde(default = "one")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100))]
    pub max: u32,
    /// How long the server waits for a message when there is none.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 60))]
    pub wait_s: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub renew: Vec<LeaseId>,
}

const fn one() -> u32 {
    1
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseAnswer {
    pub items: Vec<LeasedMessage>,
    /// Leases that could not be renewed: somebody else has the message, or it is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LeaseId>,
    /// Set when the sandbox takes no further messages: the worker should stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SandboxState>,
}

/// The agent has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ack {
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub stream: Uuid,
    pub lease: LeaseId,
    pub how: How,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
}

/// The agent does not have it, or nobody can say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Nack {
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub stream: Uuid,
    pub lease: LeaseId,
    /// It was handed over before the worker lost sight of it.
    pub handed: bool,
    #[serde(default)]
    pub reason: String,
    /// Worth another try.
    #[serde(default)]
    pub retry: bool,
}

/// Asked before each prompt by a worker whose sandbox names secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoginsRequest {
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub stream: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<i64>,
    /// The `version` of the last answer, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<String>,
}

/// All login files that there are to be. Others that were written earlier are to be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoginsAnswer {
    pub files: Vec<LoginFile>,
    /// The same as long as nobody changes one of them.
    pub version: String,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoginFile {
    /// Below the agent's home.
    pub path: String,
    /// What it holds: a secret.
    pub text: String,
}

impl std::fmt::Debug for LoginFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginFile").field("path", &self.path).finish_non_exhaustive()
    }
}
