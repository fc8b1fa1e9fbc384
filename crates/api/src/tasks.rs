//! Tasks: work that the server queues, dispatches to sandboxes and retries.

use crate::NewSandbox;
use atoll_core::id::{ProjectId, SandboxId, SessionId, TaskId, TicketId};
use atoll_core::sandbox::{ProviderKind, Reason};
use atoll_core::task::{BulkTaskAction, FailureClass, OwnedFiles, TaskCapability, TaskState, TaskWait};
use atoll_core::ticket::{TicketPriority, TicketType};
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// One piece of work for one agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Task {
    pub id: TaskId,
    pub project_id: ProjectId,
    pub ticket_id: Option<TicketId>,
    pub title: String,
    pub description: Option<String>,
    #[serde(rename = "type")]
    pub task_type: TicketType,
    pub priority: TicketPriority,
    pub state: TaskState,
    pub state_since: Timestamp,
    /// What the task waits for while it is queued.
    pub waits_for: Option<TaskWait>,
    /// When the pause or the provider's quota lets it continue.
    pub available_at: Option<Timestamp>,
    /// The task that owns its files now.
    pub waits_for_task: Option<TaskId>,
    /// Its place in the queue: the highest score starts first.
    pub score: Option<f64>,
    /// Tasks of the same project that come first.
    pub depends_on: Vec<TaskId>,
    /// Those of them that have not completed.
    pub blocked_by: Vec<TaskId>,
    /// Number of open tasks that depend on it.
    pub blocks: i64,
    pub owned_files: OwnedFiles,
    pub required_capabilities: Vec<TaskCapability>,
    pub provider: ProviderKind,
    /// The settings of its sandboxes.
    pub sandbox: NewSandbox,
    pub timeout_s: u32,
    pub deadline: Option<Timestamp>,
    pub retries: u32,
    pub max_retries: u32,
    pub revisions: u32,
    pub budget_usd: Option<f64>,
    pub needs_validation: bool,
    /// The sandbox of the current attempt; of the last one while the task validates or after its end.
    pub sandbox_id: Option<SandboxId>,
    pub session_id: Option<SessionId>,
    pub result: Option<String>,
    /// Why the last attempt failed.
    pub error: Option<Reason>,
    pub failure_class: Option<FailureClass>,
    /// The sandboxes that worked on it, oldest first; only in the response for a single task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<Vec<TaskAttempt>>,
    pub version: i64,
    pub created_by: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// One sandbox that worked on a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskAttempt {
    pub number: i64,
    /// Absent if the server could not create one.
    pub sandbox_id: Option<SandboxId>,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// `succeeded`, `failed`, `cancelled` or `waited` (for the provider's quota).
    pub outcome: Option<String>,
    pub class: Option<FailureClass>,
    pub reason: Option<Reason>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewTask {
    pub title: String,
    /// The project; by default the default project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<ProjectId>,
    /// The ticket on whose branch the agent works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket_id: Option<TicketId>,
    /// What the agent shall do, after the title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `feature` by default.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub task_type: Option<TicketType>,
    /// `medium` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<TicketPriority>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 50))]
    pub depends_on: Vec<TaskId>,
    /// Globs of the files that only this task may change while it runs.
    #[serde(default)]
    pub owned_files: OwnedFiles,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub required_capabilities: Vec<TaskCapability>,
    /// Settings of its sandboxes, such as `agent`, `mode`, `provider` and `repo`.
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<NewSandbox>,
    /// Time limit of one attempt; by default the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 604_800))]
    pub timeout_s: Option<u32>,
    /// A task moves ahead in the queue as its deadline comes near.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// By default the server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 10))]
    pub max_retries: Option<u32>,
    /// Model costs of all attempts together, in US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_usd: Option<f64>,
    /// Finished work waits for a verdict before the task completes.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub needs_validation: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeTask {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// `null` removes the description.
    #[serde(default, deserialize_with = "crate::deserialize_present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub description: Option<Option<String>>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub task_type: Option<TicketType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<TicketPriority>,
    /// Replaces all dependencies; only while the task is queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 50))]
    pub depends_on: Option<Vec<TaskId>>,
    /// Only while the task is queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owned_files: Option<OwnedFiles>,
    /// `null` removes the deadline.
    #[serde(default, deserialize_with = "crate::deserialize_present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Timestamp>))]
    pub deadline: Option<Option<Timestamp>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 10))]
    pub max_retries: Option<u32>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct TaskListQuery {
    pub project: Option<ProjectId>,
    pub state: Option<TaskState>,
    /// Queued tasks that wait for this.
    pub waits_for: Option<TaskWait>,
    #[serde(rename = "type")]
    pub task_type: Option<TicketType>,
    pub priority: Option<TicketPriority>,
    pub ticket: Option<TicketId>,
    pub session: Option<SessionId>,
    /// Only tasks that the caller created.
    #[serde(default)]
    pub mine: bool,
    /// Only tasks that have not ended.
    #[serde(default)]
    pub open: bool,
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 200))]
    pub limit: Option<i64>,
    pub cursor: Option<String>,
}

/// One action on many tasks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BulkTasks {
    pub action: BulkTaskAction,
    #[cfg_attr(feature = "openapi", schema(max_items = 200))]
    pub ids: Vec<TaskId>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BulkTaskResults {
    /// In the order of the request.
    pub items: Vec<BulkTaskResult>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BulkTaskResult {
    pub id: TaskId,
    /// The task's state after the action.
    pub state: Option<TaskState>,
    /// The error code, if the action was refused.
    pub code: Option<String>,
    pub detail: Option<String>,
}

/// A worker's report that the work on its task is over.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskReport {
    /// `true` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The verdict on the finished work of a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ValidationVerdict {
    pub passed: bool,
    /// What the next attempt shall change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<String>,
}
