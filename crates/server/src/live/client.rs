//! The WebSocket of readers: subscribe, replay from the store, go on live.

use super::Upgrade;
use super::feed::{Feed, Wanted};
use super::rights;
use crate::api::events::follow_filter;
use crate::auth::access::Visible;
use crate::auth::{self, Caller};
use crate::extract::{Params, parse};
use crate::follow::{LOOK_AGAIN, Step};
use crate::hub::{Line, News};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use axum::extract::ws::{Message, WebSocket};
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout};

/// News are gathered for this long, so that a burst is one frame.
const GATHER: Duration = Duration::from_millis(15);
const PING: Duration = rights::EVERY;
/// A reader that takes nothing for this long is gone.
const STUCK: Duration = Duration::from_secs(60);
const SUBSCRIBE_BYTES: usize = 256 * 1024;
/// Sandboxes that can be named in one subscription.
const NAMED: usize = 500;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TicketQuery {
    /// A one-time ticket from `POST /ws-tickets`, for clients that can't send headers.
    ticket: Option<String>,
}

/// A caller by header, or by ticket.
pub struct Reader(Caller);

impl FromRequestParts<Arc<App>> for Reader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let Params(query) = Params::<TicketQuery>::from_request_parts(parts, app).await?;
        Ok(Self(auth::by_ticket(parts, app, query.ticket.as_deref()).await?))
    }
}

/// Follow events of many sandboxes over one WebSocket.
///
/// Send `{"type":"subscribe","sandboxes":["sbx_…"]|"*","types":["agent.*"],"since":{"sbx_…":12}}`;
/// a later one replaces the earlier. Frames: `events`, `live`, `caught_up`, `lagged`, `truncated`,
/// `ping`, `problem`.
#[utoipa::path(get, path = "/events/ws", tag = "events", params(TicketQuery),
    responses((status = 101, description = "A WebSocket")))]
