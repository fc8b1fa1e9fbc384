//! Reads a sandbox's log from a place and goes on live, with no gap and no repeat.

use crate::hub::{Line, Tail};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::id::{SandboxId, SessionId};
use atoll_store::events::{self, Filter, Order};
use atoll_store::sandboxes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How many events one step gives at most.
pub const STEP: usize = 256;
/// A wake-up that got lost costs no more than this.
pub const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// What one step of following gives.
#[derive(Debug)]
pub enum Step {
    /// In order, right after what came before (less what the filter leaves out).
    Lines(Vec<Arc<Line>>),
    /// What was asked for is no longer kept; it goes on from here.
    Truncated { first_seq: i64 },
    /// The reader fell behind what is at hand and reads on from the store.
    Lagged { seq: i64 },
    /// There is nothing further now.
    CaughtUp,
}

pub struct Follower {
    app: Arc<App>,
    sandbox: SandboxId,
    session: SessionId,
    filter: Filter,
    /// The last seq that the reader has, or was told that it can't have.
    seq: i64,
    tail: Arc<Tail>,
    newest: watch::Receiver<i64>,
    /// Has reached the end: until told otherwise, what comes next is found at hand.
    live: bool,
}

impl Follower {
    /// From after `seq`; `None` is from now.
    pub async fn start(app: Arc<App>, sandbox: SandboxId, filter: Filter, seq: Option<i64>) -> Result<Self> {
        // The tail first: what is stored from here on is heard of.
        let tail = app.hub.tail(sandbox);
        let newest = tail.watch();
        let row = app.read(move |tx| Box::pin(async move { Ok(sandboxes::get(tx, sandbox).await?) })).await?;
        let row = row.ok_or_else(|| Problem::not_found("sandbox"))?;
        tail.reached(row.last_seq);
        let seq = seq.unwrap_or(row.last_seq).clamp(0, row.last_seq);
        Ok(Self { app, sandbox, session: row.session_id, filter, seq, tail, newest, live: false })
    }

    pub fn seq(&self) -> i64 {
        self.seq
    }

    /// The next step, without waiting for news.
    pub async fn step(&mut self) -> Result<Step> {
        self.newest.mark_unchanged();
        if let Some(lines) = self.tail.after(self.seq, STEP)
            && !lines.is_empty()
        {
            self.live = true;
            return Ok(self.give(lines));
        }
        if !self.live {
            return self.read_store().await;
        }
        if *self.newest.borrow() > self.seq {
            self.live = false;
            return Ok(Step::Lagged { seq: self.seq });
        }
        Ok(Step::CaughtUp)
    }

    async fn read_store(&mut self) -> Result<Step> {
        let (sandbox, session, seq) = (self.sandbox, self.session, self.seq);
        let read = self.app.read(move |tx| {
            Box::pin(async move {
                let row = sandboxes::get(tx, sandbox).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
                let all = Filter::default();
                let page = events::page(tx, (sandbox, session), &all, Order::OldestFirst, seq, STEP).await?;
                Ok((row.first_seq, page.events))
            })
        });
        let (first_seq, events) = read.await?;
        if first_seq > self.seq + 1 {
            self.seq = first_seq - 1;
            return Ok(Step::Truncated { first_seq });
        }
        if events.is_empty() {
            self.live = true;
            return Ok(Step::CaughtUp);
        }
        Ok(self.give(events.into_iter().map(|event| Arc::new(Line::new(event))).collect()))
    }

    fn give(&mut self, mut lines: Vec<Arc<Line>>) -> Step {
        if let Some(last) = lines.last() {
            self.seq = last.event.seq;
        }
        lines.retain(|line| self.filter.matches(&line.event));
        Step::Lines(lines)
    }

    /// Until there may be something new.
    pub async fn wait(&mut self) {
        if tokio::time::timeout(LOOK_AGAIN, self.newest.changed()).await.is_err() {
            self.look_again();
        }
    }

    /// A wake-up may have been lost, or another server may have written: ask the store next.
    pub fn look_again(&mut self) {
        self.live = false;
    }
}
