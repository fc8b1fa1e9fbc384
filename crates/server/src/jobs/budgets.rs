//! Pauses the agents of projects without budget, the longest idle first, and resumes them after a raise or at the start
//! of a new period.
//!
//! A working agent is paused by the gateway, when its next request would exceed the budget.

use crate::app::limits;
use crate::problem::Result;
use crate::state::App;
use atoll_core::budget::BudgetPause;
use atoll_core::sandbox::Activity;
use atoll_store::budgets::{self, BudgetedProject};
use atoll_store::sandboxes;

pub(crate) async fn resume_within_budget(app: &App) -> Result<()> {
    let waiting = app.read(async move |tx| Ok(budgets::list_paused_agents(tx).await?)).await?;
    let now = app.clock.now();
    // A sandbox that is no longer paused only loses its entry.
    let paused =
        waiting.into_iter().filter(|one| !one.is_paused || one.budget_pause.may_resume(one.budget.as_ref(), now));
    for (sandbox, pause) in paused.map(|one| (one.sandbox, one.budget_pause)) {
        let resuming = app.write(async move |work| limits::resume_after_budget(work, sandbox, &pause).await);
        if let Err(problem) = resuming.await {
            tracing::warn!(%sandbox, detail = %problem.detail, "failed to resume an agent whose project has budget again; will retry");
        }
    }
    Ok(())
}

pub(crate) async fn pause_over_budget(app: &App) -> Result<()> {
    let now = app.clock.now();
    for BudgetedProject { id: project, budget } in
        app.read(async move |tx| Ok(budgets::list_budgeted_projects(tx).await?)).await?
    {
        let period = budget.per.period_at(now);
        let idle = app.read(async move |tx| {
            let spent = budgets::sum_costs(tx, project, &period).await?;
            let is_over = spent >= budget.limit_micros();
            Ok((spent, if is_over { budgets::list_idle_sandboxes(tx, project).await? } else { Vec::new() }))
        });
        let (spent, idle) = idle.await?;
        for sandbox in idle {
            let pause = BudgetPause::from_budget(&budget, now);
            app.write(async move |work| {
                let (_, mut row) = work.lock_sandbox(sandbox).await?;
                if row.status.activity() == Activity::WaitingMessage {
                    limits::pause_at_project_budget(work, &mut row, &pause, spent, period.ends_at()).await?;
                    sandboxes::update_sandbox(work.tx, &mut row).await?;
                }
                Ok(())
            })
            .await?;
        }
    }
    Ok(())
}
