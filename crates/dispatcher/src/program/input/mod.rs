//! Parses stdin: each non-blank line becomes one item.
//!
//! A line that cannot be parsed becomes an `agent.unparsed` event with an excerpt. A line of any length costs at most
//! `MAX_LINE_BYTES` of memory.

use atoll_api::events::{AgentUnparsed, EventData};
use atoll_core::bounds;
use atoll_core::event::{EventSource, EventType};
use atoll_core::id::MessageId;
use atoll_core::message::DeliveryMethod;
use atoll_core::sandbox::Activity;
use atoll_core::time::Timestamp;
use atoll_protocol::{BatchEvent, EventBlob};
use serde::Deserialize;
use serde_json::value::RawValue;

mod lines;
mod reader;
#[cfg(test)]
mod tests;

pub use lines::{Line, LineSplitter};
pub use reader::{Read, start_reader};

pub const MAX_LINE_BYTES: usize = bounds::MB;
/// Size of the excerpt of an unparsed line.
pub const MAX_EXCERPT_BYTES: usize = 2 * bounds::KB;
const MAX_REASON_BYTES: usize = bounds::KB;

/// An event without a key.
#[derive(Debug, Clone)]
pub struct Event {
    pub event_type: EventType,
    pub source: EventSource,
    pub at: Timestamp,
    pub turn: Option<i64>,
    pub data: Box<RawValue>,
    /// A content that the data names by its hash.
    pub blob: Option<EventBlob>,
}

impl Event {
    /// Creates an event of the worker itself.
    pub fn from_worker(data: &EventData, at: Timestamp) -> Option<Self> {
        let event_type = EventType::new(data.event_type()).ok()?;
        Some(Self { event_type, source: EventSource::Worker, at, turn: None, data: data.to_json(), blob: None })
    }

    pub fn into_batch_event(self, key: i64) -> (BatchEvent, Option<EventBlob>) {
        let Self { event_type, source, at, turn, data, blob } = self;
        (BatchEvent { key, event_type, source, at, turn, data }, blob)
    }

    /// Creates an `agent.unparsed` event: `line` is the start of the line, `bytes` its length.
    pub fn unparsed(line: &[u8], bytes: usize, reason: &str, at: Timestamp) -> Option<Self> {
        let excerpt = String::from_utf8_lossy(&line[..line.len().min(MAX_EXCERPT_BYTES)]);
        let data = AgentUnparsed {
            excerpt: truncate_text(&excerpt, MAX_EXCERPT_BYTES).to_owned(),
            reason: truncate_text(reason, MAX_REASON_BYTES).to_owned(),
            bytes: bytes as u64,
        };
        Self::from_worker(&EventData::AgentUnparsed(data), at)
    }
}

/// The content of one line.
#[derive(Debug, Clone)]
pub enum Item {
    Event(Event),
    Ack(Ack),
    Nack(Nack),
    /// Streamed text: forwarded if the link is up, never stored.
    Live(Box<RawValue>),
    Activity(Activity),
    /// An invalid control line, and why.
    Invalid(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Ack {
    pub id: MessageId,
    pub how: DeliveryMethod,
    #[serde(default)]
    pub turn: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Nack {
    pub id: MessageId,
    pub handed: bool,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub retry: bool,
}

/// The fields of all kinds of lines; the fields that are present decide the kind.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(default, rename = "type")]
    event_type: Option<EventType>,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
    #[serde(default)]
    source: Option<EventSource>,
    #[serde(default)]
    at: Option<Timestamp>,
    #[serde(default)]
    turn: Option<i64>,
    #[serde(default, borrow)]
    ack: Option<&'a RawValue>,
    #[serde(default, borrow)]
    nack: Option<&'a RawValue>,
    #[serde(default, borrow)]
    live: Option<&'a RawValue>,
    #[serde(default, borrow)]
    activity: Option<&'a RawValue>,
}

/// Parses a line; `None` if it is blank.
pub fn parse_line(line: &Line<'_>, now: Timestamp) -> Option<Item> {
    match line {
        Line::Whole(bytes) if bytes.trim_ascii().is_empty() => None,
        Line::Whole(bytes) => match parse_item(bytes, now) {
            Ok(item) => Some(item),
            Err(reason) => Event::unparsed(bytes, bytes.len(), &reason, now).map(Item::Event),
        },
        Line::TooLong { head, bytes } => {
            let reason = format!("the line has {bytes} bytes; the limit is {MAX_LINE_BYTES}");
            Event::unparsed(head, *bytes, &reason, now).map(Item::Event)
        }
    }
}

fn parse_item(bytes: &[u8], now: Timestamp) -> Result<Item, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8: {error}"))?;
    let fields: Fields<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if let Some(event_type) = fields.event_type {
        return parse_event(event_type, &fields.source, fields.at.unwrap_or(now), fields.turn, fields.data);
    }
    Ok(if let Some(ack) = fields.ack {
        parse_control("ack", ack, Item::Ack)
    } else if let Some(nack) = fields.nack {
        parse_control("nack", nack, |nack: Nack| {
            Item::Nack(Nack { reason: truncate_text(&nack.reason, MAX_REASON_BYTES).to_owned(), ..nack })
        })
    } else if let Some(live) = fields.live {
        match bounds::check_event_data(live.get()) {
            Ok(()) => Item::Live(live.to_owned()),
            Err(error) => Item::Invalid(format!("live: {}", error.detail)),
        }
    } else if let Some(activity) = fields.activity {
        parse_control("activity", activity, Item::Activity)
    } else {
        return Err("neither an event (no `type`) nor one of ack, nack, live, activity".to_owned());
    })
}

fn parse_event(
    event_type: EventType,
    source: &Option<EventSource>,
    at: Timestamp,
    turn: Option<i64>,
    data: Option<&RawValue>,
) -> Result<Item, String> {
    let source = source.unwrap_or(EventSource::Agent);
    bounds::check_worker_source(source).map_err(|error| error.to_string())?;
    let data = match data {
        Some(data) => data.to_owned(),
        None => atoll_core::json::to_raw_json(&serde_json::json!({})),
    };
    if !data.get().starts_with('{') {
        return Err("data: must be an object".to_owned());
    }
    bounds::check_event_data(data.get()).map_err(|error| error.to_string())?;
    Ok(Item::Event(Event { event_type, source, at, turn, data, blob: None }))
}

fn parse_control<'a, T: Deserialize<'a>>(name: &str, raw: &'a RawValue, item: impl FnOnce(T) -> Item) -> Item {
    match serde_json::from_str(raw.get()) {
        Ok(value) => item(value),
        Err(error) => Item::Invalid(format!("{name}: {error}")),
    }
}

/// Truncates a text to at most `max_bytes` at a character boundary.
fn truncate_text(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}
