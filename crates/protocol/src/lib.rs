//! The protocol between workers and the server.
//!
//! The protocol is versioned, and a newer server supports an older worker: fields are only added, and both sides ignore
//! unknown ones. `tests` freezes the wire format.

use atoll_core::agent::AcpLaunch;
use atoll_core::event::{EventSource, EventType};
use atoll_core::id::{LeaseId, MessageId, ProjectId, SandboxId, SessionId};
use atoll_core::message::{Delivery, DeliveryMethod, MessageType};
use atoll_core::model::ModelApi;
use atoll_core::sandbox::{Activity, SandboxState, Settings};
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

mod event_blob;
pub mod exec;
pub mod files;
pub mod frame;
pub mod link;
#[cfg(test)]
mod tests;

pub use event_blob::{EventBlob, hash_content, is_blob_name};

pub const PROTOCOL_VERSION: u32 = 1;

/// The port on a sandbox's loopback interface where programs find the egress proxy and the gateway.
///
/// It is the same in every sandbox, so that environment variables can name it before anything runs.
pub const PROXY_PORT: u16 = 7709;

/// A batch of events from a worker. Each worker start creates a new `stream`, and `key` counts 1, 2, 3 … within it.
///
/// A worker sends the remaining events of an earlier stream with that `stream`, and with its own stream as `by`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Batch {
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub stream: Uuid,
    /// Boot counter, stored beside the spool and incremented before each start; the highest registered one wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = "uuid"))]
    pub by: Option<Uuid>,
    /// This is the last batch.
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
    pub source: EventSource,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    #[serde(default = "empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: Box<RawValue>,
}

const fn agent() -> EventSource {
    EventSource::Agent
}

fn empty() -> Box<RawValue> {
    atoll_core::json::to_raw_json(&serde_json::json!({}))
}

/// An event of a batch with only its required field.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct BatchEventKey {
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
    /// Events that the log's quota did not admit. They are not sent again.
    #[serde(default)]
    pub dropped: u64,
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
    /// While this is `starting`, the response contains `start`.
    pub activity: Activity,
    /// Processors in use since the last heartbeat, by the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Memory of the sandbox in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Disk space of the sandbox in bytes, if the worker can measure it.
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

/// Start data of a worker: settings, the first message already leased to it, and the session state to resume.
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
    /// Path of the agent's program in the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Gateway>,
    /// The agent is one of the Agent Client Protocol that the server's configuration names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acp: Option<AcpLaunch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<ProjectId>,
    /// The server's URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
    /// Files that the worker writes before anything else, such as the settings of package managers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<HomeFile>,
}

/// A file in the agent's home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HomeFile {
    /// Relative to the home.
    pub path: String,
    pub text: String,
}

/// Access to the model gateway. The key is a placeholder that is useless elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Gateway {
    /// The origin, without a path; each API has its own path: `/anthropic`, `/openai/v1`, `/gemini`.
    pub base_url: String,
    pub key: String,
    /// The APIs whose keys are available; empty if the server does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apis: Vec<ModelApi>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Resume {
    /// The agent's own conversation id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native_id: Option<String>,
    /// Blob of this sandbox with the agent's own transcript.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<String>,
    /// The agent's files are already in the sandbox, copied from its origin.
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

#[cfg(feature = "testing")]
impl LeasedMessage {
    /// A user message with new ids.
    pub fn example(content: &str, delivery: Delivery) -> Self {
        Self {
            id: MessageId::new(),
            session_id: SessionId::new(),
            message_type: MessageType::UserMessage,
            delivery,
            content: content.to_owned(),
            sender: None,
            position: 0,
            created_at: Timestamp::from_micros(0),
            lease: LeaseId::new(),
            lease_until: Timestamp::from_micros(i64::MAX),
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseRequest {
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub stream: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<i64>,
    #[serde(default = "default_lease_max")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 100))]
    pub max: u32,
    /// Long-poll duration if there is no message.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 60))]
    pub wait_s: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub renew: Vec<LeaseId>,
}

const fn default_lease_max() -> u32 {
    1
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeaseAnswer {
    pub items: Vec<LeasedMessage>,
    /// Leases that could not be renewed: another worker holds the message, or it is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LeaseId>,
    /// Set when the sandbox accepts no more messages: the worker should stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SandboxState>,
}

/// Reports that the agent has received the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ack {
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub stream: Uuid,
    pub lease: LeaseId,
    pub how: DeliveryMethod,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
}

/// Reports that the agent does not have the message, or that the worker does not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Nack {
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub stream: Uuid,
    pub lease: LeaseId,
    /// The worker handed the message over before it lost track of it.
    pub handed: bool,
    #[serde(default)]
    pub reason: String,
    /// The server should retry.
    #[serde(default)]
    pub retry: bool,
}

/// Request for login files, sent before each prompt by a worker whose sandbox uses secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoginsRequest {
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub stream: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<i64>,
    /// The `version` of the last response, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<String>,
}

/// All login files of the sandbox. The worker removes files that it wrote earlier and that are not listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoginsAnswer {
    pub files: Vec<LoginFile>,
    /// Changes whenever one of the files changes.
    pub version: String,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoginFile {
    /// Relative to the agent's home.
    pub path: String,
    /// Content of the file: a secret.
    pub text: String,
}

impl std::fmt::Debug for LoginFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginFile").field("path", &self.path).finish_non_exhaustive()
    }
}
