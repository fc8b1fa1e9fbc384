//! Following one sandbox over server-sent events.

use crate::backoff::Backoff;
use crate::error::Result;
use crate::http::Client;
use crate::sse::{SseFrame, SseParser};
use atoll_api::{FollowQuery, TruncatedEvent};
use atoll_core::event::Event;
use atoll_core::id::SandboxId;
use reqwest::{Method, Response};
use std::collections::VecDeque;
use std::time::Duration;

/// The server sends a comment every 15 seconds; after this silence the connection is lost.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(45);

/// An item of an [`EventStream`].
#[derive(Debug)]
pub enum EventStreamItem {
    Event(Box<Event>),
    /// Retention has removed the events before `first_seq`; the stream continues there.
    Truncated {
        first_seq: i64,
    },
    /// The connection is lost; the next call reconnects and resumes after the last event.
    Disconnected {
        cause: &'static str,
    },
}

/// The events of one sandbox in the order of their `seq`, through lost connections, with no gap and no repeat.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    path: String,
    types: Vec<String>,
    /// The last seq that the stream returned.
    seq: i64,
    connection: Option<Response>,
    parser: SseParser,
    ready: VecDeque<SseFrame>,
    backoff: Backoff,
}

impl Client {
    /// Follows a sandbox's events after `seq`; 0 starts with the first. Empty `types` means all.
    ///
    /// The stream sends `Last-Event-ID` when it reconnects, so that it misses no event and repeats none.
    pub fn follow_events(&self, sandbox: SandboxId, types: &[String], seq: i64) -> EventStream {
        EventStream {
            client: self.clone(),
            path: format!("/sandboxes/{sandbox}/events/stream"),
            types: types.to_vec(),
            seq,
            connection: None,
            parser: SseParser::default(),
            ready: VecDeque::new(),
            backoff: Backoff::default(),
        }
    }
}

impl EventStream {
    /// The seq of the last event that the stream returned.
    pub const fn seq(&self) -> i64 {
        self.seq
    }

    /// The stream has no buffered event: the next one has yet to arrive.
    pub fn is_waiting(&self) -> bool {
        self.ready.is_empty()
    }

    /// Returns the next item. Cancel safe.
    pub async fn next(&mut self) -> Result<EventStreamItem> {
        loop {
            while let Some(frame) = self.ready.pop_front() {
                if let Some(item) = self.take_frame(&frame)? {
                    return Ok(item);
                }
            }
            let Some(connection) = &mut self.connection else {
                if let Some(item) = self.connect().await? {
                    return Ok(item);
                }
                continue;
            };
            match tokio::time::timeout(SILENCE_TIMEOUT, connection.chunk()).await {
                Ok(Ok(Some(bytes))) => self.parser.push(&bytes, &mut self.ready),
                Ok(Ok(None)) => return Ok(self.disconnect("the server ended the stream")),
                Ok(Err(_)) => return Ok(self.disconnect("the connection broke")),
                Err(_) => return Ok(self.disconnect("the server is silent")),
            }
        }
    }

    fn disconnect(&mut self, cause: &'static str) -> EventStreamItem {
        self.connection = None;
        self.parser = SseParser::default();
        self.backoff.record_disconnect();
        EventStreamItem::Disconnected { cause }
    }

    async fn connect(&mut self) -> Result<Option<EventStreamItem>> {
        self.backoff.sleep().await;
        let query = FollowQuery { since: None, types: self.types.clone() };
        let request = self.client.request(Method::GET, &self.path, &query).header("last-event-id", self.seq);
        match self.client.send(request).await {
            Ok(connection) => {
                self.connection = Some(connection);
                self.backoff.record_connection();
                Ok(None)
            }
            Err(error) => {
                let is_first = self.backoff.record_failure(error)?;
                Ok(is_first.then_some(EventStreamItem::Disconnected { cause: "the server does not answer" }))
            }
        }
    }

    fn take_frame(&mut self, frame: &SseFrame) -> Result<Option<EventStreamItem>> {
        self.backoff.record_data();
        let invalid =
            |error: serde_json::Error| self.client.unexpected_response(&format!("an event is not valid: {error}"));
        if frame.event == "truncated" {
            let TruncatedEvent { first_seq } = serde_json::from_str(&frame.data).map_err(invalid)?;
            self.seq = self.seq.max(first_seq - 1);
            return Ok(Some(EventStreamItem::Truncated { first_seq }));
        }
        let event: Event = serde_json::from_str(&frame.data).map_err(invalid)?;
        if event.seq <= self.seq {
            return Ok(None);
        }
        self.seq = event.seq;
        Ok(Some(EventStreamItem::Event(Box::new(event))))
    }
}
