//! Agents that their project's budget holds back go on when it was raised, and when a new day or month has begun.

use crate::app::limits;
use crate::problem::Result;
use crate::state::App;
use atoll_store::budgets;

pub(crate) async fn look(app: &App) -> Result<()> {
    let waiting = app.read(|tx| Box::pin(async move { Ok(budgets::waiting(tx).await?) })).await?;
    let now = app.clock.now();
    // What is not held any more is only forgotten.
    let over = waiting.into_iter().filter(|one| !one.is_held || one.held.is_over(one.budget.as_ref(), now));
    for (sandbox, held) in over.map(|one| (one.sandbox, one.held)) {
        let told = app.write(move |work| Box::pin(async move { limits::project_has_more(work, sandbox, &held).await }));
        if let Err(problem) = told.await {
            tracing::warn!(%sandbox, detail = %problem.detail, "an agent can't go on yet, though its project has more to spend; trying again");
        }
    }
    Ok(())
}
