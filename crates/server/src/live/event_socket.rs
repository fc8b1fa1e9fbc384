//! The WebSocket for event readers: subscribe, replay from the store, then follow live.

use super::SocketUpgrade;
use super::access_recheck;
use super::subscription::{SubscribedSandboxes, Subscription};
use crate::app::event_log::follow_filter;
use crate::auth::access::VisibleProjects;
use crate::auth::{self, Caller};
use crate::event_follower::{FollowStep, RECHECK_INTERVAL};
use crate::extract::{Params, parse_object};
use crate::hub::{EventLine, News};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_api::{EventsFrame, EventsRequest, FollowedSandboxes, TicketQuery};
use axum::extract::ws::{Message, WebSocket};
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::response::Response;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout};

/// Collects news for this time, so that a burst becomes one frame.
const BATCH_WINDOW: Duration = Duration::from_millis(15);
const PING_INTERVAL: Duration = access_recheck::RECHECK_INTERVAL;
/// A reader that receives nothing for this time is disconnected.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_FRAME_BYTES: usize = 256 * 1024;
/// Maximum number of sandbox ids in one subscription.
const MAX_NAMED_SANDBOXES: usize = 500;

/// A caller, authenticated by header or ticket.
pub struct SocketCaller(Caller);

impl FromRequestParts<Arc<App>> for SocketCaller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let Params(query) = Params::<TicketQuery>::from_request_parts(parts, app).await?;
        Ok(Self(auth::authenticate_ticket(parts, app, query.ticket.as_deref()).await?))
    }
}

/// Follow events of many sandboxes over one WebSocket.
///
/// Send `{"type":"subscribe","sandboxes":["sbx_…"]|"*","types":["agent.*"],"since":{"sbx_…":12}}`;
/// a later one replaces the earlier. Frames: `events`, `live`, `caught_up`, `lagged`, `truncated`,
/// `ping`, `problem`.
#[utoipa::path(get, path = "/events/ws", tag = "events", params(TicketQuery),
    responses((status = 101, description = "A WebSocket")))]
pub async fn open_event_socket(
    State(app): State<Arc<App>>,
    reader: SocketCaller,
    SocketUpgrade(upgrade): SocketUpgrade,
) -> Result<Response> {
    reader.0.require_not_worker()?;
    let permit = app.admit_reader(&reader.0)?;
    let upgrade = upgrade.max_message_size(MAX_FRAME_BYTES).max_frame_size(MAX_FRAME_BYTES);
    // Readers send little; the default buffer is 128 KiB per connection.
    let upgrade = upgrade.read_buffer_size(4096);
    Ok(upgrade.on_upgrade(move |socket| async move {
        metrics::gauge!(crate::metrics::READERS).increment(1.0);
        let mut connection = EventSocket { app, caller: reader.0, socket, subscription: None };
        if let Err(problem) = connection.serve_socket().await {
            connection.send_problem(&problem).await;
        }
        metrics::gauge!(crate::metrics::READERS).decrement(1.0);
        drop(permit);
    }))
}

struct EventSocket {
    app: Arc<App>,
    caller: Caller,
    socket: WebSocket,
    subscription: Option<Subscription>,
}

/// The reader has disconnected.
struct ReaderGone;

enum SocketEnd {
    ReaderGone,
    Problem(Problem),
}

impl From<ReaderGone> for SocketEnd {
    fn from(_: ReaderGone) -> Self {
        Self::ReaderGone
    }
}

impl From<Problem> for SocketEnd {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl EventSocket {
    async fn serve_socket(&mut self) -> Result<()> {
        match self.serve_until_closed().await {
            Ok(()) | Err(SocketEnd::ReaderGone) => Ok(()),
            Err(SocketEnd::Problem(problem)) => Err(problem),
        }
    }

    async fn serve_until_closed(&mut self) -> std::result::Result<(), SocketEnd> {
        let mut news = self.app.hub.subscribe_news();
        let mut stopping = self.app.stopping.clone();
        let mut rights = self.app.tokens.subscribe();
        let mut ping = tokio::time::interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        let mut look = tokio::time::interval_at(Instant::now() + RECHECK_INTERVAL, RECHECK_INTERVAL);
        loop {
            tokio::select! {
                notice = news.recv() => match notice {
                    Ok(first) => {
                        self.handle_news(first).await?;
                        let until = Instant::now() + BATCH_WINDOW;
                        while let Ok(more) = tokio::time::timeout_at(until, news.recv()).await {
                            match more {
                                Ok(more) => self.handle_news(more).await?,
                                Err(RecvError::Lagged(_)) => self.recheck_all().await?,
                                Err(RecvError::Closed) => return Ok(()),
                            }
                        }
                        self.send_new_events().await?;
                    }
                    Err(RecvError::Lagged(_)) => {
                        self.recheck_all().await?;
                        self.send_new_events().await?;
                    }
                    Err(RecvError::Closed) => return Ok(()),
                },
                frame = self.socket.recv() => match frame {
                    Some(Ok(Message::Text(text))) => {
                        self.handle_request(&text).await?;
                        self.send_new_events().await?;
                    }
                    Some(Ok(Message::Binary(_))) => return Err(Problem::invalid("frames are text").into()),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(()),
                },
                _ = rights.changed() => self.recheck_access().await?,
                _ = ping.tick() => {
                    self.recheck_access().await?;
                    self.send_frame(encode_frame(&EventsFrame::Ping {})).await?;
                }
                _ = look.tick() => {
                    self.recheck_all().await?;
                    self.send_new_events().await?;
                }
                _ = stopping.changed() => {
                    let problem = Problem::new(crate::problem::Code::ShuttingDown, "the server is stopping; reconnect and resume from your last seq");
                    return Err(problem.into());
                }
            }
        }
    }

