//! Exports a sandbox's event log as text for people: one line per event.

use super::targets::load_sandbox;
use crate::auth::access::CanSee;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::LogQuery;
use atoll_core::event::Event;
use atoll_core::id::SandboxId;
use atoll_store::events::{self, EventLogFilter, EventLogOrder};
use atoll_store::sandboxes::SandboxRow;
use axum::body::Body;
use futures_util::stream;
use serde_json::Value;
use std::fmt::Write;
use std::sync::Arc;

/// Events scanned for one chunk of the response.
const CHUNK_EVENTS: usize = 500;
/// Longest text of one line, in characters.
const MAX_TEXT_CHARS: usize = 2_000;
/// Fields that tell most about an event, in this order.
const TELLING_FIELDS: [&str; 10] =
    ["text", "content", "error", "detail", "reason", "output", "file_path", "title", "tool", "state"];

/// Streams the log, oldest first. With `tail`, only the last events.
pub async fn export_log(app: Arc<App>, access: CanSee<SandboxId>, query: LogQuery) -> Result<Body> {
    if query.tail.is_some_and(|tail| tail < 1) || query.since.is_some_and(|since| since < 0) {
        return Err(Problem::new(Code::BadRequest, "tail: at least 1; since: the seq of an event"));
    }
    let row = load_sandbox(&app, &access).await?;
    let tail = query.tail.map_or(0, |count| row.last_seq.saturating_sub(count));
    let at = query.since.unwrap_or(0).max(tail);
    let chunks = stream::try_unfold(Some((app, row, at)), |state| async move {
        let Some((app, row, at)) = state else { return Ok::<_, std::io::Error>(None) };
        let (text, next) =
            load_lines(&app, &row, at).await.map_err(|problem| std::io::Error::other(format!("{problem:?}")))?;
        Ok(Some((text, next.map(|next| (app, row, next)))))
    });
    Ok(Body::from_stream(chunks))
}

async fn load_lines(app: &App, row: &SandboxRow, after: i64) -> Result<(String, Option<i64>)> {
    let sandbox = (row.id, row.session_id);
    let read = app.read(async move |tx| {
        let filter = EventLogFilter { excludes_noise: true, ..EventLogFilter::default() };
        Ok(events::read_event_page(tx, sandbox, &filter, EventLogOrder::OldestFirst, after, CHUNK_EVENTS).await?)
    });
    let page = read.await?;
    let mut text = String::new();
    page.events.iter().for_each(|event| write_line(&mut text, event));
    Ok((text, page.next_cursor))
}

fn write_line(text: &mut String, event: &Event) {
    let summary = escape_text(&summarize_data(event.data.get()));
    let _infallible = writeln!(text, "{} {} {} {summary}", event.at, event.seq, event.event_type.as_str());
}

/// The most telling field of an event, or the whole data.
fn summarize_data(data: &str) -> String {
    let value: Value = serde_json::from_str(data).unwrap_or_default();
    let telling = TELLING_FIELDS.iter().find_map(|field| value.get(*field)?.as_str());
    match telling {
        Some(text) => text.to_owned(),
        None if value.as_object().is_some_and(serde_json::Map::is_empty) => String::new(),
        None => data.to_owned(),
    }
}

/// Makes text of an agent harmless for a terminal, and fits it into a line.
fn escape_text(text: &str) -> String {
    let mut line = String::new();
    for (index, letter) in text.chars().enumerate() {
        if index >= MAX_TEXT_CHARS {
            let _infallible = write!(line, "… ({} characters)", text.chars().count());
            break;
        }
        match letter {
            letter if letter.is_control() || is_direction_mark(letter) => line.extend(letter.escape_default()),
            letter => line.push(letter),
        }
    }
    line
}

/// True for invisible characters that reorder the text around them.
const fn is_direction_mark(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_harmless_and_bounded() {
        assert_eq!(escape_text("a\nb\u{1b}[2J\u{202e}c\t\u{9b}"), "a\\nb\\u{1b}[2J\\u{202e}c\\t\\u{9b}");
        let long = escape_text(&"ä".repeat(MAX_TEXT_CHARS + 5));
        assert!(long.ends_with("ä… (2005 characters)"), "{long}");
    }

    #[test]
    fn the_most_telling_field_is_shown() {
        assert_eq!(summarize_data(r#"{"turn":1,"text":"hello"}"#), "hello");
        assert_eq!(summarize_data(r#"{"text":5,"n":1}"#), r#"{"text":5,"n":1}"#);
        assert_eq!(summarize_data("{}"), "");
    }
}
