//! Events: one thing that happened, numbered per sandbox, never changed.

use crate::id::{SandboxId, SessionId};
use crate::time::Timestamp;
use crate::words;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fmt;
use uuid::Uuid;

words! {
    "event source"
    Source {
        Agent = "agent",
        Worker = "worker",
        System = "system",
        Guardian = "guardian",
        User = "user",
        Forge = "forge",
    }
}

pub const MAX_TYPE: usize = 100;

/// `[a-z0-9_.]{1,100}`. Unknown types are stored and shown like known ones.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^[a-z0-9_.]{1,100}$"))]
pub struct EventType(Box<str>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an event type has 1 to {MAX_TYPE} characters of a-z, 0-9, `_` and `.`")]
pub struct BadType;

impl EventType {
    pub fn new(text: &str) -> Result<Self, BadType> {
        let fits = (1..=MAX_TYPE).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'.');
        if fits { Ok(Self(text.into())) } else { Err(BadType) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl<'de> Deserialize<'de> for EventType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&text).map_err(serde::de::Error::custom)
    }
}

/// The types that Atoll itself gives a meaning to.
pub mod kind {
    pub const AGENT_STARTED: &str = "agent.started";
    pub const AGENT_COMPLETED: &str = "agent.completed";
    pub const AGENT_FAILED: &str = "agent.failed";
    pub const AGENT_WAITING: &str = "agent.waiting";
    pub const AGENT_SHUTDOWN: &str = "agent.shutdown";
    pub const AGENT_HEARTBEAT: &str = "agent.heartbeat";
    pub const AGENT_MESSAGE: &str = "agent.message";
    /// An answer of its model as a whole: which parts it has. What stands in them is told by their own events.
    pub const AGENT_ASSISTANT_MESSAGE: &str = "agent.assistant_message";
    /// Results of tools that its model gets back together.
    pub const AGENT_USER_TOOL_RESULT: &str = "agent.user_tool_result";
    pub const AGENT_MESSAGE_INJECTED: &str = "agent.message_injected";
    pub const AGENT_INTERRUPTED: &str = "agent.interrupted";
    pub const AGENT_UNPARSED: &str = "agent.unparsed";
    pub const AGENT_THINKING: &str = "agent.thinking";
    pub const AGENT_SYSTEM_MESSAGE: &str = "agent.system_message";
    pub const AGENT_STREAM_ERROR: &str = "agent.stream_error";
    /// Its model told it to wait, and until when where that is known.
    pub const AGENT_RATE_LIMITED: &str = "agent.rate_limited";
    pub const AGENT_ERROR: &str = "agent.error";
    pub const AGENT_PLAN: &str = "agent.plan";
    pub const AGENT_SUBAGENT_INVOKED: &str = "agent.subagent_invoked";
    pub const AGENT_SUBAGENT_COMPLETED: &str = "agent.subagent_completed";
    pub const AGENT_SKILL_INVOKED: &str = "agent.skill_invoked";
    pub const AGENT_SKILL_COMPLETED: &str = "agent.skill_completed";
    pub const AGENT_USAGE: &str = "agent.usage";
    /// The agent's own transcript is a blob by now, or why it is not.
    pub const AGENT_TRANSCRIPT: &str = "agent.transcript";
    pub const AGENT_TRANSCRIPT_FAILED: &str = "agent.transcript_failed";
    pub const AGENT_TOOL_USE: &str = "agent.tool_use";
    pub const AGENT_TOOL_COMPLETED: &str = "agent.tool_completed";
    pub const AGENT_FILE_EDITED: &str = "agent.file_edited";
    pub const APPROVAL_REQUESTED: &str = "approval.requested";
    /// A person has said what is to become of it; the agent may not have heard it yet.
    pub const APPROVAL_ANSWERED: &str = "approval.answered";
    pub const APPROVAL_RESOLVED: &str = "approval.resolved";
    /// Settings that the agent has no way to follow.
    pub const AGENT_SETTINGS_IGNORED: &str = "agent.settings_ignored";
    pub const CONTINUOUS_STARTED: &str = "continuous.started";
    pub const CONTINUOUS_VALIDATING: &str = "continuous.validating";
    pub const CONTINUOUS_CHECK: &str = "continuous.check";
    pub const CONTINUOUS_CHECKED: &str = "continuous.checked";
    pub const CONTINUOUS_RUN_FAILED: &str = "continuous.run_failed";
    pub const CONTINUOUS_PASSED: &str = "continuous.passed";
    pub const CONTINUOUS_STOPPED: &str = "continuous.stopped";
    pub const WORKER_REJECTED: &str = "worker.rejected";
    pub const SANDBOX_DISK_FULL: &str = "sandbox.disk_full";
    pub const WORKER_LOST: &str = "worker.lost";
    pub const MESSAGE_QUEUED: &str = "message.queued";
    pub const MESSAGE_EDITED: &str = "message.edited";
    pub const MESSAGE_CANCELLED: &str = "message.cancelled";
    pub const MESSAGE_ACKNOWLEDGED: &str = "message.acknowledged";
    pub const MESSAGE_UNDELIVERABLE: &str = "message.undeliverable";
    pub const MESSAGE_UNCONFIRMED: &str = "message.delivered_unconfirmed";
    pub const NETWORK_CHANGED: &str = "network.changed";
    pub const NETWORK_REFUSED: &str = "network.refused";
    pub const MODEL_REFUSED: &str = "model.refused";
    /// Most of a limit is used, and the agent hears of it.
    pub const LIMIT_WARNED: &str = "limit.warned";
    /// The agent stands still until a person raises the limit.
    pub const LIMIT_PAUSED: &str = "limit.paused";
    pub const LIMIT_RESUMED: &str = "limit.resumed";
    pub const LIMIT_CHANGED: &str = "limit.changed";
    /// A tool call that a rule did not let run.
    pub const GUARDIAN_DENIED: &str = "guardian.denied";
    /// A tool call that a rule gave other input.
    pub const GUARDIAN_CHANGED: &str = "guardian.changed";
    pub const GUARDIAN_DETECTED: &str = "guardian.detected";
    pub const GUARDIAN_NUDGED: &str = "guardian.nudged";
    pub const FILES_WRITTEN: &str = "files.written";
    pub const FILES_MADE: &str = "files.made";
    pub const FILES_MOVED: &str = "files.moved";
    pub const FILES_DELETED: &str = "files.deleted";
    pub const SESSION_OPENED: &str = "session.opened";
    pub const SESSION_CHANGED: &str = "session.changed";
    pub const SESSION_CLOSED: &str = "session.closed";
    pub const SESSION_RESUMED: &str = "session.resumed";
    pub const SESSION_FORKED: &str = "session.forked";
}

