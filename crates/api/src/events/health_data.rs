//! Data of events about the health of sandboxes, sessions and providers.

use atoll_core::health::IdleAction;
use atoll_core::id::SessionId;
use atoll_core::sandbox::{ProviderKind, Reason};
use atoll_core::task::FailureClass;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerSilence {
    /// Time since the last heartbeat.
    pub silent_s: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerRestarted {
    /// Time since the last heartbeat.
    pub silent_s: u64,
    /// Earlier restarts of the session within the last hour.
    pub earlier: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxStalled {
    /// Time since the last work event.
    pub without_work_s: u64,
}

/// A patch that the server stored as a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SavedDiff {
    /// SHA-256 of the patch, and the name of its blob.
    pub blob: String,
    pub bytes: u64,
}

/// What the server stored before it paused, ended or removed a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SavedWork {
    /// The blob of the agent's newest transcript.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<String>,
    /// The changes since the base commit; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<SavedDiff>,
    /// Why the changes could not be stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxIdle {
    /// Time without work and without use by a person.
    pub idle_s: u64,
    pub action: IdleAction,
    pub saved: SavedWork,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionRestartPlanned {
    pub session_id: SessionId,
    pub class: FailureClass,
    /// Time until the next sandbox.
    pub delay_s: u64,
    /// Earlier restarts of the session within the last hour.
    pub earlier: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionEscalated {
    pub session_id: SessionId,
    pub class: FailureClass,
    /// Why the last sandbox failed.
    pub reason: Reason,
    /// Restarts of the session within the last hour.
    pub restarts: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProviderReplaced {
    /// The provider whose circuit is open.
    pub requested: ProviderKind,
    /// The project's fallback, which creates the sandbox.
    pub provider: ProviderKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CircuitOpened {
    pub provider: ProviderKind,
    /// Consecutive failures.
    pub failures: u32,
    /// When the server tries again.
    pub until: Timestamp,
    pub detail: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CircuitClosed {
    pub provider: ProviderKind,
}
