//! Data of events about tasks.

use atoll_core::id::TaskId;
use atoll_core::sandbox::Reason;
use atoll_core::task::FailureClass;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskProgress {
    pub task_id: TaskId,
    pub title: String,
    /// Failed attempts that were followed by another.
    pub retries: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskTimeLeft {
    pub task_id: TaskId,
    /// Seconds until the server ends the sandbox.
    pub left_s: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskVerdict {
    pub task_id: TaskId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
    /// Validations that refused the work so far.
    pub revisions: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskSetback {
    pub task_id: TaskId,
    /// Absent if the provider's quota is used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<FailureClass>,
    pub reason: Reason,
    pub retries: u32,
    /// Seconds until the next attempt may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_s: Option<u64>,
}