/// Types that say nothing about the work: left out of the trajectory.
pub const NOISE: &[&str] = &[kind::AGENT_HEARTBEAT, kind::AGENT_USAGE, kind::AGENT_TRANSCRIPT];

pub fn is_noise(event_type: &str) -> bool {
    NOISE.contains(&event_type)
}

/// An event that is about to be stored; the store gives it its `seq`.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub id: Uuid,
    pub event_type: EventType,
    pub source: Source,
    pub actor: Option<String>,
    pub at: Timestamp,
    pub turn: Option<i64>,
    /// JSON text, within bounds and redacted.
    pub data: Box<RawValue>,
}

impl NewEvent {
    /// An event that the server itself reports.
    pub fn system(event_type: &'static str, at: Timestamp, data: &serde_json::Value) -> Self {
        Self {
            id: Uuid::now_v7(),
            event_type: EventType(event_type.into()),
            source: Source::System,
            actor: None,
            at,
            turn: None,
            data: crate::json::raw(data),
        }
    }

    pub fn by(mut self, source: Source, actor: Option<String>) -> Self {
        self.source = source;
        self.actor = actor;
        self
    }
}

/// An event as it is stored and sent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
    pub id: Uuid,
    pub sandbox_id: SandboxId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    pub seq: i64,
    #[serde(rename = "type")]
    pub event_type: EventType,
    pub source: Source,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    pub at: Timestamp,
    pub received_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: Box<RawValue>,
}

/// `agent.started` or `agent.*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypePattern {
    Exact(String),
    Prefix(String),
}

impl TypePattern {
    pub fn parse(text: &str) -> Result<Self, BadType> {
        match text.strip_suffix('*') {
            Some("") => Ok(Self::Prefix(String::new())),
            Some(prefix) if prefix.ends_with('.') => Ok(Self::Prefix(EventType::new(prefix)?.0.into())),
            Some(_) => Err(BadType),
            None => Ok(Self::Exact(EventType::new(text)?.0.into())),
        }
    }

    pub fn matches(&self, event_type: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == event_type,
            Self::Prefix(prefix) => event_type.starts_with(prefix.as_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_bounded() {
        assert!(EventType::new("agent.started_2").is_ok());
        assert!(EventType::new(&"a".repeat(100)).is_ok());
        for bad in ["", "Agent", "agent started", "ägent", "a-b", &"a".repeat(101)] {
            assert_eq!(EventType::new(bad), Err(BadType), "{bad}");
        }
    }

    #[test]
    fn patterns_match_whole_words() {
        let pattern = TypePattern::parse("agent.*").unwrap();
        assert!(pattern.matches("agent.started") && !pattern.matches("agentx.started"));
        assert!(TypePattern::parse("*").unwrap().matches("anything"));
        assert!(TypePattern::parse("agent*").is_err() && TypePattern::parse("*.x").is_err());
    }
}
