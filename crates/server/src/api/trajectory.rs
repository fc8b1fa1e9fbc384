//! The trajectory: what the agent did, without noise, both ways from any place.

use crate::auth::{Caller, access};
use crate::cursor;
use crate::extract::{Id, Params, page_size};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::event::Event;
use atoll_core::id::SandboxId;
use atoll_core::principal::Action;
use atoll_core::time::Timestamp;
use atoll_store::events::{self, Filter, Order};
use atoll_store::sandboxes;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Towards newer events.
    #[default]
    Forward,
    /// Towards older events.
    Backward,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TrajectoryQuery {
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
    /// `next_cursor` or `prev_cursor` of another page.
    cursor: Option<String>,
    #[serde(default)]
    direction: Direction,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct HeartbeatSummary {
    pub count: i64,
    pub first_heartbeat: Option<Timestamp>,
    pub last_heartbeat: Option<Timestamp>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Trajectory {
    pub sandbox_id: SandboxId,
    /// Always oldest first, whichever way the page was reached.
    pub events: Vec<Event>,
    pub heartbeat_summary: HeartbeatSummary,
    pub total_events: i64,
    pub trajectory_events: i64,
    /// For what is newer than this page.
    pub next_cursor: Option<String>,
    /// For what is older than this page.
    pub prev_cursor: Option<String>,
    /// Whether there is more in the direction of this page.
    pub has_more: bool,
}

const LIST: &str = "trajectory";

/// What the agent did, without noise.
#[utoipa::path(get, path = "/sandboxes/{id}/trajectory", tag = "events", params(("id" = SandboxId, Path), TrajectoryQuery),
    responses((status = 200, body = Trajectory)))]
pub async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(query): Params<TrajectoryQuery>,
) -> Result<Json<Trajectory>> {
    let limit = usize::try_from(page_size(query.limit, 100, 1000)?).unwrap_or(1);
    let place = cursor::read_number(LIST, query.cursor.as_deref())?;
    if place == Some(i64::MAX) {
        return Err(Problem::new(Code::BadCursor, "take it from another page, as it is"));
    }
    let read = app.read(move |tx| {
        Box::pin(async move {
            let session = access::sandbox(tx, &caller, id, Action::See).await?;
            let row = sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
            // A cursor is a place between two events: `n` stands right behind the event with that seq.
            let (order, from) = match query.direction {
                Direction::Forward => (Order::OldestFirst, place.unwrap_or(0)),
                Direction::Backward => (Order::NewestFirst, place.map_or(row.last_seq, |place| place) + 1),
            };
            let filter = Filter { without_noise: true, ..Filter::default() };
            let page = events::page(tx, (id, session), &filter, order, from, limit).await?;
            Ok((row, page, from))
        })
    });
    let (row, page, from) = read.await?;
    let mut found = page.events;
    let has_more = page.looked_at.is_some();
    // The places before and behind what this page looked at, events or not.
    let (before, behind) = match query.direction {
        Direction::Forward => (from, page.looked_at.unwrap_or(row.last_seq).max(from)),
        Direction::Backward => {
            found.reverse();
            (page.looked_at.map_or(row.first_seq - 1, |seq| seq - 1).min(from - 1), from - 1)
        }
    };
    let total_events = row.last_seq - row.first_seq + 1;
    Ok(Json(Trajectory {
        sandbox_id: id,
        events: found,
        heartbeat_summary: HeartbeatSummary {
            count: row.heartbeats,
            first_heartbeat: row.first_heartbeat,
            last_heartbeat: row.last_heartbeat,
        },
        total_events,
        trajectory_events: total_events - row.noise,
        next_cursor: (behind < row.last_seq).then(|| cursor::write(LIST, &behind.to_string())),
        prev_cursor: (before >= row.first_seq).then(|| cursor::write(LIST, &before.to_string())),
        has_more,
    }))
}
