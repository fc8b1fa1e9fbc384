//! Data of events about sandboxes, sessions, messages, files, workers and results.

use atoll_core::id::{MessageId, SessionId};
use atoll_core::message::{Delivery, DeliveryMethod, MessageState, MessageType};
use atoll_core::sandbox::{Activity, Outcome, Reason, SandboxState};
use atoll_core::session::SessionState;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerRejected {
    /// The worker's stream.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub stream: Uuid,
    /// The event's key in the stream.
    pub key: i64,
    /// The stable code of the reason.
    pub code: String,
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogTruncated {
    /// Bytes of the stored events and blobs.
    pub log_bytes: u64,
    /// Their maximum.
    pub quota_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerLost {
    /// The worker's stream.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = "uuid"))]
    pub stream: Option<Uuid>,
    /// The key of the last event that the server has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_key: Option<i64>,
    /// The key of the one lost event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<i64>,
    /// Number of lost events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxPending {
    pub state: SandboxState,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxTransition {
    pub state: SandboxState,
    pub outcome: Option<Outcome>,
    pub reason: Option<Reason>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxActivity {
    pub activity: Activity,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxSnapshot {
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxNotice {
    pub text: String,
    /// The notice holds for every sandbox of this machine, such as a missing disk quota. The view of a run omits it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub routine: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiskFull {
    pub text: String,
    pub used_bytes: u64,
    pub limit_bytes: u64,
    /// Number of processes that the provider ended.
    pub stopped: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageContent {
    pub message_id: MessageId,
    #[serde(rename = "type")]
    pub message_type: MessageType,
    pub delivery: Delivery,
    pub position: i64,
    /// The start of the content.
    pub content: String,
    /// The length of the whole content.
    pub content_bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageOutcome {
    pub message_id: MessageId,
    pub state: MessageState,
    /// The way in which the agent got the message.
    pub how: Option<DeliveryMethod>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilesWritten {
    pub path: String,
    pub bytes: u64,
    /// Number of files, directories and links of an archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FilePath {
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileMoved {
    pub from: String,
    pub to: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitCloned {
    pub commit: Option<String>,
    pub branch: Option<String>,
    /// Path of the repository on the server's machine, or its URL.
    pub repo: Option<String>,
    /// Number of files with uncommitted changes, which the sandbox does not have.
    pub uncommitted: u64,
    /// Submodules, whose directories are empty in the sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub submodules: Vec<String>,
    /// Submodules that the sandbox has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filled_submodules: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitBranchCreated {
    pub branch: String,
    pub commit: String,
    /// The branch's commit before, if the export fast-forwarded the session's own branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    pub base: String,
    /// Number of commits.
    pub commits: u64,
    /// The changed files, with the lines added and removed.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub files: Vec<Value>,
    /// Changed files that deserve a second look: they decide what machines run, or where code comes from.
    pub flagged: Vec<String>,
    /// Remarks about the export.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub notes: Vec<Value>,
    /// Path of the repository on the server's machine, or its URL.
    pub repo: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitNothingChanged {
    pub base: Option<String>,
    /// Path of the repository on the server's machine, or its URL.
    pub repo: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorktreeSyncedIn {
    /// The sync commit of the worktree.
    pub commit: String,
    pub changed_files: u64,
    /// Bytes that the worktree sent.
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorktreeSyncedOut {
    /// The sync commit that the changes build on.
    pub base: String,
    /// The sync commit of the workspace.
    pub commit: String,
    /// Bytes that the sandbox sent.
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SecretsExposed {
    pub text: String,
    pub secrets: Vec<ExposedSecret>,
}

/// A secret whose value the sandbox holds, in a variable or in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExposedSecret {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variable: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionOpened {
    pub session_id: SessionId,
    pub title: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionResumed {
    pub session_id: SessionId,
    pub title: String,
    /// The agent's own id of the conversation.
    pub native_id: Option<String>,
    /// The blob of the agent's transcript.
    pub transcript: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionChanged {
    pub session_id: SessionId,
    pub title: String,
    pub state: SessionState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionForked {
    pub session_id: SessionId,
    /// The new session.
    pub fork: SessionId,
}