    /// Fails if the reader lost access to a project.
    async fn recheck_access(&mut self) -> Result<()> {
        let nothing = VisibleProjects::These(Vec::new());
        let before = self.subscription.as_ref().map_or(&nothing, |feed| &feed.visible).clone();
        let (app, caller) = (Arc::clone(&self.app), self.caller.clone());
        access_recheck::recheck_visible_projects(&app, &caller, &before).await.map_or(Ok(()), Err)
    }

    async fn handle_news(&mut self, news: News) -> std::result::Result<(), SocketEnd> {
        let Some(feed) = &mut self.subscription else { return Ok(()) };
        match news {
            News::Events(sandbox) => {
                if feed.includes(sandbox).await? {
                    feed.dirty.insert(sandbox);
                }
            }
            News::Live(live) => {
                if feed.includes(live.sandbox).await? {
                    // An open log has a tail, which knows the newest seq.
                    feed.follower(live.sandbox).await?;
                    self.send_frame(live.json.clone()).await?;
                }
            }
        }
        Ok(())
    }

    async fn recheck_all(&mut self) -> Result<()> {
        match &mut self.subscription {
            Some(feed) => feed.recheck_all().await,
            None => Ok(()),
        }
    }

    async fn handle_request(&mut self, text: &str) -> Result<()> {
        let request: EventsRequest = parse_object(text.as_bytes()).map_err(Problem::invalid)?;
        let EventsRequest::Subscribe { sandboxes, types, since } = request else { return Ok(()) };
        let selected = match sandboxes {
            FollowedSandboxes::All(star) if star == "*" => SubscribedSandboxes::All,
            FollowedSandboxes::All(_) => return Err(Problem::invalid("sandboxes: a list of ids, or \"*\"")),
            FollowedSandboxes::Ids(ids) if ids.len() > MAX_NAMED_SANDBOXES => {
                return Err(Problem::invalid(format!(
                    "sandboxes: at most {MAX_NAMED_SANDBOXES} can be named; follow \"*\""
                )));
            }
            FollowedSandboxes::Ids(ids) => SubscribedSandboxes::These(ids),
        };
        let filter = follow_filter(&types)?;
        self.subscription =
            Some(Subscription::subscribe(Arc::clone(&self.app), &self.caller, selected, filter, since).await?);
        Ok(())
    }

    /// Sends the new events of each log. A slow reader delays the loop, so nothing queues up.
    async fn send_new_events(&mut self) -> std::result::Result<(), SocketEnd> {
        loop {
            let Some(feed) = &mut self.subscription else { return Ok(()) };
            let Some(id) = feed.dirty.first().copied() else { return Ok(()) };
            let Some(follower) = feed.follower(id).await? else {
                feed.dirty.remove(&id);
                continue;
            };
            let frame = match follower.next_step().await? {
                FollowStep::Lines(lines) if lines.is_empty() => continue,
                FollowStep::Lines(lines) => events_frame(&lines),
                FollowStep::Truncated { first_seq } => {
                    encode_frame(&EventsFrame::Truncated { sandbox_id: id, first_seq })
                }
                FollowStep::Lagged { seq } => {
                    encode_frame(&EventsFrame::Lagged { resume: BTreeMap::from([(id, seq)]) })
                }
                FollowStep::CaughtUp => {
                    let seq = follower.seq();
                    feed.dirty.remove(&id);
                    if !feed.replaying.remove(&id) {
                        continue;
                    }
                    encode_frame(&EventsFrame::CaughtUp { sandbox_id: id, seq })
                }
            };
            self.send_frame(frame).await?;
        }
    }

    async fn send_frame(&mut self, text: String) -> std::result::Result<(), ReaderGone> {
        match timeout(SEND_TIMEOUT, self.socket.send(Message::Text(text.into()))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(ReaderGone),
        }
    }

    async fn send_problem(&mut self, problem: &Problem) {
        let frame = EventsFrame::Problem { code: problem.code.as_str().to_owned(), detail: problem.detail.clone() };
        drop(self.send_frame(encode_frame(&frame)).await);
    }
}

/// Encodes a frame, which can't fail: its keys are strings.
pub(super) fn encode_frame(frame: &impl serde::Serialize) -> String {
    serde_json::to_string(frame).unwrap_or_default()
}

/// Joins encoded events to an `EventsFrame::Events`.
fn events_frame(lines: &[Arc<EventLine>]) -> String {
    let size: usize = lines.iter().map(|line| line.json.len() + 1).sum();
    let mut frame = String::with_capacity(size + 40);
    frame.push_str(r#"{"type":"events","events":["#);
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            frame.push(',');
        }
        frame.push_str(&line.json);
    }
    frame.push_str("]}");
    frame
}
