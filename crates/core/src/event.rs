//! Events: immutable records of what happened in a sandbox, numbered per sandbox.

use crate::id::{SandboxId, SessionId};
use crate::string_enum;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fmt;
use uuid::Uuid;

string_enum! {
    "event source"
    EventSource {
        Agent = "agent",
        Worker = "worker",
        System = "system",
        Guardian = "guardian",
        User = "user",
        Forge = "forge",
    }
}

pub const MAX_EVENT_TYPE_CHARS: usize = 100;

/// `[a-z0-9_.]{1,100}`. The server stores and returns unknown types like known ones.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, pattern = "^[a-z0-9_.]{1,100}$"))]
pub struct EventType(Box<str>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an event type has 1 to {MAX_EVENT_TYPE_CHARS} characters of a-z, 0-9, `_` and `.`")]
pub struct InvalidEventType;

impl EventType {
    pub fn new(text: &str) -> Result<Self, InvalidEventType> {
        let fits = (1..=MAX_EVENT_TYPE_CHARS).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'.');
        if fits { Ok(Self(text.into())) } else { Err(InvalidEventType) }
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

pub use crate::event_types::kind;

/// Types without information about the work; the trajectory omits them.
pub const TYPES_OMITTED_FROM_TRAJECTORY: &[&str] =
    &[kind::AGENT_HEARTBEAT, kind::AGENT_USAGE, kind::AGENT_TRANSCRIPT, kind::MODEL_USAGE];

pub fn is_omitted_from_trajectory(event_type: &str) -> bool {
    TYPES_OMITTED_FROM_TRAJECTORY.contains(&event_type)
}

/// An event to be stored; the store assigns its `seq`.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub id: Uuid,
    pub event_type: EventType,
    pub source: EventSource,
    pub actor: Option<String>,
    pub at: Timestamp,
    pub turn: Option<i64>,
    /// JSON text, within bounds and redacted.
    pub data: Box<RawValue>,
}

impl NewEvent {
    /// Creates an event from a type of the catalogue and its data.
    pub fn from_parts(event_type: &str, source: EventSource, at: Timestamp, data: Box<RawValue>) -> Self {
        let event_type = EventType(event_type.into());
        Self { id: Uuid::now_v7(), event_type, source, actor: None, at, turn: None, data }
    }

    pub fn with_source(mut self, source: EventSource, actor: Option<String>) -> Self {
        self.source = source;
        self.actor = actor;
        self
    }
}

/// A stored event.
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
    pub source: EventSource,
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
pub enum EventTypePattern {
    Exact(String),
    Prefix(String),
}

impl EventTypePattern {
    pub fn parse(text: &str) -> Result<Self, InvalidEventType> {
        match text.strip_suffix('*') {
            Some("") => Ok(Self::Prefix(String::new())),
            Some(prefix) if prefix.ends_with('.') => Ok(Self::Prefix(EventType::new(prefix)?.0.into())),
            Some(_) => Err(InvalidEventType),
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
            assert_eq!(EventType::new(bad), Err(InvalidEventType), "{bad}");
        }
    }

    #[test]
    fn patterns_match_whole_words() {
        let pattern = EventTypePattern::parse("agent.*").unwrap();
        assert!(pattern.matches("agent.started") && !pattern.matches("agentx.started"));
        assert!(EventTypePattern::parse("*").unwrap().matches("anything"));
        assert!(EventTypePattern::parse("agent*").is_err() && EventTypePattern::parse("*.x").is_err());
    }
}
