//! The demo agent's protocol.

use atoll_core::id::MessageId;
use atoll_core::message::DeliveryMethod;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// Argument that makes the agent wait for `seen` after each tool call, so that the watcher can attribute file changes
/// to it.
pub const WATCHED_ARGUMENT: &str = "watched";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemoPrompt {
    pub id: MessageId,
    #[serde(default)]
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemoAnswer {
    pub approval_id: String,
    pub decision: DemoDecision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Replaces the tool's input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DemoDecision {
    Allow,
    Deny,
}

/// Input of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DemoInput {
    /// Starts a turn.
    Prompt(DemoPrompt),
    /// Joins the running turn.
    Steer(DemoPrompt),
    Interrupt(DemoPrompt),
    Answer(DemoAnswer),
    /// The watcher has recorded this tool's file changes.
    Seen {
        tool_use_id: String,
    },
}

/// Output of the agent: `event` with `data`, `receipt`, `idle` or `before`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct DemoOutput<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub data: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<DemoReceipt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<DemoIdle>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<ToolCheck>,
}

/// Asks for permission before a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCheck {
    pub tool_use_id: String,
    pub tool: String,
    pub input: Value,
}

/// Id of the answer to a [`ToolCheck`].
pub fn tool_check_id(tool_use_id: &str) -> String {
    format!("before_{tool_use_id}")
}

/// The agent has received the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemoReceipt {
    pub id: MessageId,
    pub how: DeliveryMethod,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
}

/// The turn has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemoIdle {
    pub turn: i64,
}
