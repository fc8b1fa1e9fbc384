//! A sandbox of the verification and its event stream.

use crate::connect::ConnectedClient;
use crate::event_log::log_event::LogEvent;
use crate::failure::Result;
use crate::pages::collect_all;
use crate::render::event_line;
use atoll_api::events::EventData;
use atoll_api::{EventsQuery, Message, NewMessage, NewSandbox, RemoveSandboxQuery};
use atoll_client::{EventStream, EventStreamItem};
use atoll_core::id::SandboxId;
use std::time::Duration;
use tokio::time::Instant;

/// Much longer than any step of the verification takes.
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub struct TrialSandbox<'a> {
    client: &'a ConnectedClient,
    pub sandbox: SandboxId,
    events: EventStream,
}

/// The result of waiting for an event.
pub enum WaitOutcome {
    Matched(Box<LogEvent>),
    /// The sandbox ended first.
    SandboxEnded(Box<LogEvent>),
    TimedOut,
}

impl WaitOutcome {
    /// Describes the outcome, for a verdict.
    pub fn describe(&self) -> String {
        match self {
            Self::Matched(event) => event.event_type().to_owned(),
            Self::SandboxEnded(event) => {
                format!("{}: {}", event.event_type(), event_line::summarize_event(event, 300))
            }
            Self::TimedOut => format!("no such event within {} s", EVENT_TIMEOUT.as_secs()),
        }
    }
}

impl<'a> TrialSandbox<'a> {
    pub async fn create(client: &'a ConnectedClient, request: &NewSandbox) -> Result<Self> {
        let sandbox = client.create_sandbox(request).await?.id;
        Ok(Self { client, sandbox, events: client.follow_events(sandbox, &[], 0) })
    }

    /// Waits for a matching event or the sandbox's end.
    pub async fn wait_for(&mut self, matches: impl Fn(&EventData) -> bool) -> Result<WaitOutcome> {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            let Ok(item) = tokio::time::timeout_at(deadline, self.events.next()).await else {
                return Ok(WaitOutcome::TimedOut);
            };
            let EventStreamItem::Event(event) = item? else { continue };
            let event = Box::new(LogEvent::from(*event));
            if matches(&event.data) {
                return Ok(WaitOutcome::Matched(event));
            }
            if event.is_sandbox_end() {
                return Ok(WaitOutcome::SandboxEnded(event));
            }
        }
    }

    pub async fn send_message(&self, text: &str) -> Result<Message> {
        Ok(self.client.send_message(self.sandbox, &NewMessage::new(text)).await?)
    }

    /// Reads the whole event log, and the seq of the last event from the sandbox.
    pub async fn read_log(&self) -> Result<(Vec<LogEvent>, i64)> {
        let events = collect_all(async |cursor| {
            self.client.list_events(self.sandbox, &EventsQuery { cursor, ..EventsQuery::default() }).await
        });
        let events = events.await?.into_iter().map(LogEvent::from).collect();
        Ok((events, self.client.get_sandbox(self.sandbox).await?.last_seq))
    }

    /// Removes the sandbox and waits until its provider has destroyed it.
    pub async fn remove(&self) -> Result {
        self.client.remove_sandbox(self.sandbox, &RemoveSandboxQuery { force: true }).await?;
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while Instant::now() < deadline {
            if self.client.get_sandbox(self.sandbox).await?.provider_id.is_none() {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}
