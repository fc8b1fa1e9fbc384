//! Stores the judge's reports, bad responses and costs.

use crate::app::Work;
use crate::app::views::to_dollars;
use crate::gateway::ModelAnswer;
use crate::problem::Result;
use atoll_api::events::{EventData, GuardianJudged};
use atoll_core::budget::day_number;
use atoll_core::event::EventSource;
use atoll_core::guardian::judge::JudgeReport;
use atoll_core::id::SandboxId;
use atoll_core::model::ModelTokens;
use atoll_store::{budgets, judgements, sandboxes};

/// A request to the judge: its usage, and the report if the response is one.
pub struct JudgeOutcome {
    pub model: String,
    pub tokens: ModelTokens,
    pub cost_micros: Option<i64>,
    pub report: Option<JudgeReport>,
}

impl JudgeOutcome {
    /// Validates an answer. A bad one is dropped and counted, but its cost remains.
    pub fn from_answer(model: String, answer: Result<ModelAnswer, String>) -> Self {
        let (tokens, cost_micros, report) = match answer {
            Ok(ModelAnswer { text, tokens, cost_micros }) => {
                let report = JudgeReport::parse(&text).map_err(|error| {
                    tracing::warn!(%error, "dropped a bad response of the judge");
                });
                (tokens, cost_micros, report.ok())
            }
            Err(error) => {
                tracing::warn!(error, "a request to the judge failed");
                (ModelTokens::default(), None, None)
            }
        };
        Self { model, tokens, cost_micros, report }
    }
}

/// Stores a request with its cost. The cost counts for the project, not for the sandbox.
pub async fn record_judgement(work: &mut Work<'_>, id: SandboxId, outcome: JudgeOutcome) -> Result<()> {
    let JudgeOutcome { model, tokens, cost_micros, report } = outcome;
    let cost = cost_micros.unwrap_or(0);
    let (_, mut sandbox) = work.lock_sandbox(id).await?;
    judgements::add_judgement(work.tx, id, (&tokens, cost), report.as_ref(), work.now).await?;
    if let Some(report) = report {
        let data = GuardianJudged { report, model, cost_usd: cost_micros.map(to_dollars) };
        let event = EventData::GuardianJudged(data).into_event(work.now).with_source(EventSource::Guardian, None);
        work.log(&mut sandbox, vec![event]).await?;
        sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    }
    // Last, to hold the lock of the project's row for a short time.
    if cost > 0 {
        budgets::add_cost(work.tx, sandbox.project_id, day_number(work.now), cost).await?;
    }
    Ok(())
}
