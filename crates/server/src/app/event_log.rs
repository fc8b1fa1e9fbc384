//! Reads a sandbox's event log in pages: all events, or the trajectory without heartbeats and usage reports.

use crate::auth::access::CanSee;
use crate::cursor::{decode_number, encode_cursor};
use crate::extract::page_size;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::{Direction, EventOrder, EventsQuery, HeartbeatSummary, Page, Trajectory, TrajectoryQuery};
use atoll_core::event::{Event, EventTypePattern};
use atoll_core::id::SandboxId;
use atoll_store::events::{self, EventLogFilter, EventLogOrder};
use atoll_store::sandboxes;

const MAX_TYPE_PATTERNS: usize = 100;
const TRAJECTORY_LIST: &str = "trajectory";

fn parse_patterns<'a>(types: impl IntoIterator<Item = &'a str>) -> Result<Vec<EventTypePattern>> {
    let parsed: Result<Vec<EventTypePattern>, _> = types.into_iter().map(EventTypePattern::parse).collect();
    let parsed = parsed.map_err(|error| Problem::new(Code::BadRequest, format!("type: {error}; or `agent.*`")))?;
    if parsed.len() > MAX_TYPE_PATTERNS {
        return Err(Problem::new(Code::BadRequest, format!("type: at most {MAX_TYPE_PATTERNS}")));
    }
    Ok(parsed)
}

/// The filter of a live stream.
pub fn follow_filter(types: &[String]) -> Result<EventLogFilter> {
    Ok(EventLogFilter { types: parse_patterns(types.iter().map(String::as_str))?, ..EventLogFilter::default() })
}

pub async fn list_events(app: &App, access: CanSee<SandboxId>, query: EventsQuery) -> Result<Page<Event>> {
    let limit = usize::try_from(page_size(query.limit, 100, 500)?).unwrap_or(1);
    let types = query.types.as_deref().unwrap_or_default();
    let filter = EventLogFilter {
        types: parse_patterns(types.split(',').filter(|part| !part.is_empty()))?,
        source: query.source,
        since: query.since,
        until: query.until,
        excludes_noise: false,
    };
    let (list, order, start) = match query.order {
        EventOrder::Asc => ("events", EventLogOrder::OldestFirst, 0),
        EventOrder::Desc => ("events-desc", EventLogOrder::NewestFirst, i64::MAX),
    };
    let from = decode_number(list, query.cursor.as_deref())?.unwrap_or(start);
    let id = access.id;
    let page = app.read(async move |tx| {
        let owner = sandboxes::find_owner_ids(tx, id).await?;
        let (session, _) = owner.ok_or_else(|| Problem::not_found("sandbox"))?;
        Ok(events::read_event_page(tx, (id, session), &filter, order, from, limit).await?)
    });
    let page = page.await?;
    let next_cursor = page.next_cursor.map(|seq| encode_cursor(list, &seq.to_string()));
    Ok(Page { items: page.events, next_cursor })
}

pub async fn read_trajectory(app: &App, access: CanSee<SandboxId>, query: TrajectoryQuery) -> Result<Trajectory> {
    let limit = usize::try_from(page_size(query.limit, 100, 1000)?).unwrap_or(1);
    let position = decode_number(TRAJECTORY_LIST, query.cursor.as_deref())?;
    if position == Some(i64::MAX) {
        return Err(Problem::new(Code::BadCursor, "use the cursor of another page unchanged"));
    }
    let id = access.id;
    let read = app.read(async move |tx| {
        let row = sandboxes::find_sandbox(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
        // A cursor is a position between two events: `n` follows the event with that seq.
        let (order, from) = match query.direction {
            Direction::Forward => (EventLogOrder::OldestFirst, position.unwrap_or(0)),
            Direction::Backward => (EventLogOrder::NewestFirst, position.unwrap_or(row.last_seq) + 1),
        };
        let filter = EventLogFilter { excludes_noise: true, ..EventLogFilter::default() };
        let page = events::read_event_page(tx, (id, row.session_id), &filter, order, from, limit).await?;
        Ok((row, page, from))
    });
    let (row, page, from) = read.await?;
    let mut found = page.events;
    let has_more = page.next_cursor.is_some();
    // The positions before and after the scanned events, whether or not they matched.
    let (before, behind) = match query.direction {
        Direction::Forward => (from, page.next_cursor.unwrap_or(row.last_seq).max(from)),
        Direction::Backward => {
            found.reverse();
            (page.next_cursor.map_or(row.first_seq - 1, |seq| seq - 1).min(from - 1), from - 1)
        }
    };
    let total_events = row.last_seq - row.first_seq + 1;
    let cursor_at = |position: i64| encode_cursor(TRAJECTORY_LIST, &position.to_string());
    Ok(Trajectory {
        sandbox_id: id,
        events: found,
        heartbeat_summary: HeartbeatSummary {
            count: row.heartbeat_count,
            first_heartbeat: row.first_heartbeat,
            last_heartbeat: row.last_heartbeat,
        },
        total_events,
        trajectory_events: total_events - row.noise_count,
        next_cursor: (behind < row.last_seq).then(|| cursor_at(behind)),
        prev_cursor: (before >= row.first_seq).then(|| cursor_at(before)),
        has_more,
    })
}
