//! Server-sent events of one sandbox, resumable by `Last-Event-ID`.

use super::access_recheck::AccessRecheck;
use crate::app::event_log::follow_filter;
use crate::auth::access::CanSee;
use crate::event_follower::{EventFollower, FollowStep};
use crate::extract::Params;
use crate::problem::{Code, Problem, Result};
use crate::state::{App, ReaderPermit};
use atoll_api::{FollowQuery, TruncatedEvent};
use atoll_core::id::SandboxId;
use atoll_core::principal::ProjectAction;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// Follow a sandbox's events as server-sent events.
///
/// Each has its `seq` as the event id: a client that reconnects with `Last-Event-ID` (or `since`)
/// gets what follows, with no gap and no repeat. Without either it starts from now.
#[utoipa::path(get, path = "/sandboxes/{id}/events/stream", tag = "events",
    params(("id" = SandboxId, Path), FollowQuery, ("Last-Event-ID" = Option<i64>, Header, description = "The last seq that the reader has")),
    responses((status = 200, description = "A stream of events", content_type = "text/event-stream", body = String)))]
pub async fn stream_events(
    State(app): State<Arc<App>>,
    CanSee { caller, id, .. }: CanSee<SandboxId>,
    Params(query): Params<FollowQuery>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let since = match headers.get("last-event-id") {
        Some(value) => Some(parse_last_event_id(value)?),
        None => query.since,
    };
    let permit = app.admit_reader(&caller)?;
    let follower = EventFollower::start(Arc::clone(&app), id, follow_filter(&query.types)?, since).await?;
    metrics::gauge!(crate::metrics::READERS).increment(1.0);
    let access = AccessRecheck::new(&app, caller, id, ProjectAction::View);
    let (ready, stopping) = (VecDeque::new(), app.stopping.clone());
    let reader = SseReader { app, access, follower, ready, stopping, _permit: permit };
    let events = futures_util::stream::unfold(reader, |mut reader| async move {
        let event = reader.next_event().await?;
        Some((Ok(event), reader))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(Duration::from_secs(15))))
}

fn parse_last_event_id(value: &axum::http::HeaderValue) -> Result<i64> {
    let seq = value.to_str().ok().and_then(|text| text.parse().ok()).filter(|seq| *seq >= 0);
    seq.ok_or_else(|| Problem::new(Code::BadCursor, "Last-Event-ID must be the seq of an event"))
}

struct SseReader {
    app: Arc<App>,
    access: AccessRecheck,
    follower: EventFollower,
    ready: VecDeque<Event>,
    stopping: tokio::sync::watch::Receiver<bool>,
    _permit: ReaderPermit,
}

impl Drop for SseReader {
    fn drop(&mut self) {
        metrics::gauge!(crate::metrics::READERS).decrement(1.0);
    }
}

impl SseReader {
    /// `None` ends the stream; the client reconnects with its last id.
    async fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if *self.stopping.borrow() {
                return None;
            }
            // The client gets the reason when it reconnects.
            if self.access.is_due() && self.access.check_again(&self.app).await.is_some() {
                return None;
            }
            match self.follower.next_step().await {
                Ok(FollowStep::Lines(lines)) => self.ready.extend(lines.iter().map(|line| {
                    let event = Event::default().id(line.event.seq.to_string());
                    event.event(line.event.event_type.as_str()).data(&line.json)
                })),
                Ok(FollowStep::Truncated { first_seq }) => {
                    return Event::default().event("truncated").json_data(TruncatedEvent { first_seq }).ok();
                }
                Ok(FollowStep::Lagged { .. }) => {}
                Ok(FollowStep::CaughtUp) => tokio::select! {
                    () = self.follower.wait_for_news() => {}
                    () = self.access.wait_until_due() => {}
                    _ = self.stopping.changed() => return None,
                },
                // On a store error, the client reconnects.
                Err(_) => return None,
            }
        }
    }
}
