//! Following many sandboxes over one WebSocket.

use crate::error::{Error, Result};
use crate::http::{Client, NO_QUERY};
use crate::websocket::{Received, WebSocket};
use atoll_api::{ErrorCode, EventsFrame, EventsRequest, FollowedSandboxes, ProblemDocument};
use atoll_core::event::Event;
use atoll_core::id::SandboxId;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// An item of an [`EventSocket`].
#[derive(Debug)]
pub enum EventSocketItem {
    Event(Box<Event>),
    /// Output that the server does not store, such as text while the agent writes it.
    Live {
        sandbox_id: SandboxId,
        data: Value,
    },
    /// The client has all events of the sandbox; later ones are live.
    CaughtUp {
        sandbox_id: SandboxId,
        seq: i64,
    },
    /// Retention has removed the sandbox's events before `first_seq`.
    Truncated {
        sandbox_id: SandboxId,
        first_seq: i64,
    },
    /// The connection is lost; the next call reconnects and resumes after the last event of each sandbox.
    Disconnected {
        cause: &'static str,
    },
}

/// The events of many sandboxes, each in the order of its `seq`, through lost connections, with no gap and no repeat.
///
/// ```no_run
/// # async fn example(client: &atoll_client::Client) -> Result<(), atoll_client::Error> {
/// use atoll_client::{EventSocketItem, api::FollowedSandboxes};
///
/// let mut socket = client.open_event_socket(FollowedSandboxes::all(), &["sandbox.*".into()], Default::default());
/// loop {
///     if let EventSocketItem::Event(event) = socket.next().await? {
///         println!("{} {}", event.sandbox_id, event.event_type);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EventSocket {
    client: Client,
    sandboxes: FollowedSandboxes,
    types: Vec<String>,
    /// The last seq that the socket returned, by sandbox.
    positions: BTreeMap<SandboxId, i64>,
    connection: Option<WebSocket>,
    ready: VecDeque<EventSocketItem>,
    was_connected: bool,
    backoff: Option<Duration>,
}

impl Client {
    /// Follows the events of many sandboxes. `since` has the last seq that the caller knows, by sandbox; a sandbox that is
    /// not in it starts with its newest event. Empty `types` means all. With `FollowedSandboxes::all()`, a sandbox that is
    /// created while the connection is lost starts with its newest event too.
    pub fn open_event_socket(
        &self,
        sandboxes: FollowedSandboxes,
        types: &[String],
        since: BTreeMap<SandboxId, i64>,
    ) -> EventSocket {
        EventSocket {
            client: self.clone(),
            sandboxes,
            types: types.to_vec(),
            positions: since,
            connection: None,
            ready: VecDeque::new(),
            was_connected: false,
            backoff: None,
        }
    }
}

impl EventSocket {
    /// The last seq that the socket returned, by sandbox.
    pub const fn positions(&self) -> &BTreeMap<SandboxId, i64> {
        &self.positions
    }

    /// Returns the next item. Cancel safe.
    pub async fn next(&mut self) -> Result<EventSocketItem> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Ok(item);
            }
            let Some(connection) = &mut self.connection else {
                if let Some(item) = self.connect().await? {
                    return Ok(item);
                }
                continue;
            };
            match connection.receive().await {
                Received::Text(text) => self.take_frame(&text)?,
                Received::Binary(_) => {}
                Received::Lost(cause) => return Ok(self.disconnect(cause)),
            }
        }
    }

    fn disconnect(&mut self, cause: &'static str) -> EventSocketItem {
        self.connection = None;
        self.backoff.get_or_insert(FIRST_BACKOFF);
        EventSocketItem::Disconnected { cause }
    }

    async fn connect(&mut self) -> Result<Option<EventSocketItem>> {
        if let Some(backoff) = self.backoff {
            tokio::time::sleep(backoff).await;
        }
        let request = EventsRequest::Subscribe {
            sandboxes: self.sandboxes.clone(),
            types: self.types.clone(),
            since: self.positions.clone(),
        };
        match self.client.open_websocket("/events/ws", NO_QUERY).await {
            Ok(mut connection) => {
                connection.send_json(&request).await;
                self.connection = Some(connection);
                self.was_connected = true;
                Ok(None)
            }
            Err(error) if self.was_connected && error.is_transient() => {
                let is_first = self.backoff.is_none_or(|backoff| backoff <= FIRST_BACKOFF);
                self.backoff = Some(self.backoff.map_or(FIRST_BACKOFF, |backoff| (backoff * 2).min(MAX_BACKOFF)));
                Ok(is_first.then_some(EventSocketItem::Disconnected { cause: "the server does not answer" }))
            }
            Err(error) => Err(error),
        }
    }

    /// Queues the items of a frame. Frames of unknown types are from a newer server, and are skipped.
    fn take_frame(&mut self, text: &str) -> Result<()> {
        self.backoff = None;
        match serde_json::from_str::<EventsFrame>(text) {
            Ok(EventsFrame::Events { events }) => {
                for event in events {
                    let position = self.positions.entry(event.sandbox_id).or_insert(0);
                    if event.seq > *position {
                        *position = event.seq;
                        self.ready.push_back(EventSocketItem::Event(Box::new(event)));
                    }
                }
            }
            Ok(EventsFrame::Live { sandbox_id, data, .. }) => {
                self.ready.push_back(EventSocketItem::Live { sandbox_id, data });
            }
            Ok(EventsFrame::CaughtUp { sandbox_id, seq }) => {
                // Filtered events move the position too.
                let position = self.positions.entry(sandbox_id).or_insert(seq);
                *position = seq.max(*position);
                self.ready.push_back(EventSocketItem::CaughtUp { sandbox_id, seq });
            }
            Ok(EventsFrame::Truncated { sandbox_id, first_seq }) => {
                let position = self.positions.entry(sandbox_id).or_insert(0);
                *position = (first_seq - 1).max(*position);
                self.ready.push_back(EventSocketItem::Truncated { sandbox_id, first_seq });
            }
            // The server continues by itself, and ends an idle connection by itself.
            Ok(EventsFrame::Lagged { .. } | EventsFrame::Ping {}) | Err(_) => {}
            Ok(EventsFrame::Problem { code, detail }) => return self.take_problem(&code, detail),
        }
        Ok(())
    }

    fn take_problem(&mut self, code: &str, detail: String) -> Result<()> {
        let code = ErrorCode::from_code(code).unwrap_or(ErrorCode::Internal);
        let problem = Box::new(ProblemDocument::new(code, detail, Map::new()));
        let error = Error::Problem { problem, retry_after: None };
        if !error.is_transient() {
            return Err(error);
        }
        let item = self.disconnect("the server ended the stream");
        self.ready.push_back(item);
        Ok(())
    }
}
