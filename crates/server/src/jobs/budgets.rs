//! Resumes agents paused by their project's budget after a raise or at the start of a new period.

use crate::app::limits;
use crate::problem::Result;
use crate::state::App;
use atoll_store::budgets;

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
