//! Frames of the WebSockets for events and terminals.

use atoll_core::event::Event;
use atoll_core::id::SandboxId;
use atoll_core::provider::CommandExit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct TicketQuery {
    /// A one-time ticket from `POST /ws-tickets`, for clients that cannot send headers.
    pub ticket: Option<String>,
}

/// A frame that the client sends on `/events/ws`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum EventsRequest {
    /// Replaces the subscription.
    Subscribe {
        sandboxes: FollowedSandboxes,
        /// Event types such as `agent.started` or `agent.*`; empty for all.
        #[serde(default)]
        types: Vec<String>,
        /// The seq of the last event that the client has, by sandbox. With `"*"`, other sandboxes start with their
        /// newest event, and those that are newer than all of these with their first.
        #[serde(default)]
        since: BTreeMap<SandboxId, i64>,
    },
    Pong {},
}

/// The sandboxes of a subscription: `"*"` for all, or a list of ids.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FollowedSandboxes {
    All(String),
    Ids(Vec<SandboxId>),
}

impl FollowedSandboxes {
    pub fn all() -> Self {
        Self::All("*".to_owned())
    }
}

/// A frame that the server sends on `/events/ws`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventsFrame {
    Events {
        events: Vec<Event>,
    },
    /// Output of a sandbox that is not stored, such as text while the agent writes it.
    Live {
        sandbox_id: SandboxId,
        /// The newest stored event when the worker sent the output.
        after_seq: i64,
        data: serde_json::Value,
    },
    /// The client has every event up to `seq`; later ones are live.
    CaughtUp {
        sandbox_id: SandboxId,
        seq: i64,
    },
    /// The client reads too slowly; the server continues after these seqs.
    Lagged {
        resume: BTreeMap<SandboxId, i64>,
    },
    /// Retention has removed the events before `first_seq`.
    Truncated {
        sandbox_id: SandboxId,
        first_seq: i64,
    },
    Ping {},
    Problem {
        code: String,
        detail: String,
    },
    /// A frame of a newer server; a client ignores it.
    #[serde(other)]
    Unknown,
}

impl EventsFrame {
    /// Parses a frame. `Deserialize` fails for `events`: serde buffers a tagged enum, and can't buffer an event's raw data.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct FrameType {
            #[serde(rename = "type")]
            name: String,
        }
        #[derive(Deserialize)]
        struct EventList {
            events: Vec<Event>,
        }
        if serde_json::from_str::<FrameType>(text)?.name == "events" {
            let EventList { events } = serde_json::from_str(text)?;
            return Ok(Self::Events { events });
        }
        serde_json::from_str(text)
    }
}

/// The data of the server-sent event `truncated`: retention has removed the events before `first_seq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "truncated")]
pub struct TruncatedEvent {
    pub first_seq: i64,
}

/// A text frame that the client sends on `/sandboxes/{id}/terminal`; binary frames are input.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum TerminalRequest {
    Resize { cols: u16, rows: u16 },
    Pong {},
}

/// A text frame that the server sends on `/sandboxes/{id}/terminal`; binary frames are output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TerminalFrame {
    /// The first frame. Output up to the cursor `until` is from before.
    Opened {
        exec: String,
        cursor: u64,
        until: u64,
        may_type: bool,
    },
    /// The server has discarded the output before this cursor.
    Gap {
        cursor: u64,
    },
    Exit {
        exit: CommandExit,
    },
    Problem {
        code: String,
        detail: String,
    },
    /// A frame of a newer server; a client ignores it.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_shape_that_the_server_sends() {
        let id = SandboxId::new();
        let live = format!(r#"{{"type":"live","sandbox_id":"{id}","after_seq":3,"data":{{"text":"x"}}}}"#);
        let parsed = EventsFrame::parse(&live).unwrap();
        assert!(matches!(parsed, EventsFrame::Live { after_seq: 3, data, .. } if data["text"] == "x"));
        let newer = EventsFrame::parse(r#"{"type":"later","more":[1]}"#).unwrap();
        assert!(matches!(newer, EventsFrame::Unknown));
        let truncated = serde_json::to_string(&TruncatedEvent { first_seq: 7 }).unwrap();
        assert_eq!(truncated, r#"{"type":"truncated","first_seq":7}"#);
        assert_eq!(serde_json::from_str::<TruncatedEvent>(&truncated).unwrap(), TruncatedEvent { first_seq: 7 });
        let subscribe = EventsRequest::Subscribe {
            sandboxes: FollowedSandboxes::all(),
            types: Vec::new(),
            since: BTreeMap::from([(id, 4)]),
        };
        let text = format!(r#"{{"type":"subscribe","sandboxes":"*","types":[],"since":{{"{id}":4}}}}"#);
        assert_eq!(serde_json::to_string(&subscribe).unwrap(), text);
        let opened = r#"{"type":"opened","exec":"e1","cursor":0,"until":7,"may_type":true}"#;
        let parsed: TerminalFrame = serde_json::from_str(opened).unwrap();
        assert_eq!(parsed, TerminalFrame::Opened { exec: "e1".to_owned(), cursor: 0, until: 7, may_type: true });
    }
}