pub async fn open(State(app): State<Arc<App>>, reader: Reader, Upgrade(upgrade): Upgrade) -> Result<Response> {
    reader.0.must_not_be_worker()?;
    let permit = app.reader_permit()?;
    let upgrade = upgrade.max_message_size(SUBSCRIBE_BYTES).max_frame_size(SUBSCRIBE_BYTES);
    // A reader says little; the default would hold 128 KiB for each of them.
    let upgrade = upgrade.read_buffer_size(4096);
    Ok(upgrade.on_upgrade(move |socket| async move {
        metrics::gauge!(crate::metrics::READERS).increment(1.0);
        let mut connection = Connection { app, caller: reader.0, socket, feed: None };
        if let Err(problem) = connection.run().await {
            connection.say_problem(&problem).await;
        }
        metrics::gauge!(crate::metrics::READERS).decrement(1.0);
        drop(permit);
    }))
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    Subscribe {
        sandboxes: Sandboxes,
        #[serde(default)]
        types: Vec<String>,
        #[serde(default)]
        since: BTreeMap<SandboxId, i64>,
    },
    Pong {},
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Sandboxes {
    Star(String),
    These(Vec<SandboxId>),
}

struct Connection {
    app: Arc<App>,
    caller: Caller,
    socket: WebSocket,
    feed: Option<Feed>,
}

/// The reader has gone; there is nobody to tell.
struct Gone;

enum End {
    Gone,
    Problem(Problem),
}

impl From<Gone> for End {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

impl From<Problem> for End {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl Connection {
    async fn run(&mut self) -> Result<()> {
        match self.serve().await {
            Ok(()) | Err(End::Gone) => Ok(()),
            Err(End::Problem(problem)) => Err(problem),
        }
    }

    async fn serve(&mut self) -> std::result::Result<(), End> {
        let mut news = self.app.hub.news();
        let mut stopping = self.app.stopping.clone();
        let mut ping = tokio::time::interval_at(Instant::now() + PING, PING);
        let mut look = tokio::time::interval_at(Instant::now() + LOOK_AGAIN, LOOK_AGAIN);
        loop {
            tokio::select! {
                heard = news.recv() => match heard {
                    Ok(first) => {
                        self.hear(first).await?;
                        let until = Instant::now() + GATHER;
                        while let Ok(more) = tokio::time::timeout_at(until, news.recv()).await {
                            match more {
                                Ok(more) => self.hear(more).await?,
                                Err(RecvError::Lagged(_)) => self.look_everywhere().await?,
                                Err(RecvError::Closed) => return Ok(()),
                            }
                        }
                        self.drain().await?;
                    }
                    Err(RecvError::Lagged(_)) => {
                        self.look_everywhere().await?;
                        self.drain().await?;
                    }
                    Err(RecvError::Closed) => return Ok(()),
                },
                frame = self.socket.recv() => match frame {
                    Some(Ok(Message::Text(text))) => {
                        self.take(&text).await?;
                        self.drain().await?;
                    }
                    Some(Ok(Message::Binary(_))) => return Err(Problem::invalid("frames are text").into()),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(()),
                },
                _ = ping.tick() => {
                    self.may_stay().await?;
                    self.send(json!({ "type": "ping" }).to_string()).await?;
                }
                _ = look.tick() => {
                    self.look_everywhere().await?;
                    self.drain().await?;
                }
                _ = stopping.changed() => {
                    let problem = Problem::new(crate::problem::Code::ShuttingDown, "come back and go on from your last seq");
                    return Err(problem.into());
                }
            }
        }
    }

    async fn may_stay(&mut self) -> Result<()> {
        let nothing = Visible::These(Vec::new());
        let before = self.feed.as_ref().map_or(&nothing, |feed| &feed.visible).clone();
        let (app, caller) = (Arc::clone(&self.app), self.caller.clone());
        rights::seen_less(&app, &caller, &before).await.map_or(Ok(()), Err)
    }

    async fn hear(&mut self, news: News) -> std::result::Result<(), End> {
        let Some(feed) = &mut self.feed else { return Ok(()) };
        match news {
            News::Events(sandbox) => {
                if feed.hears(sandbox).await? {
                    feed.dirty.insert(sandbox);
                }
            }
            News::Live(live) => {
                if feed.hears(live.sandbox).await? {
                    self.send(live.json.clone()).await?;
                }
            }
        }
        Ok(())
    }

    async fn look_everywhere(&mut self) -> Result<()> {
        match &mut self.feed {
            Some(feed) => feed.look_everywhere().await,
            None => Ok(()),
        }
    }

    async fn take(&mut self, text: &str) -> Result<()> {
        let request: Request = parse(text.as_bytes()).map_err(Problem::invalid)?;
        let Request::Subscribe { sandboxes, types, since } = request else { return Ok(()) };
        let wanted = match sandboxes {
            Sandboxes::Star(star) if star == "*" => Wanted::All,
            Sandboxes::Star(_) => return Err(Problem::invalid("sandboxes: a list of ids, or \"*\"")),
            Sandboxes::These(ids) if ids.len() > NAMED => {
                return Err(Problem::invalid(format!("sandboxes: at most {NAMED} can be named; follow \"*\"")));
            }
            Sandboxes::These(ids) => Wanted::These(ids),
        };
        let filter = follow_filter(&types)?;
        self.feed = Some(Feed::start(Arc::clone(&self.app), &self.caller, wanted, filter, since).await?);
        Ok(())
    }

    /// Sends all that is new, log by log; a slow reader is waited for, nothing piles up.
    async fn drain(&mut self) -> std::result::Result<(), End> {
        loop {
            let Some(feed) = &mut self.feed else { return Ok(()) };
            let Some(id) = feed.dirty.first().copied() else { return Ok(()) };
            let Some(follower) = feed.follower(id).await? else {
                feed.dirty.remove(&id);
                continue;
            };
            let frame = match follower.step().await? {
                Step::Lines(lines) if lines.is_empty() => continue,
                Step::Lines(lines) => events_frame(&lines),
                Step::Truncated { first_seq } => {
                    json!({ "type": "truncated", "sandbox_id": id, "first_seq": first_seq }).to_string()
                }
                Step::Lagged { seq } => json!({ "type": "lagged", "resume": { (id.to_string()): seq } }).to_string(),
                Step::CaughtUp => {
                    let seq = follower.seq();
                    feed.dirty.remove(&id);
                    if !feed.replaying.remove(&id) {
                        continue;
                    }
                    json!({ "type": "caught_up", "sandbox_id": id, "seq": seq }).to_string()
                }
            };
            self.send(frame).await?;
        }
    }

    async fn send(&mut self, text: String) -> std::result::Result<(), Gone> {
        match timeout(STUCK, self.socket.send(Message::Text(text.into()))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Gone),
        }
    }

    async fn say_problem(&mut self, problem: &Problem) {
        let frame = json!({ "type": "problem", "code": problem.code.as_str(), "detail": problem.detail });
        drop(self.send(frame.to_string()).await);
    }
}

fn events_frame(lines: &[Arc<Line>]) -> String {
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
