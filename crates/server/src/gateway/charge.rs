//! The charge of a request: reserved before it is sent, settled when it is dropped.

use super::sandbox_budget::SandboxBudget;
use super::usage_report::FinishedRequest;
use super::usage_scanner::UsageScanner;
use crate::app::views::to_dollars;
use crate::app::{Work, limits};
use crate::metrics::{MODEL_COST, MODEL_TOKENS, PROJECT_COST, project_label};
use crate::problem::Result;
use crate::state::App;
use atoll_api::events::{EventData, ModelUsageReport};
use atoll_core::model::{ModelTokens, Price};
use atoll_store::model_usage::{self, RequestUsage, UsageScope, UsageTotal};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// Estimated bytes per token of a stream without usage data; most bytes are JSON around the text.
const STREAM_BYTES_PER_TOKEN: u64 = 32;
/// Estimated bytes per token of a plain response.
const JSON_BYTES_PER_TOKEN: u64 = 4;
/// First delay between attempts to store a charge; it doubles each time.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Maximum time to wait for the rest of a response whose client is gone, under a cost limit.
pub const LIMITED_REST_TIMEOUT: Duration = Duration::from_secs(60);
/// The same without a cost limit.
const REST_TIMEOUT: Duration = Duration::from_secs(2);

enum ChargePhase {
    /// No cost.
    Unsent,
    /// The upstream may have processed the request.
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
    pub budget: Arc<SandboxBudget>,
    upstream: String,
    model: String,
    context: Option<u64>,
    pricing: RequestPricing,
    phase: ChargePhase,
    open_charges: Arc<()>,
}

/// The model, price and reserved cost of a request.
pub struct ChargeItem {
    pub upstream: String,
    pub model: String,
    /// Size of the model's context window.
    pub context: Option<u64>,
    pub pricing: RequestPricing,
}

/// The price of a request, and what was reserved for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestPricing {
    pub price: Option<Price>,
    /// The price is the highest one of the upstream, because the model's own is unknown.
    pub is_assumed: bool,
    /// A cost limit applies: a request whose usage stays unknown costs what was reserved.
    pub is_limited: bool,
    /// In millionths of a dollar.
    pub reserved: i64,
    /// In tokens.
    pub estimated_input: u64,
}

impl RequestPricing {
    /// Returns the usage and cost of a request that was sent.
    ///
    /// `usage` is what the response reported, `estimated_output` follows from the size of the response, and
    /// `is_complete` is true if the response ended.
    fn settle(&self, usage: Option<ModelTokens>, estimated_output: u64, is_complete: bool) -> RequestUsage {
        let tokens = match usage {
            Some(usage) if is_complete => usage,
            // The response was cut off before its end, where the upstream reports the output.
            Some(usage) => ModelTokens { output: usage.output.max(estimated_output), ..usage },
            None => ModelTokens { input: self.estimated_input, output: estimated_output, ..ModelTokens::default() },
        };
        let is_reported = usage.is_some() && is_complete;
        let Some(price) = self.price else {
            return RequestUsage { tokens, is_unpriced: true, ..RequestUsage::default() };
        };
        let cost = price.cost_micros(&tokens);
        let cost_micros = if self.is_limited && !is_reported { cost.max(self.reserved) } else { cost };
        RequestUsage { tokens, cost_micros, is_estimated: self.is_assumed || !is_reported, is_unpriced: false }
    }
}

