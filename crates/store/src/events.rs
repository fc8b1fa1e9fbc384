//! The log: events numbered per sandbox without gaps.

use crate::error::{Error, Result};
use crate::sandboxes::Sandbox;
use crate::sql::{InsertMany, Row, Tx, Val, micros, text};
use atoll_core::event::{Event, EventType, NewEvent, Source, TypePattern, is_noise};
use atoll_core::id::{SandboxId, SessionId};
use atoll_core::time::Timestamp;
use serde_json::value::RawValue;

const INSERT: InsertMany = InsertMany {
    one: "INSERT INTO events (sandbox_id, seq, id, type, source, actor, at, received_at, turn, data)
          VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    many: "INSERT INTO events (sandbox_id, seq, id, type, source, actor, at, received_at, turn, data)
           SELECT * FROM UNNEST(?1::text[], ?2::bigint[], ?3::text[], ?4::text[], ?5::text[], ?6::text[],
                                ?7::bigint[], ?8::bigint[], ?9::bigint[], ?10::text[])",
};

/// Appends events to a sandbox's log, numbers them, and counts them in its row, which the caller
/// has locked by its session and writes afterwards.
pub async fn append(
    tx: &mut dyn Tx,
    sandbox: &mut Sandbox,
    events: Vec<NewEvent>,
    received_at: Timestamp,
) -> Result<Vec<Event>> {
    let stored: Vec<Event> = events
        .into_iter()
        .map(|event| {
            sandbox.last_seq += 1;
            sandbox.noise += i64::from(is_noise(event.event_type.as_str()));
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
    let rows: Vec<Vec<Val<'_>>> = stored
        .iter()
        .map(|event| {
            vec![
                id.as_str().into(),
                event.seq.into(),
                text(event.id),
                event.event_type.as_str().into(),
                event.source.as_str().into(),
                event.actor.as_deref().into(),
                micros(event.at),
                micros(event.received_at),
                event.turn.into(),
                event.data.get().into(),
            ]
        })
        .collect();
    tx.insert_many(INSERT, &rows).await?;
    sandbox.updated_at = received_at;
    Ok(stored)
}

fn event(mut row: Row, sandbox_id: SandboxId, session_id: SessionId) -> Result<Event> {
    Ok(Event {
        sandbox_id,
        session_id: Some(session_id),
        seq: row.int()?,
        id: row.parse()?,
        event_type: EventType::new(&row.text()?).map_err(Error::internal)?,
        source: row.parse()?,
        actor: row.opt_text()?,
        at: row.time()?,
        received_at: row.time()?,
        turn: row.opt_int()?,
        data: RawValue::from_string(row.text()?).map_err(Error::internal)?,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    OldestFirst,
    NewestFirst,
}

/// Which events a reader wants.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub types: Vec<TypePattern>,
    pub source: Option<Source>,
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub without_noise: bool,
}

impl Filter {
    pub fn matches(&self, event: &Event) -> bool {
        let name = event.event_type.as_str();
        (self.types.is_empty() || self.types.iter().any(|pattern| pattern.matches(name)))
            && self.source.is_none_or(|source| source == event.source)
            && self.since.is_none_or(|since| event.at >= since)
            && self.until.is_none_or(|until| event.at < until)
            && !(self.without_noise && is_noise(name))
    }
}

/// How many rows one page looks at, at most: a rare type in a long log gives short pages, not slow ones.
pub const SCAN: i64 = 5_000;
/// How much data one page holds, at most.
const PAGE_BYTES: usize = 16 * 1024 * 1024;

#[derive(Debug, Default)]
pub struct Page {
    pub events: Vec<Event>,
    /// Where the next page goes on: the last seq that was looked at. `None` when there is nothing further.
    pub looked_at: Option<i64>,
}

/// Events of a sandbox after (or, newest first, before) `from`, at most `limit` that match.
pub async fn page(
    tx: &mut dyn Tx,
    sandbox: (SandboxId, SessionId),
    filter: &Filter,
    order: Order,
    from: i64,
    limit: usize,
) -> Result<Page> {
    let forward = "SELECT seq, id, type, source, actor, at, received_at, turn, data FROM events
                   WHERE sandbox_id = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3";
    let backward = "SELECT seq, id, type, source, actor, at, received_at, turn, data FROM events
                    WHERE sandbox_id = ?1 AND seq < ?2 ORDER BY seq DESC LIMIT ?3";
    let sql = match order {
        Order::OldestFirst => forward,
        Order::NewestFirst => backward,
    };
    let mut page = Page::default();
    let (mut at, mut looked, mut bytes) = (from, 0, 0);
    loop {
        let chunk = i64::try_from(limit - page.events.len()).unwrap_or(SCAN).clamp(16, 256) + 1;
        let rows = tx.query(sql, &[text(sandbox.0), at.into(), chunk.into()]).await?;
        let exhausted = (rows.len() as i64) < chunk;
        for row in rows {
            if page.events.len() >= limit || looked >= SCAN || bytes >= PAGE_BYTES {
                page.looked_at = Some(at);
                return Ok(page);
            }
            let event = event(row, sandbox.0, sandbox.1)?;
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
