//! The event log: events numbered per sandbox without gaps.

use crate::error::{Error, Result};
use crate::sandboxes::SandboxRow;
use crate::sql::{BulkInsertSql, Row, SqlParam, Tx, text_param, time_param};
use atoll_core::event::{Event, EventSource, EventType, EventTypePattern, NewEvent, is_omitted_from_trajectory};
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::log_quota;
use atoll_core::time::Timestamp;
use serde_json::value::RawValue;

const INSERT_EVENTS: BulkInsertSql = BulkInsertSql {
    single_row: "INSERT INTO events (sandbox_id, seq, id, type, source, actor, at, received_at, turn, data)
          VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    row_arrays: "INSERT INTO events (sandbox_id, seq, id, type, source, actor, at, received_at, turn, data)
           SELECT * FROM UNNEST(?1::text[], ?2::bigint[], ?3::text[], ?4::text[], ?5::text[], ?6::text[],
                                ?7::bigint[], ?8::bigint[], ?9::bigint[], ?10::text[])",
};

/// The size that an event counts with: its data, and the rest of its row.
fn event_size(data: &RawValue) -> i64 {
    i64::try_from(log_quota::event_size(data.get())).unwrap_or(i64::MAX)
}

/// Appends events to a sandbox's log, numbers them, and updates the counters in its row. The caller has locked the
/// session and writes the row afterwards.
pub async fn append_events(
    tx: &mut dyn Tx,
    sandbox: &mut SandboxRow,
    events: Vec<NewEvent>,
    received_at: Timestamp,
) -> Result<Vec<Event>> {
    let stored: Vec<Event> = events
        .into_iter()
        .map(|event| {
            sandbox.last_seq += 1;
            sandbox.log_bytes = sandbox.log_bytes.saturating_add(event_size(&event.data));
            sandbox.noise_count += i64::from(is_omitted_from_trajectory(event.event_type.as_str()));
            Event {
                id: event.id,
                sandbox_id: sandbox.id,
                session_id: Some(sandbox.session_id),
                seq: sandbox.last_seq,
                event_type: event.event_type,
                source: event.source,
                actor: event.actor,
                at: event.at,
                received_at,
                turn: event.turn,
                data: event.data,
            }
        })
        .collect();
    let id = sandbox.id.to_string();
    let rows: Vec<Vec<SqlParam<'_>>> = stored
        .iter()
        .map(|event| {
            vec![
                id.as_str().into(),
                event.seq.into(),
                text_param(event.id),
                event.event_type.as_str().into(),
                event.source.as_str().into(),
                event.actor.as_deref().into(),
                time_param(event.at),
                time_param(event.received_at),
                event.turn.into(),
                event.data.get().into(),
            ]
        })
        .collect();
    tx.insert_many(INSERT_EVENTS, &rows).await?;
    sandbox.updated_at = received_at;
    Ok(stored)
}

fn event_from_row(mut row: Row, sandbox_id: SandboxId, session_id: SessionId) -> Result<Event> {
    Ok(Event {
        sandbox_id,
        session_id: Some(session_id),
        seq: row.int("seq")?,
        id: row.parse("id")?,
        event_type: EventType::new(&row.text("type")?).map_err(Error::internal)?,
        source: row.parse("source")?,
        actor: row.opt_text("actor")?,
        at: row.time("at")?,
        received_at: row.time("received_at")?,
        turn: row.opt_int("turn")?,
        data: RawValue::from_string(row.take_text("data")?).map_err(Error::internal)?,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventLogOrder {
    OldestFirst,
    NewestFirst,
}

/// Selects events for a reader.
#[derive(Debug, Clone, Default)]
pub struct EventLogFilter {
    pub types: Vec<EventTypePattern>,
    pub source: Option<EventSource>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub excludes_noise: bool,
}

impl EventLogFilter {
    pub fn matches(&self, event: &Event) -> bool {
        let name = event.event_type.as_str();
        (self.types.is_empty() || self.types.iter().any(|pattern| pattern.matches(name)))
            && self.source.is_none_or(|source| source == event.source)
            && self.since.is_none_or(|since| event.at >= since)
            && self.until.is_none_or(|until| event.at < until)
            && !(self.excludes_noise && is_omitted_from_trajectory(name))
    }
}

/// Maximum number of rows scanned per page: a rare type in a long log gives short pages instead of slow ones.
pub const MAX_SCANNED_ROWS: i64 = 5_000;
/// Maximum size of a page's data.
const MAX_PAGE_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug, Default)]
pub struct EventLogPage {
    pub events: Vec<Event>,
    /// Cursor of the next page: the last scanned seq. `None` at the end.
    pub next_cursor: Option<i64>,
}

/// Returns events of a sandbox after `from` (newest first: before it), at most `limit` matches.
pub async fn read_event_page(
    tx: &mut dyn Tx,
    sandbox: (SandboxId, SessionId),
    filter: &EventLogFilter,
    order: EventLogOrder,
    from: i64,
    limit: usize,
) -> Result<EventLogPage> {
    let forward = "SELECT seq, id, type, source, actor, at, received_at, turn, data FROM events
                   WHERE sandbox_id = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3";
    let backward = "SELECT seq, id, type, source, actor, at, received_at, turn, data FROM events
                    WHERE sandbox_id = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3";
    let sql = match order {
        EventLogOrder::OldestFirst => forward,
        EventLogOrder::NewestFirst => backward,
    };
    let mut page = EventLogPage::default();
    let (mut at, mut looked, mut bytes) = (from, 0, 0);
    loop {
        let chunk = i64::try_from(limit - page.events.len()).unwrap_or(MAX_SCANNED_ROWS).clamp(16, 256) + 1;
        let rows = tx.query(sql, &[text_param(sandbox.0), at.into(), chunk.into()]).await?;
        let exhausted = (rows.len() as i64) < chunk;
        for row in rows {
            if page.events.len() >= limit || looked >= MAX_SCANNED_ROWS || bytes >= MAX_PAGE_BYTES {
                page.next_cursor = Some(at);
                return Ok(page);
            }
            let event = event_from_row(row, sandbox.0, sandbox.1)?;
            at = event.seq;
            looked += 1;
            if filter.matches(&event) {
                bytes += event.data.get().len();
                page.events.push(event);
            }
        }
        if exhausted {
            return Ok(page);
        }
    }
}