impl Charge {
    /// Takes over a cost that is reserved already.
    pub fn new(app: &Arc<App>, budget: Arc<SandboxBudget>, item: ChargeItem) -> Self {
        let ChargeItem { upstream, model, context, pricing } = item;
        let (app, open_charges) = (Arc::downgrade(app), Arc::clone(&app.gateway.open_charges));
        Self { app, budget, upstream, model, context, pricing, phase: ChargePhase::Unsent, open_charges }
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

    pub fn scan_usage(&mut self, data: &[u8]) {
        if let ChargePhase::Answered { scanner, bytes, .. } = &mut self.phase {
            scanner.feed(data);
            *bytes += data.len() as u64;
        }
    }

    pub fn mark_complete(&mut self) {
        if let ChargePhase::Answered { is_complete, .. } = &mut self.phase {
            *is_complete = true;
        }
    }

    /// Time to read the rest of the response after its client is gone, because its end decides the cost.
    ///
    /// Without a cost limit, an upstream that may still generate text is left soon. The short time suffices for the end
    /// of a stream whose client left after the last event, as Codex does.
    pub fn time_for_the_rest(&self) -> Option<Duration> {
        match &self.phase {
            ChargePhase::Answered { is_complete: false, .. } if self.pricing.is_limited => Some(LIMITED_REST_TIMEOUT),
            ChargePhase::Answered { is_complete: false, scanner, .. } => scanner.tokens().map(|_| REST_TIMEOUT),
            ChargePhase::Answered { is_complete: true, .. } | ChargePhase::Unsent | ChargePhase::Sent => None,
        }
    }

    /// A signal that changes when the server stops.
    pub fn stop_signal(&self) -> Option<watch::Receiver<bool>> {
        Some(self.app.upgrade()?.gateway.stop_signal())
    }

    fn settle(&self) -> Option<RequestUsage> {
        match &self.phase {
            ChargePhase::Unsent => None,
            ChargePhase::Sent => Some(self.pricing.settle(None, 0, false)),
            ChargePhase::Answered { scanner, is_stream, bytes, is_complete } => {
                let estimated_output = bytes / if *is_stream { STREAM_BYTES_PER_TOKEN } else { JSON_BYTES_PER_TOKEN };
                Some(self.pricing.settle(scanner.tokens(), estimated_output, *is_complete))
            }
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let used = self.settle();
        let cost = used.map_or(0, |used| used.cost_micros);
        let Some(app) = self.app.upgrade() else { return };
        let at = app.clock.now();
        self.budget.settle(self.pricing.reserved, cost, at);
        let Some(used) = used else { return };
        count_usage(app.gateway.model_label(&self.model), project_label(self.budget.project.project), &used);
        let (budget, upstream, model) =
            (Arc::clone(&self.budget), std::mem::take(&mut self.upstream), std::mem::take(&mut self.model));
        let open = Arc::clone(&self.open_charges);
        let tokens = used.tokens;
        let prompt_tokens = tokens.input.saturating_add(tokens.cache_read).saturating_add(tokens.cache_write);
        let request = FinishedRequest { at, cost_micros: cost, prompt_tokens, context: self.context };
        let reports_usage = self.budget.is_usage_report_due(request);
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
                    model_usage::add_usage(work.tx, sandbox, &upstream, &model, &used).await?;
                    if reports_usage {
                        log_usage(work, &mut row, model, request).await?;
                    }
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

/// Adds a request's usage to the metrics.
fn count_usage(model: String, project: String, used: &RequestUsage) {
    let cost = u64::try_from(used.cost_micros).unwrap_or(0);
    metrics::counter!(MODEL_COST, "model" => model.clone()).increment(cost);
    metrics::counter!(PROJECT_COST, "project" => project).increment(cost);
    let ModelTokens { input, output, cache_read, cache_write } = used.tokens;
    for (kind, tokens) in
        [("input", input), ("output", output), ("cache_read", cache_read), ("cache_write", cache_write)]
    {
        metrics::counter!(MODEL_TOKENS, "model" => model.clone(), "kind" => kind).increment(tokens);
    }
}

/// Logs what a sandbox has used of models until now.
async fn log_usage(work: &mut Work<'_>, row: &mut SandboxRow, model: String, request: FinishedRequest) -> Result<()> {
    let UsageTotal { requests, tokens } = model_usage::sum_usage(work.tx, UsageScope::Sandbox(row.id)).await?;
    let data = ModelUsageReport {
        requests: u64::try_from(requests).unwrap_or(0),
        tokens: tokens.input.saturating_add(tokens.output).saturating_add(tokens.cache_write),
        cost_usd: to_dollars(row.cost_model_micros),
        model,
        prompt_tokens: request.prompt_tokens,
        context: request.context,
    };
    work.log(row, vec![EventData::ModelUsageReport(data).into_event(work.now)]).await?;
    Ok(sandboxes::update_sandbox(work.tx, row).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICE: Price = Price { input: 1.0, output: 10.0, cache_read: None, cache_write: None, long_prompt: None };
    const LIMITED: RequestPricing = RequestPricing {
        price: Some(PRICE),
        is_assumed: false,
        is_limited: true,
        reserved: 10_000,
        estimated_input: 100,
    };
    const REPORTED: Option<ModelTokens> = Some(ModelTokens { input: 50, output: 2, cache_read: 0, cache_write: 0 });

    fn cost_of(pricing: RequestPricing, usage: Option<ModelTokens>, is_complete: bool) -> (i64, bool) {
        let used = pricing.settle(usage, 7, is_complete);
        assert!(!used.is_unpriced);
        (used.cost_micros, used.is_estimated)
    }

    #[test]
    fn under_a_limit_unknown_usage_costs_what_was_reserved() {
        assert_eq!(cost_of(LIMITED, REPORTED, true), (70, false));
        assert_eq!(cost_of(LIMITED, None, true), (10_000, true), "a stream without usage");
        assert_eq!(cost_of(LIMITED, REPORTED, false), (10_000, true), "dropped early");
        assert_eq!(cost_of(LIMITED, None, false), (10_000, true));
        let small = RequestPricing { reserved: 5, ..LIMITED };
        assert_eq!(cost_of(small, None, true), (170, true), "more than was reserved");
        let free = RequestPricing { is_limited: false, ..LIMITED };
        assert_eq!((cost_of(free, None, true), cost_of(free, REPORTED, false)), ((170, true), (120, true)));
    }

    #[test]
    fn a_cost_without_a_price_is_unknown() {
        let unpriced = RequestPricing { price: None, is_limited: false, reserved: 0, ..LIMITED };
        let used = unpriced.settle(REPORTED, 7, true);
        assert_eq!((used.tokens.input, used.cost_micros, used.is_unpriced, used.is_estimated), (50, 0, true, false));
        assert_eq!(cost_of(RequestPricing { is_assumed: true, ..LIMITED }, REPORTED, true), (70, true));
    }
}
