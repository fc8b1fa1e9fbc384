//! The validate job: runs the checks of a continuous loop, or continues the loop after a failed run.
//!
//! One transaction stores the verdict and its consequences. A server that is killed before that runs the checks again.

use super::checks;
use super::sandbox_command::CommandTarget;
use super::{JobOutcome, back_off};
use crate::app::continuous;
use crate::problem::Result;
use crate::state::App;
use atoll_core::continuous::LoopPhase;
use atoll_core::continuous::check::CheckResult;
use atoll_core::provider::ProviderId;
use atoll_core::sandbox::SandboxState;
use atoll_store::jobs::{self, Job};
use atoll_store::sandboxes::{self, SandboxRow};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;

/// Attempts before a transient error makes the checks unknown.
const MAX_ATTEMPTS: i64 = 5;
/// Delay before a paused sandbox is checked again.
const PAUSED_RECHECK_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) async fn validate_work(app: &Arc<App>, job: &Job) -> Result<JobOutcome> {
    let (id, own, claim) = (job.sandbox_id, job.id, job.claim);
    let Some((row, phase, round)) = loop_state(app, job).await? else { return Ok(JobOutcome::Finished) };
    match phase {
        LoopPhase::Resting => {
            let rested = app.write(async move |work| {
                // The next step can schedule a job of the same kind, so finish this one first.
                if jobs::finish_job(work.tx, own, claim).await? {
                    continuous::continue_after_rest(work, id).await?;
                }
                Ok(())
            });
            rested.await?;
            return Ok(JobOutcome::Finished);
        }
        LoopPhase::Validating => {}
        LoopPhase::Working | LoopPhase::Passed | LoopPhase::Stopped => return Ok(JobOutcome::Finished),
    }
    if row.status.is_paused() {
        return Ok(JobOutcome::RetryAfter(PAUSED_RECHECK_INTERVAL));
    }
    let sandbox = ProviderId(row.provider_id.clone().unwrap_or_default());
    let target = CommandTarget { provider: app.providers()?.get(row.provider), sandbox };
    let mut states = app.hub.subscribe_states();
    let running_checks = checks::run_checks(app, &target, &row);
    tokio::pin!(running_checks);
    let results = loop {
        tokio::select! {
            results = &mut running_checks => break results,
            news = states.recv() => {
                match news {
                    Ok((about, _)) if about != id => continue,
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return Ok(JobOutcome::Finished),
                }
                // Returning drops `running_checks`, which kills the current command.
                let now = loop_state(app, job).await?;
                if !now.is_some_and(|(_, phase, now)| phase == LoopPhase::Validating && now == round) {
                    return Ok(JobOutcome::Finished);
                }
            }
        }
    };
    let results: Vec<CheckResult> = match results {
        Ok(results) => results,
        Err(detail) if job.attempts < MAX_ATTEMPTS => {
            tracing::warn!(sandbox = %id, detail, "failed to run the checks; will retry");
            return Ok(JobOutcome::RetryAfter(back_off(job.attempts)));
        }
        Err(detail) => checks::unknown_checks(&target, &row, &detail),
    };
    let stored = app.write(async move |work| {
        // Only the newest claim's results count.
        if jobs::finish_job(work.tx, own, claim).await? {
            continuous::record_checks(work, id, round, results).await?;
        }
        Ok(())
    });
    stored.await?;
    Ok(JobOutcome::Finished)
}

/// The sandbox with its loop's phase and round, if it still runs.
async fn loop_state(app: &App, job: &Job) -> Result<Option<(SandboxRow, LoopPhase, u32)>> {
    let id = job.sandbox_id;
    app.read(async move |tx| {
        let row = sandboxes::find_sandbox(tx, id).await?.filter(|row| row.state == SandboxState::Running);
        let record = atoll_store::continuous::find_continuous_record(tx, id).await?;
        Ok(row.zip(record).map(|(row, record)| (row, record.progress.phase, record.progress.round)))
    })
    .await
}
