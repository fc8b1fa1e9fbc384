//! The demo agent's lines.

use atoll_core::id::MessageId;
use atoll_core::message::How;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// The argument that says that somebody looks at what each tool changes, and says `seen` then. Two tools right after
/// each other would else look like one.
pub const WATCHED: &str = "watched";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    pub id: MessageId,
    #[serde(default)]
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub approval_id: String,
    pub decision: Decision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Other input than what it wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Allow,
    Deny,
}

/// To the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum In {
    /// Begins a turn.
    Prompt(Prompt),
    /// Into the running turn.
    Steer(Prompt),
    Interrupt(Prompt),
    Answer(Answer),
    /// What this tool changed has been looked at.
    Seen {
        tool_use_id: String,
    },
}

/// From the agent: one of `event` with its `data`, `receipt`, `idle` and `before`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Out<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub data: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<Receipt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<Idle>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Before>,
}

/// A tool is about to be used, if nobody is against it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    pub tool_use_id: String,
    pub tool: String,
    pub input: Value,
}

/// What the answer to it is known by.
pub fn before(tool_use_id: &str) -> String {
    format!("before_{tool_use_id}")
}

/// It has the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub id: MessageId,
    pub how: How,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
}

/// Its turn is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    pub turn: i64,
}
