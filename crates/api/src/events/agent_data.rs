//! Data of the events `agent.*`: what the agent does, as its driver and the worker report it.

use crate::is_false;
use atoll_core::id::MessageId;
use atoll_core::message::DeliveryMethod;
use atoll_core::provider::CommandExit;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

/// No data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Empty {}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentStarted {
    /// The agent's name, such as `claude`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The name that the agent program reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The agent's own id of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native_id: Option<String>,
    /// The tools that the agent has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permission_mode: Option<Value>,
    /// Number of the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    /// The message that began the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentCompleted {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    /// `end_turn`, `max_tokens` or the agent's own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Number of requests to the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<i64>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<Number>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentFailed {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    /// `agent_failed`, `agent_exited`, `agent_crashed`, `agent_not_started`, `out_of_memory` or
    /// `service_failed`.
    pub reason: String,
    pub error: String,
    /// The end of the agent's standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_tail: Option<String>,
    /// Exit of the agent's process.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<CommandExit>,
    /// The sandbox's memory limit in bytes, if the memory ran out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// The highest memory use in bytes, if the memory ran out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentShutdown {
    pub reason: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentText {
    pub text: String,
    /// `text` is truncated.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// Size of the whole text, if `text` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_bytes: Option<u64>,
    /// Hash of the blob with the whole text, if `text` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_blob: Option<String>,
    /// The tool call of the subagent that wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tool_use_id: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AssistantMessage {
    pub content: Vec<AssistantPart>,
    /// The model's id of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The tool call of the subagent whose model responded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tool_use_id: Option<String>,
}

/// One part of a model's response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum AssistantPart {
    Text { characters: u64 },
    Thinking { characters: u64 },
    ToolUse { tool_use_id: Option<String>, tool: Option<String> },
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserToolResult {
    pub results: Vec<ToolResultPart>,
    /// The tool call of the subagent whose model receives them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tool_use_id: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolResultPart {
    pub tool_use_id: Option<String>,
    pub is_error: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageInjected {
    pub message_id: MessageId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<DeliveryMethod>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentInterrupted {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    /// The interrupt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The worker killed the agent, because it did not react.
    #[serde(default, skip_serializing_if = "is_false")]
    pub forced: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentUnparsed {
    /// The start of the line.
    pub excerpt: String,
    pub reason: String,
    /// The line's length.
    pub bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentSystemMessage {
    /// The kind of notice, such as `resume_failed` or a word of the agent.
    pub subtype: String,
    /// The agent's notice; the start of its text if it is too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// `data` is truncated.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// Size of the whole notice, if `data` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<u64>,
    /// Hash of the blob with the whole notice, if `data` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_blob: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentStreamError {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_in_ms: Option<Value>,
    /// HTTP status of the failed request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentRateLimited {
    /// When the agent may continue, if the model said so.
    pub until: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentError {
    pub error: String,
    /// `error` is truncated.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// Size of the whole error, if `error` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_bytes: Option<u64>,
    /// Hash of the blob with the whole error, if `error` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_blob: Option<String>,
    /// HTTP status of the failed request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Value>,
    /// The agent's name of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The operation that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentPlan {
    /// Steps with `text` and `state`; the start of their text if the plan is too long.
    pub items: Value,
    /// `items` is truncated.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// Size of the whole plan, if `items` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_bytes: Option<u64>,
    /// Hash of the blob with the whole plan, if `items` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items_blob: Option<String>,
    /// The items extend the plan; otherwise they replace it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub adds: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SubagentInvoked {
    pub tool_use_id: String,
    pub description: Value,
    /// The type of the subagent.
    pub subagent: Value,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SkillInvoked {
    pub tool_use_id: String,
    pub skill: Value,
}

/// The result of a subagent or a skill.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DelegationCompleted {
    pub tool_use_id: String,
    pub output: String,
    pub is_error: bool,
    /// `output` is truncated.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// Size of the whole output, if `output` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Hash of the blob with the whole output, if `output` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_blob: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentUsage {
    /// Input tokens that were neither read from a cache nor written to one.
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cache_read_tokens: i64,
    pub cache_write_tokens: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// `price_table` if the server computed the cost; absent if the agent reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentTranscript {
    pub agent: Option<String>,
    pub native_id: Option<String>,
    /// The blob's hash.
    pub blob: String,
    pub bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TranscriptFailed {
    pub native_id: Option<String>,
    pub error: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolUse {
    pub tool: String,
    pub tool_use_id: String,
    /// The tool's input; the start of its text if it is too long.
    pub input: Value,
    /// `input` is truncated.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// Size of the whole input, if `input` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_bytes: Option<u64>,
    /// Hash of the blob with the whole input, if `input` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_blob: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The tool call of the subagent that made this call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tool_use_id: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolCompleted {
    pub tool: String,
    pub tool_use_id: String,
    pub output: Value,
    pub is_error: bool,
    /// `output` is truncated.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// Size of the whole output, if `output` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
    /// Hash of the blob with the whole output, if `output` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_blob: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// Exit of a command of the demo agent.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<CommandExit>,
    /// The tool call of the subagent that made this call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tool_use_id: Option<String>,
}

/// A change of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileEdited {
    /// Path in the workspace; bytes that are not UTF-8 are written as `\xNN`.
    pub file_path: String,
    pub change_type: FileChangeType,
    /// The previous path of a renamed file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_path: Option<String>,
    pub lines_added: u64,
    pub lines_removed: u64,
    /// The start of the diff.
    pub diff_preview: String,
    /// Absent for binary and very large files, and for files whose old content is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_diff: Option<String>,
    /// `full_diff` is incomplete.
    #[serde(default, skip_serializing_if = "is_false")]
    pub full_diff_truncated: bool,
    /// Size of the whole diff, if `full_diff` is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_diff_bytes: Option<u64>,
    /// Hash of the blob with the whole diff, if `full_diff` is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_diff_blob: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub binary: bool,
    /// The file's size, if there is no diff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The file's hash, if there is no diff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    /// The tool call that ran when the file changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FileChangeType {
    Created,
    Modified,
    Deleted,
    Renamed,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SettingsIgnored {
    pub settings: Vec<UnsupportedSetting>,
}

/// A setting that an agent cannot follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UnsupportedSetting {
    pub setting: String,
    pub reason: String,
}
