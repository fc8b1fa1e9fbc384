//! Standard input: lines of any bytes become items, one for each line that is not blank.
//!
//! Nothing is dropped silently. What can't be understood becomes an `agent.unparsed` event with a
//! bounded piece of it, and a line of any length costs at most `MAX_LINE` bytes of memory.

use atoll_core::bounds;
use atoll_core::event::{EventType, Source, kind};
use atoll_core::id::MessageId;
use atoll_core::message::How;
use atoll_core::sandbox::Activity;
use atoll_core::time::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

mod lines;
mod reader;
#[cfg(test)]
mod tests;

pub use lines::{Line, Lines};
pub use reader::{Read, start};

/// The longest line that is read whole.
pub const MAX_LINE: usize = bounds::MB;
/// How much of an unparsed line is kept.
pub const EXCERPT: usize = 2 * bounds::KB;
/// How much of a reason is kept.
const REASON: usize = bounds::KB;

/// An event that has no key yet.
#[derive(Debug, Clone)]
pub struct Event {
    pub event_type: EventType,
    pub source: Source,
    pub at: Timestamp,
    pub turn: Option<i64>,
    pub data: Box<RawValue>,
}

impl Event {
    /// An event that the worker itself reports.
    pub fn of_worker(event_type: &str, at: Timestamp, data: &serde_json::Value) -> Option<Self> {
        let event_type = EventType::new(event_type).ok()?;
        Some(Self { event_type, source: Source::Worker, at, turn: None, data: atoll_core::json::raw(data) })
    }

    /// A line that nobody understands: `line` is its beginning, `bytes` how long it was.
    pub fn unparsed(line: &[u8], bytes: usize, reason: &str, at: Timestamp) -> Option<Self> {
        let excerpt = String::from_utf8_lossy(&line[..line.len().min(EXCERPT)]);
        let data = serde_json::json!({
            "excerpt": cut(&excerpt, EXCERPT),
            "reason": cut(reason, REASON),
            "bytes": bytes,
        });
        Self::of_worker(kind::AGENT_UNPARSED, at, &data)
    }
}

/// What one line asks for.
#[derive(Debug, Clone)]
pub enum Item {
    Event(Event),
    Ack(Ack),
    Nack(Nack),
    /// Streamed text: passed on if the link is up, never stored.
    Live(Box<RawValue>),
    Activity(Activity),
    /// A line of control that can't be followed, and why.
    Wrong(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Ack {
    pub id: MessageId,
    pub how: How,
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

/// Every field that any kind of line has. What stands in it decides which kind it is.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(default, rename = "type")]
    event_type: Option<EventType>,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
    #[serde(default)]
    source: Option<Source>,
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

/// What a line says; nothing if it is blank.
pub fn parse(line: &Line<'_>, now: Timestamp) -> Option<Item> {
    match line {
        Line::Whole(bytes) if bytes.trim_ascii().is_empty() => None,
        Line::Whole(bytes) => match read(bytes, now) {
            Ok(item) => Some(item),
            Err(reason) => Event::unparsed(bytes, bytes.len(), &reason, now).map(Item::Event),
        },
        Line::TooLong { head, bytes } => {
            let reason = format!("the line has {bytes} bytes; at most {MAX_LINE} are read");
            Event::unparsed(head, *bytes, &reason, now).map(Item::Event)
        }
    }
}

fn read(bytes: &[u8], now: Timestamp) -> Result<Item, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8: {error}"))?;
    let fields: Fields<'_> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if let Some(event_type) = fields.event_type {
        return event(event_type, &fields.source, fields.at.unwrap_or(now), fields.turn, fields.data);
    }
    Ok(if let Some(ack) = fields.ack {
        control("ack", ack, Item::Ack)
    } else if let Some(nack) = fields.nack {
        control("nack", nack, |nack: Nack| Item::Nack(Nack { reason: cut(&nack.reason, REASON).to_owned(), ..nack }))
    } else if let Some(live) = fields.live {
        match bounds::event_data(live.get()) {
            Ok(()) => Item::Live(live.to_owned()),
            Err(error) => Item::Wrong(format!("live: {}", error.detail)),
        }
    } else if let Some(activity) = fields.activity {
        control("activity", activity, Item::Activity)
    } else {
        return Err("neither an event (no `type`) nor one of ack, nack, live, activity".to_owned());
    })
}

fn event(
    event_type: EventType,
    source: &Option<Source>,
    at: Timestamp,
    turn: Option<i64>,
    data: Option<&RawValue>,
) -> Result<Item, String> {
    let source = source.unwrap_or(Source::Agent);
    bounds::worker_source(source).map_err(|error| error.to_string())?;
    let data = match data {
        Some(data) => data.to_owned(),
        None => atoll_core::json::raw(&serde_json::json!({})),
    };
    if !data.get().starts_with('{') {
        return Err("data: must be an object".to_owned());
    }
    bounds::event_data(data.get()).map_err(|error| error.to_string())?;
    Ok(Item::Event(Event { event_type, source, at, turn, data }))
}

fn control<'a, T: Deserialize<'a>>(name: &str, raw: &'a RawValue, item: impl FnOnce(T) -> Item) -> Item {
    match serde_json::from_str(raw.get()) {
        Ok(value) => item(value),
        Err(error) => Item::Wrong(format!("{name}: {error}")),
    }
}

/// The first `most` bytes of a text, or a little less so as not to cut a character.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}
