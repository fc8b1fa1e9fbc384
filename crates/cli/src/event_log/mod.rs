//! Reads a sandbox's event log page by page, and follows it. `events`, `logs` and `compare` share it.

pub mod events;
pub mod log_event;
pub mod logs;
pub mod whole_text;

use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::references::Target;
use crate::stored_state::ReadingClient;
use atoll_api::{EventOrder, EventsQuery, Sandbox};
use atoll_client::EventStreamItem;
use atoll_core::event::{EventTypePattern, kind};
use atoll_core::id::SandboxId;
use atoll_core::sandbox::SandboxState;
use log_event::LogEvent;
use serde_json::json;
use std::time::Duration;

/// The flags that select events.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct EventFilter {
    /// Follow the log until the sandbox has ended
    #[arg(long, short)]
    pub follow: bool,
    /// Filter by event type, such as `agent.*` (repeatable)
    #[arg(long = "type", value_name = "TYPE")]
    pub types: Vec<String>,
    /// Skip events up to this seq
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(i64).range(0..))]
    pub since: Option<i64>,
    /// Print only the last N events
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// Receives the events of a [`LogReader`].
pub trait EventSink {
    fn show_event(&mut self, event: &LogEvent) -> Result;

    /// Retention has removed the events before `first_seq`.
    fn show_truncation(&mut self, first_seq: i64, output: &Output) -> Result {
        if output.json {
            return output.print_object(&json!({ "type": "truncated", "first_seq": first_seq }));
        }
        output.print_note(&format!("events before {first_seq} have been removed by retention"));
        Ok(())
    }
}

/// The log of an ended sandbox must be quiet for this long before the reader stops following it.
const QUIET_PERIOD: Duration = Duration::from_secs(2);
const PAGE_SIZE: usize = 500;
/// Types that a follower always receives: they report the sandbox's end.
const END_TYPES: [&str; 2] = [kind::SANDBOX_COMPLETED, kind::SANDBOX_FAILED];

pub struct LogReader<'a> {
    client: &'a ConnectedClient,
    output: &'a Output,
    sandbox: SandboxId,
    filter: &'a EventFilter,
    patterns: Vec<EventTypePattern>,
    /// Fetch the whole of texts that events show in part.
    fetches_whole_texts: bool,
}

impl<'a> LogReader<'a> {
    pub fn new(
        client: &'a ConnectedClient,
        output: &'a Output,
        sandbox: SandboxId,
        filter: &'a EventFilter,
    ) -> Result<Self> {
        let patterns: Result<Vec<_>, _> = filter.types.iter().map(|text| EventTypePattern::parse(text)).collect();
        let patterns = patterns.map_err(|error| {
            Failure::input(format!("--type: {error}"))
                .with_hint("Use a type such as agent.message, or a group such as agent.*")
        })?;
        Ok(Self { client, output, sandbox, filter, patterns, fetches_whole_texts: false })
    }

    pub const fn with_whole_texts(mut self, fetches: bool) -> Self {
        self.fetches_whole_texts = fetches;
        self
    }

    async fn show_event(&self, mut event: LogEvent, sink: &mut dyn EventSink) -> Result {
        if self.fetches_whole_texts {
            whole_text::complete_event(&mut event, self.client).await?;
        }
        sink.show_event(&event)
    }

    /// Passes the selected events to the sink, in order.
    pub async fn read_all(&self, sink: &mut dyn EventSink) -> Result {
        let sandbox = self.fetch_sandbox().await?;
        let mut since = self.filter.since.unwrap_or(0);
        match (self.filter.limit, self.filter.since, self.filter.follow) {
            (Some(0), _, _) => since = since.max(sandbox.last_seq),
            (Some(most), ..) => {
                for event in self.newest_events(most, since).await?.into_iter().rev() {
                    since = event.event.seq;
                    self.show_event(event, sink).await?;
                }
            }
            (None, None, false) => {
                if sandbox.first_seq > 1 {
                    sink.show_truncation(sandbox.first_seq, self.output)?;
                }
                return self.read_pages(sink).await;
            }
            (None, Some(_), false) => return self.read_until(since, sandbox.last_seq, sink).await,
            (None, _, true) => {}
        }
        if self.filter.follow { self.follow_log(since, has_ended(&sandbox), sink).await } else { Ok(()) }
    }

    async fn fetch_sandbox(&self) -> Result<Sandbox> {
        Ok(self.client.get_sandbox(self.sandbox).await?)
    }

