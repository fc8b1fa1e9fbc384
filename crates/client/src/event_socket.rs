//! Following many sandboxes over one WebSocket.

use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::http::{Client, NO_QUERY};
use crate::websocket::{Received, WebSocket};
use atoll_api::{ErrorCode, EventsFrame, EventsRequest, FollowedSandboxes, ProblemDocument, SandboxListQuery};
use atoll_core::event::Event;
use atoll_core::id::SandboxId;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};

/// An item of an [`EventSocket`].
#[derive(Debug)]
pub enum EventSocketItem {
    Event(Box<Event>),
    /// Output that the server does not store, such as text while the agent writes it.
    Live {
        sandbox_id: SandboxId,
        /// The newest stored event when the server received the output.
        after_seq: i64,
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
/// One exception, with `FollowedSandboxes::all()`: if an ended sandbox gets another event in the moment of a reconnect,
/// between the client's list of sandboxes and its subscription, the socket does not return that event.
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
    /// The seq to resume after, by sandbox.
    positions: BTreeMap<SandboxId, i64>,
    connection: Option<WebSocket>,
    ready: VecDeque<EventSocketItem>,
    backoff: Backoff,
}

impl Client {
    /// Follows the events of many sandboxes. `since` has the last seq that the caller knows, by sandbox; a sandbox that is
    /// not in it starts with its newest event. Empty `types` means all. With `FollowedSandboxes::all()`, a sandbox that is
    /// created later, even while the connection is lost, starts with its first event.
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
            backoff: Backoff::default(),
        }
    }
}

impl EventSocket {
    /// The seq of the last event that the socket returned or skipped, by sandbox.
    pub const fn positions(&self) -> &BTreeMap<SandboxId, i64> {
        &self.positions
    }

    /// Returns the next item. Cancel safe.
    pub async fn next(&mut self) -> Result<EventSocketItem> {
        loop {
            while let Some(item) = self.ready.pop_front() {
                if self.advance_position(&item) {
                    return Ok(item);
                }
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

    /// Moves the position past the item; returns `false` for an event that the socket returned before.
    fn advance_position(&mut self, item: &EventSocketItem) -> bool {
        let (sandbox_id, seq) = match *item {
            EventSocketItem::Event(ref event) => (event.sandbox_id, event.seq),
            // Filtered events move the position too.
            EventSocketItem::CaughtUp { sandbox_id, seq } => (sandbox_id, seq),
            EventSocketItem::Truncated { sandbox_id, first_seq } => (sandbox_id, first_seq - 1),
            EventSocketItem::Live { .. } | EventSocketItem::Disconnected { .. } => return true,
        };
        let position = self.positions.entry(sandbox_id).or_insert(0);
        let is_new = seq > *position;
        *position = seq.max(*position);
        is_new || !matches!(item, EventSocketItem::Event(_))
    }

    fn disconnect(&mut self, cause: &'static str) -> EventSocketItem {
        self.connection = None;
        self.backoff.record_disconnect();
        EventSocketItem::Disconnected { cause }
    }

    async fn connect(&mut self) -> Result<Option<EventSocketItem>> {
        self.backoff.sleep().await;
        match self.subscribe().await {
            Ok(connection) => {
                self.connection = Some(connection);
                self.backoff.record_connection();
                Ok(None)
            }
            Err(error) => {
                let is_first = self.backoff.record_failure(error)?;
                Ok(is_first.then_some(EventSocketItem::Disconnected { cause: "the server does not answer" }))
            }
        }
    }

    async fn subscribe(&mut self) -> Result<WebSocket> {
        let follows_all = matches!(self.sandboxes, FollowedSandboxes::All(_));
        let since = if follows_all { self.list_positions().await? } else { self.positions.clone() };
        let (sandboxes, types) = (self.sandboxes.clone(), self.types.clone());
        let mut connection = self.client.open_websocket("/events/ws", NO_QUERY).await?;
        connection.send_json(&EventsRequest::Subscribe { sandboxes, types, since }).await;
        Ok(connection)
    }

    /// Returns the position in every sandbox, also in those that sent nothing yet: the server starts a sandbox without a
    /// position at its newest event. Ended sandboxes without further events are left out, to keep the request small.
    async fn list_positions(&mut self) -> Result<BTreeMap<SandboxId, i64>> {
        let client = &self.client;
        let sandboxes = Client::collect_pages(|cursor| async move {
            client.list_sandboxes(&SandboxListQuery { limit: Some(200), cursor, ..Default::default() }).await
        });
        let is_resuming = self.backoff.was_connected();
        let mut since = if is_resuming { BTreeMap::new() } else { self.positions.clone() };
        for sandbox in sandboxes.await? {
            let start = if is_resuming { 0 } else { sandbox.last_seq };
            let position = *self.positions.entry(sandbox.id).or_insert(start);
            if sandbox.ended_at.is_none() || position < sandbox.last_seq {
                since.insert(sandbox.id, position);
            }
        }
        Ok(since)
    }

    /// Queues the items of a frame. An invalid frame may hold events, so the next call resumes before it.
    fn take_frame(&mut self, text: &str) -> Result<()> {
        let frame = EventsFrame::parse(text).map_err(|error| {
            self.disconnect("the server sent an invalid frame");
            self.client.unexpected_response(&format!("a frame is not valid: {error}"))
        })?;
        self.backoff.record_data();
        match frame {
            EventsFrame::Events { events } => {
                self.ready.extend(events.into_iter().map(|event| EventSocketItem::Event(Box::new(event))));
            }
            EventsFrame::Live { sandbox_id, after_seq, data } => {
                self.ready.push_back(EventSocketItem::Live { sandbox_id, after_seq, data });
            }
            EventsFrame::CaughtUp { sandbox_id, seq } => {
                self.ready.push_back(EventSocketItem::CaughtUp { sandbox_id, seq });
            }
            EventsFrame::Truncated { sandbox_id, first_seq } => {
                self.ready.push_back(EventSocketItem::Truncated { sandbox_id, first_seq });
            }
            // The server continues by itself, and ends an idle connection by itself. A newer server may send other frames.
            EventsFrame::Lagged { .. } | EventsFrame::Ping {} | EventsFrame::Unknown => {}
            EventsFrame::Problem { code, detail } => return self.take_problem(&code, detail),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unknown_frames_are_skipped_and_invalid_ones_are_errors() {
        let client = Client::new("http://127.0.0.1:9", "token").unwrap();
        let mut socket = client.open_event_socket(FollowedSandboxes::all(), &[], BTreeMap::new());
        socket.take_frame(r#"{"type":"later","events":3}"#).unwrap();
        assert!(socket.ready.is_empty());
        let error = socket.take_frame(r#"{"type":"events","events":[{"seq":"one"}]}"#).unwrap_err();
        assert!(matches!(error, Error::UnexpectedResponse { .. }), "{error:?}");
        assert!(socket.connection.is_none(), "the next call must resume before the frame");
    }
}
