//! Follows a sandbox's event log from a position, first from the store and then live, without gaps or duplicates.

use crate::hub::{EventLine, EventTail};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::id::{SandboxId, SessionId};
use atoll_store::events::{self, EventLogFilter, EventLogOrder};
use atoll_store::sandboxes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Maximum events per step.
pub const MAX_STEP_EVENTS: usize = 256;
/// Bounds the delay of a lost wake-up.
pub const RECHECK_INTERVAL: Duration = Duration::from_secs(3);

/// The result of one step.
#[derive(Debug)]
pub enum FollowStep {
    /// The next events, in order and filtered.
    Lines(Vec<Arc<EventLine>>),
    /// Earlier events were deleted; the log continues here.
    Truncated { first_seq: i64 },
    /// The reader fell behind the tail and continues from the store.
    Lagged { seq: i64 },
    /// There are no further events now.
    CaughtUp,
}

pub struct EventFollower {
    app: Arc<App>,
    sandbox: SandboxId,
    session: SessionId,
    filter: EventLogFilter,
    /// The last seq that the reader has or skipped.
    seq: i64,
    tail: Arc<EventTail>,
    newest: watch::Receiver<i64>,
    /// The reader has reached the end and reads from the tail.
    is_live: bool,
}

impl EventFollower {
    /// Starts after `seq`; `None` starts at the end.
    pub async fn start(app: Arc<App>, sandbox: SandboxId, filter: EventLogFilter, seq: Option<i64>) -> Result<Self> {
        // Subscribe before the read, so that no event is missed.
        let tail = app.hub.sandbox_tail(sandbox);
        let newest = tail.watch_newest();
        let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, sandbox).await?)).await?;
        let row = row.ok_or_else(|| Problem::not_found("sandbox"))?;
        tail.record_stored_seq(row.last_seq);
        let seq = seq.unwrap_or(row.last_seq).clamp(0, row.last_seq);
        Ok(Self { app, sandbox, session: row.session_id, filter, seq, tail, newest, is_live: false })
    }

    pub fn seq(&self) -> i64 {
        self.seq
    }

    /// The next step, without waiting for new events.
    pub async fn next_step(&mut self) -> Result<FollowStep> {
        self.newest.mark_unchanged();
        if let Some(lines) = self.tail.lines_after(self.seq, MAX_STEP_EVENTS)
            && !lines.is_empty()
        {
            self.is_live = true;
            return Ok(self.advance(lines));
        }
        if !self.is_live {
            return self.read_store().await;
        }
        if *self.newest.borrow() > self.seq {
            self.is_live = false;
            return Ok(FollowStep::Lagged { seq: self.seq });
        }
        Ok(FollowStep::CaughtUp)
    }

    async fn read_store(&mut self) -> Result<FollowStep> {
        let (sandbox, session, seq) = (self.sandbox, self.session, self.seq);
        let read = self.app.read(async move |tx| {
            let row = sandboxes::find_sandbox(tx, sandbox).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
            let all = EventLogFilter::default();
            let page =
                events::read_event_page(tx, (sandbox, session), &all, EventLogOrder::OldestFirst, seq, MAX_STEP_EVENTS)
                    .await?;
            Ok((row.first_seq, page.events))
        });
        let (first_seq, events) = read.await?;
        if first_seq > self.seq + 1 {
            self.seq = first_seq - 1;
            return Ok(FollowStep::Truncated { first_seq });
        }
        if events.is_empty() {
            self.is_live = true;
            return Ok(FollowStep::CaughtUp);
        }
        Ok(self.advance(events.into_iter().map(|event| Arc::new(EventLine::new(event))).collect()))
    }

    fn advance(&mut self, mut lines: Vec<Arc<EventLine>>) -> FollowStep {
        if let Some(last) = lines.last() {
            self.seq = last.event.seq;
        }
        lines.retain(|line| self.filter.matches(&line.event));
        FollowStep::Lines(lines)
    }

    /// Waits until there may be new events.
    pub async fn wait_for_news(&mut self) {
        if tokio::time::timeout(RECHECK_INTERVAL, self.newest.changed()).await.is_err() {
            self.recheck_store();
        }
    }

    /// Reads the store next: a wake-up may be lost, or another server may have written.
    pub fn recheck_store(&mut self) {
        self.is_live = false;
    }
}
