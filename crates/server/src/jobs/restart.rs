//! The restart job: takes the results out of a failed sandbox, then gives its session another one.

use super::{JobOutcome, back_off};
use crate::app::restarts::{self, HEALTH_SENDER, RestartStep};
use crate::app::results;
use crate::problem::{Code, Result};
use crate::state::App;
use atoll_store::jobs::{self, Job};
use std::time::Duration;

/// Poll interval while the results are taken out.
const RESULTS_POLL: Duration = Duration::from_secs(1);

pub(crate) async fn restart_session(app: &App, job: &Job) -> Result<JobOutcome> {
    let (id, job_id, claim, attempts) = (job.sandbox_id, job.id, job.claim, job.attempts);
    let done = app.write(async move |work| match restarts::next_step(work, id).await? {
        RestartStep::Nothing => Ok(JobOutcome::Finished),
        RestartStep::Wait => Ok(JobOutcome::RetryAfter(RESULTS_POLL.max(back_off(attempts) / 4))),
        RestartStep::TakeResults => {
            results::start_results_export(work, id, HEALTH_SENDER.to_owned()).await?;
            Ok(JobOutcome::RetryAfter(RESULTS_POLL))
        }
        RestartStep::Create => {
            // One transaction: the next sandbox exists exactly once.
            if jobs::finish_job(work.tx, job_id, claim).await? {
                Box::pin(restarts::create_successor(work, id)).await?;
            }
            Ok(JobOutcome::Deleted)
        }
    });
    match done.await {
        // The request itself is impossible now, such as with a secret that was removed.
        Err(problem) if !problem.is_server_error() && problem.code != Code::Conflict => {
            app.write(async move |work| restarts::escalate_refusal(work, id, &problem.detail).await).await?;
            Ok(JobOutcome::Finished)
        }
        done => done,
    }
}
