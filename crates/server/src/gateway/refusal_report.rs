//! Reports to a sandbox's log: refused requests, and prices that the gateway assumes.

use super::gateway_refusal::GatewayRefusal;
use super::sandbox_budget::{Exhausted, SandboxBudget};
use crate::app::{continuous, limits};
use crate::state::App;
use atoll_api::events::{EventData, ModelRefused, SandboxNotice};
use atoll_core::id::SandboxId;
use atoll_core::model::Price;
use atoll_store::sandboxes;
use std::sync::{Arc, PoisonError};

/// Logs a refusal that a person must act on as an event, throttled, and pauses the agent if its budget is exhausted.
pub fn report_refusal(app: &Arc<App>, sandbox: SandboxId, refusal: &GatewayRefusal) {
    let detail = refusal.message();
    tracing::debug!(%sandbox, detail, "refused a model request");
    let known = app.gateway.budgets.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox).cloned();
    let (Some(reason), Some(budget)) = (refusal.log_reason(), known) else { return };
    let stop = refusal.exhausted();
    let (news, stop) = (budget.count_refusal(reason, stop), stop.filter(|stop| budget.mark_exhausted(*stop)));
    if news.is_none() && stop.is_none() {
        return;
    }
    let refused = ModelRefused { reason: reason.to_owned(), detail, count: news.unwrap_or(1) };
    let (app, is_news, refusal) = (Arc::clone(app), news.is_some(), refusal.clone());
    tokio::spawn(async move {
        let logged = app.write(async move |work| {
            let (_, mut row) = work.lock_sandbox(sandbox).await?;
            if row.state.is_live() {
                if is_news {
                    let event = EventData::ModelRefused(refused).into_event(work.now);
                    work.log(&mut row, vec![event]).await?;
                }
                match (stop, &refusal) {
                    (Some(Exhausted::ProjectBudget(pause)), GatewayRefusal::ProjectBudget(short)) => {
                        limits::pause_at_project_budget(work, &mut row, &pause, short.spent, short.until).await?;
                    }
                    (Some(Exhausted::SandboxLimit | Exhausted::ProjectBudget(_)), _) => {
                        limits::pause_at_cost_limit(work, &mut row).await?
                    }
                    (Some(Exhausted::TaskLimit(_)) | None, _) => {}
                }
                sandboxes::update_sandbox(work.tx, &mut row).await?;
                if let Some(Exhausted::TaskLimit(limit)) = stop {
                    continuous::end_at_cost_limit(work, sandbox, limit).await?;
                }
            }
            Ok(())
        });
        if let Err(problem) = logged.await {
            tracing::warn!(%sandbox, detail = %problem.detail, "failed to log a refused model request");
            // The next refusal tries to log it again.
            budget.clear_exhausted();
        }
    });
}

/// Logs that the gateway charges a model at the highest known price of its upstream.
pub fn report_assumed_price(app: &Arc<App>, budget: &Arc<SandboxBudget>, model: &str, upstream: &str, price: Price) {
    let model = model.chars().take(200).collect::<String>();
    let text = format!(
        "the price of {model} is unknown: under the cost limit, Atoll charges the highest known price of {upstream} \
         (${} per million input tokens, ${} per million output tokens); add the model with its price to `models` in the \
         configuration of the Atoll server",
        price.input, price.output
    );
    let (app, sandbox) = (Arc::clone(app), budget.sandbox);
    tokio::spawn(async move {
        let logged = app.write(async move |work| {
            let (_, mut row) = work.lock_sandbox(sandbox).await?;
            if row.state.is_live() {
                let notice = EventData::SandboxNotice(SandboxNotice { text, routine: false }).into_event(work.now);
                work.log(&mut row, vec![notice]).await?;
                sandboxes::update_sandbox(work.tx, &mut row).await?;
            }
            Ok(())
        });
        if let Err(problem) = logged.await {
            tracing::warn!(%sandbox, detail = %problem.detail, "failed to log an assumed price");
        }
    });
}
