//! The charge of a request: reserved before it is sent, settled when it is dropped.

use super::sandbox_budget::SandboxBudget;
use super::usage_scanner::UsageScanner;
use crate::app::limits;
use crate::state::App;
use atoll_core::model::{ModelTokens, Price};
use atoll_store::{model_usage, sandboxes, sessions};
use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

/// Estimated bytes per token of a stream without usage data; most bytes are JSON around the text.
const STREAM_BYTES_PER_TOKEN: u64 = 32;
/// Estimated bytes per token of a plain response.
const JSON_BYTES_PER_TOKEN: u64 = 4;
/// First delay between attempts to store a charge; it doubles each time.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

enum ChargePhase {
    /// No cost.
    Unsent,
    /// The input is charged even if the client disconnects.
    Sent,
    Answered {
        scanner: UsageScanner,
        is_stream: bool,
        bytes: u64,
        is_complete: bool,
    },
}

pub struct Charge {
    app: Weak<App>,
    budget: Arc<SandboxBudget>,
    upstream: String,
    model: String,
    price: Option<Price>,
    reserved: i64,
    /// In tokens.
    estimated_input: u64,
    phase: ChargePhase,
    open_charges: Arc<()>,
}

/// The model, price and reserved cost of a request.
pub struct ChargeItem {
    pub upstream: String,
    pub model: String,
    pub price: Option<Price>,
    pub input: u64,
    pub reserved: i64,
}

impl Charge {
    /// Takes over a cost that is reserved already.
    pub fn new(app: &Arc<App>, budget: Arc<SandboxBudget>, item: ChargeItem) -> Self {
        let ChargeItem { upstream, model, price, input: estimated_input, reserved } = item;
        let (app, open_charges) = (Arc::downgrade(app), Arc::clone(&app.gateway.open_charges));
        Self {
            app,
            budget,
            upstream,
            model,
            price,
            reserved,
            estimated_input,
            phase: ChargePhase::Unsent,
            open_charges,
        }
    }

    pub fn mark_sent(&mut self) {
        self.phase = ChargePhase::Sent;
    }

    /// The upstream did not process the request.
    pub fn mark_free(&mut self) {
        self.phase = ChargePhase::Unsent;
    }

    pub fn mark_answered(&mut self, scanner: UsageScanner, is_stream: bool) {
        self.phase = ChargePhase::Answered { scanner, is_stream, bytes: 0, is_complete: false };
    }

    fn scan_usage(&mut self, data: &[u8]) {
        if let ChargePhase::Answered { scanner, bytes, .. } = &mut self.phase {
            scanner.feed(data);
            *bytes += data.len() as u64;
        }
    }

    fn mark_complete(&mut self) {
        if let ChargePhase::Answered { is_complete: is_whole, .. } = &mut self.phase {
            *is_whole = true;
        }
    }

    fn used_tokens(&self) -> Option<ModelTokens> {
        match &self.phase {
            ChargePhase::Unsent => None,
            ChargePhase::Sent => Some(ModelTokens { input: self.estimated_input, ..ModelTokens::default() }),
            ChargePhase::Answered { scanner, is_stream, bytes, is_complete: is_whole } => {
                let estimated_output = bytes / if *is_stream { STREAM_BYTES_PER_TOKEN } else { JSON_BYTES_PER_TOKEN };
                Some(match scanner.tokens() {
                    Some(usage) if *is_whole => usage,
                    // The response was cut off before its end, where the upstream reports the output.
                    Some(usage) => ModelTokens { output: usage.output.max(estimated_output), ..usage },
                    None => {
                        ModelTokens { input: self.estimated_input, output: estimated_output, ..ModelTokens::default() }
                    }
                })
            }
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let used = self.used_tokens();
        let cost = used.map_or(0, |used| self.price.map_or(0, |price| price.cost_micros(&used)));
        let Some(app) = self.app.upgrade() else { return };
        let at = app.clock.now();
        self.budget.settle(self.reserved, cost, at);
        let Some(used) = used else { return };
        let (budget, upstream, model) =
            (Arc::clone(&self.budget), std::mem::take(&mut self.upstream), std::mem::take(&mut self.model));
        let open = Arc::clone(&self.open_charges);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let (sandbox, mut pause) = (budget.sandbox, FIRST_RETRY_DELAY);
            loop {
                let (upstream, model) = (upstream.clone(), model.clone());
                let shared = limits::ProjectCharge { micros: cost, at, budget: budget.project.budget() };
                let written = app.write(async move |work| {
                    let (mut session, mut row) = work.lock_sandbox(sandbox).await?;
                    let before = row.cost_model_micros;
                    row.cost_model_micros = before.saturating_add(cost);
                    sandboxes::update_sandbox(work.tx, &mut row).await?;
                    session.cost_micros = session.cost_micros.saturating_add(cost);
                    sessions::update_session(work.tx, &session).await?;
                    limits::warn_at_cost(work, &mut session, &mut row, before).await?;
                    model_usage::add_usage(work.tx, sandbox, &upstream, &model, &used, cost).await?;
                    // Last, to hold the lock of the project's row for a short time.
                    limits::charge_project(work, &mut session, &mut row, &shared).await
                });
                match written.await {
                    Ok(()) => break,
                    // Retry while the database is unavailable.
                    Err(problem) if problem.is_server_error() && pause <= MAX_RETRY_DELAY => {
                        tokio::time::sleep(pause).await;
                        pause *= 2;
                    }
                    Err(problem) => {
                        let detail = problem.detail;
                        tracing::warn!(%sandbox, detail, "failed to store the usage of a model");
                        break;
                    }
                }
            }
            // The stored row includes the charge from here on.
            drop((budget, open));
        });
    }
}

/// A response body that is metered while it passes.
pub struct MeteredBody {
    inner: Incoming,
    charge: Charge,
}

impl MeteredBody {
    pub const fn new(inner: Incoming, charge: Charge) -> Self {
        Self { inner, charge }
    }
}

impl Body for MeteredBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.charge.scan_usage(data);
                }
                // With a known length, hyper does not poll after the last frame.
                if self.inner.is_end_stream() {
                    self.charge.mark_complete();
                }
            }
            Poll::Ready(None) => self.charge.mark_complete(),
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
