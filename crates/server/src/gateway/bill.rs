//! A request's bill: held before it is sent, settled when it is over, however it ends.

use super::account::Account;
use super::scan::Scanner;
use crate::app::limits;
use crate::state::App;
use atoll_core::model::{Price, Tokens};
use atoll_store::{model_usage, sandboxes, sessions};
use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

/// Bytes of a stream for one token of it, where the upstream does not say: most of them are JSON around the text.
const STREAMED: u64 = 32;
/// And of a plain answer.
const PLAIN: u64 = 4;
/// Between two attempts to write a bill down, doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

enum Phase {
    /// Nothing is owed.
    Open,
    /// Whoever goes away now has used the input nevertheless.
    Sent,
    Answered {
        scanner: Scanner,
        is_stream: bool,
        bytes: u64,
        is_whole: bool,
    },
}

pub struct Bill {
    app: Weak<App>,
    account: Arc<Account>,
    upstream: String,
    model: String,
    price: Option<Price>,
    held: i64,
    /// What the input is thought to be.
    input: u64,
    phase: Phase,
    open: Arc<()>,
}

/// Who is to pay for what.
pub struct Item {
    pub upstream: String,
    pub model: String,
    pub price: Option<Price>,
    pub input: u64,
    pub held: i64,
}

impl Bill {
    /// What it holds is reserved already.
    pub fn new(app: &Arc<App>, account: Arc<Account>, item: Item) -> Self {
        let Item { upstream, model, price, input, held } = item;
        let (app, open) = (Arc::downgrade(app), Arc::clone(&app.gateway.open));
        Self { app, account, upstream, model, price, held, input, phase: Phase::Open, open }
    }

    pub fn sent(&mut self) {
        self.phase = Phase::Sent;
    }

    /// The upstream did nothing for it.
    pub fn free(&mut self) {
        self.phase = Phase::Open;
    }

    pub fn answered(&mut self, scanner: Scanner, is_stream: bool) {
        self.phase = Phase::Answered { scanner, is_stream, bytes: 0, is_whole: false };
    }

    fn scan(&mut self, data: &[u8]) {
        if let Phase::Answered { scanner, bytes, .. } = &mut self.phase {
            scanner.feed(data);
            *bytes += data.len() as u64;
        }
    }

    fn whole(&mut self) {
        if let Phase::Answered { is_whole, .. } = &mut self.phase {
            *is_whole = true;
        }
    }

    fn used(&self) -> Option<Tokens> {
        match &self.phase {
            Phase::Open => None,
            Phase::Sent => Some(Tokens { input: self.input, ..Tokens::default() }),
            Phase::Answered { scanner, is_stream, bytes, is_whole } => {
                let seen = bytes / if *is_stream { STREAMED } else { PLAIN };
                Some(match scanner.tokens() {
                    Some(said) if *is_whole => said,
                    // It was cut off before its end, where the output is told.
                    Some(said) => Tokens { output: said.output.max(seen), ..said },
                    None => Tokens { input: self.input, output: seen, ..Tokens::default() },
                })
            }
        }
    }
}

impl Drop for Bill {
    fn drop(&mut self) {
        let used = self.used();
        let cost = used.map_or(0, |used| self.price.map_or(0, |price| price.cost(&used)));
        let Some(app) = self.app.upgrade() else { return };
        let at = app.clock.now();
        self.account.settle(self.held, cost, at);
        let Some(used) = used else { return };
        let (account, upstream, model) =
            (Arc::clone(&self.account), std::mem::take(&mut self.upstream), std::mem::take(&mut self.model));
        let open = Arc::clone(&self.open);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let (sandbox, mut pause) = (account.sandbox, FIRST_PAUSE);
            loop {
                let (upstream, model) = (upstream.clone(), model.clone());
                let shared = limits::Shared { micros: cost, at, budget: account.purse.budget() };
                let written = app.write(move |work| {
                    Box::pin(async move {
                        let (mut session, mut row) = work.locked(sandbox).await?;
                        let before = row.cost_model_micros;
                        row.cost_model_micros = before.saturating_add(cost);
                        sandboxes::update(work.tx, &mut row).await?;
                        session.cost_micros = session.cost_micros.saturating_add(cost);
                        sessions::update(work.tx, &session).await?;
                        limits::costs(work, &mut session, &mut row, before).await?;
                        model_usage::add(work.tx, sandbox, &upstream, &model, &used, cost).await?;
                        // Last, since others of the project wait for its row.
                        limits::project_costs(work, &mut session, &mut row, &shared).await
                    })
                });
                match written.await {
                    Ok(()) => break,
                    // A database may be away for a moment; what was used is not forgotten for that.
                    Err(problem) if problem.code.status().is_server_error() && pause <= LONGEST_PAUSE => {
                        tokio::time::sleep(pause).await;
                        pause *= 2;
                    }
                    Err(problem) => {
                        let detail = problem.detail;
                        tracing::warn!(%sandbox, detail, "what a model was used for could not be written down");
                        break;
                    }
                }
            }
            // Until here: whoever reads the row from now on reads this in it.
            drop((account, open));
        });
    }
}

/// An answer on its way, counted while it passes.
pub struct Metered {
    inner: Incoming,
    bill: Bill,
}

impl Metered {
    pub const fn new(inner: Incoming, bill: Bill) -> Self {
        Self { inner, bill }
    }
}

impl Body for Metered {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.bill.scan(data);
                }
                // With a known length nobody asks for what comes after the last of it.
                if self.inner.is_end_stream() {
                    self.bill.whole();
                }
            }
            Poll::Ready(None) => self.bill.whole(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