    fn is_selected(&self, event: &LogEvent) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(event.event_type()))
    }

    async fn fetch_page(
        &self,
        order: EventOrder,
        most: usize,
        cursor: Option<String>,
    ) -> Result<(Vec<LogEvent>, Option<String>)> {
        let types = (!self.filter.types.is_empty()).then(|| self.filter.types.join(","));
        let limit = i64::try_from(most).ok();
        let query = EventsQuery { limit, cursor, order, types, ..EventsQuery::default() };
        let page = self.client.list_events(self.sandbox, &query).await?;
        Ok((page.items.into_iter().map(LogEvent::from).collect(), page.next_cursor))
    }

    async fn read_pages(&self, sink: &mut dyn EventSink) -> Result {
        let mut cursor = None;
        loop {
            let (events, next) = self.fetch_page(EventOrder::Asc, PAGE_SIZE, cursor).await?;
            for event in events {
                self.show_event(event, sink).await?;
            }
            let Some(next) = next else { return Ok(()) };
            cursor = Some(next);
        }
    }

    /// The last `most` events after `since`, newest first.
    async fn newest_events(&self, most: usize, since: i64) -> Result<Vec<LogEvent>> {
        let mut found = Vec::new();
        let mut cursor = None;
        loop {
            let room = most - found.len();
            let (events, next) = self.fetch_page(EventOrder::Desc, room.min(PAGE_SIZE), cursor).await?;
            let reached = events.last().is_some_and(|oldest| oldest.event.seq <= since + 1);
            found.extend(events.into_iter().filter(|event| event.event.seq > since).take(room));
            match next {
                Some(next) if found.len() < most && !reached => cursor = Some(next),
                _ => return Ok(found),
            }
        }
    }

    /// Reads the events after `since` up to `last`.
    async fn read_until(&self, since: i64, last: i64, sink: &mut dyn EventSink) -> Result {
        // Follow all types, so that the last event ends the loop.
        let mut follower = self.client.follow_events(self.sandbox, &[], since);
        let mut seq = since;
        while seq < last {
            match follower.next().await? {
                EventStreamItem::Event(event) => {
                    let event = LogEvent::from(*event);
                    seq = event.event.seq;
                    if seq <= last && self.is_selected(&event) {
                        self.show_event(event, sink).await?;
                    }
                }
                EventStreamItem::Truncated { first_seq } => {
                    sink.show_truncation(first_seq, self.output)?;
                    seq = seq.max(first_seq - 1);
                }
                EventStreamItem::Disconnected { .. } => {}
            }
        }
        Ok(())
    }

    async fn follow_log(&self, since: i64, mut ended: bool, sink: &mut dyn EventSink) -> Result {
        let mut types = self.filter.types.clone();
        if !types.is_empty() {
            types.extend(END_TYPES.map(str::to_owned));
        }
        let mut follower = self.client.follow_events(self.sandbox, &types, since);
        let mut is_lost = false;
        loop {
            if follower.is_waiting() {
                self.output.flush()?;
            }
            let followed = if ended && !is_lost {
                let Ok(followed) = tokio::time::timeout(QUIET_PERIOD, follower.next()).await else {
                    let sandbox = self.fetch_sandbox().await?;
                    if has_ended(&sandbox) {
                        self.output.print_note(&describe_end(&sandbox));
                        return Ok(());
                    }
                    // The server exports the results of the ended sandbox.
                    ended = false;
                    continue;
                };
                followed?
            } else {
                follower.next().await?
            };
            match followed {
                EventStreamItem::Event(event) => {
                    let event = LogEvent::from(*event);
                    if std::mem::take(&mut is_lost) {
                        self.output.print_note("reconnected");
                    }
                    ended |= event.is_sandbox_end();
                    if self.is_selected(&event) {
                        self.show_event(event, sink).await?;
                    }
                }
                EventStreamItem::Truncated { first_seq } => sink.show_truncation(first_seq, self.output)?,
                EventStreamItem::Disconnected { cause } => {
                    if !std::mem::replace(&mut is_lost, true) {
                        self.output.print_note(&format!("{cause}; reconnecting, no events are lost"));
                    }
                }
            }
        }
    }
}

fn has_ended(sandbox: &Sandbox) -> bool {
    matches!(sandbox.state, SandboxState::Completed | SandboxState::Failed)
}

fn describe_end(sandbox: &Sandbox) -> String {
    let outcome = sandbox.outcome.filter(|outcome| outcome.as_str() != sandbox.state.as_str());
    let outcome = outcome.map(|outcome| format!(" ({outcome})")).unwrap_or_default();
    let reason = sandbox.reason.as_ref().map(|reason| format!(": {}", reason.detail)).unwrap_or_default();
    format!("the sandbox has {}{outcome}{reason}", sandbox.state)
}

/// A client that reads the log; only a running server can follow it.
pub async fn find_log_client(connect: &Connect, filter: &EventFilter, output: &Output) -> Result<ReadingClient> {
    if filter.follow {
        return ConnectedClient::find(connect).map(ReadingClient::from);
    }
    ReadingClient::find(connect, output).await
}

/// The sandbox of a target: a session stands for its live sandbox, or its last one.
pub async fn sandbox_of(client: &ConnectedClient, target: Target) -> Result<SandboxId> {
    let session = match target {
        Target::Sandbox(id) => return Ok(id),
        Target::Session(id) => id,
    };
    let found = client.get_session(session).await?;
    found.sandbox_id.or(found.last_sandbox_id).ok_or_else(|| {
        Failure::setup("no_sandbox", format!("the session {session} has no sandbox yet"))
            .with_hint(format!("Create one with `atoll session resume {session}`."))
    })
}
