//! Jobs that run when a deadline passes.

use super::{JobOutcome, back_off};
use crate::app::targets::find_sandbox;
use crate::app::{lifecycle, saved_work, task_work};
use crate::problem::Result;
use crate::providers::Providers;
use crate::state::App;
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::{Error, ProviderId};
use atoll_core::sandbox::{Reason, SandboxState};
use atoll_core::task::TimeoutStep;
use atoll_store::jobs::Job;
use atoll_store::{jobs, sandboxes, tokens};

/// Applies `trigger` if the sandbox is still in the state `from`.
async fn apply_if_in(
    app: &App,
    job: &Job,
    from: SandboxState,
    trigger: Trigger,
    reason: Option<Reason>,
) -> Result<JobOutcome> {
    let id = job.sandbox_id;
    app.write(async move |work| {
        let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
        if sandbox.state == from {
            lifecycle::apply_trigger(work, &mut session, &mut sandbox, trigger, reason, None).await?;
        }
        Ok(JobOutcome::Finished)
    })
    .await
}

pub(crate) async fn fail_creation(app: &App, job: &Job) -> Result<JobOutcome> {
    let reason = Reason::new("create_timeout", "no worker reported in time");
    apply_if_in(app, job, SandboxState::Creating, Trigger::CreationFailed, Some(reason)).await
}

pub(crate) async fn fail_at_timeout(app: &App, job: &Job) -> Result<JobOutcome> {
    let is_running = find_sandbox(app, job.sandbox_id).await?.state == SandboxState::Running;
    if is_running && let Err(problem) = saved_work::save_and_record(app, job.sandbox_id).await {
        tracing::warn!(sandbox = %job.sandbox_id, detail = %problem.detail, "failed to save the work before a time-out");
    }
    let reason = Reason::new("timeout", "the sandbox reached its time limit");
    apply_if_in(app, job, SandboxState::Running, Trigger::WorkFailed, Some(reason)).await
}

/// Ends the wait for the worker's flush, and stops the processes of a failed sandbox.
pub(crate) async fn end_flush_grace(app: &App, providers: &Providers, job: &Job) -> Result<JobOutcome> {
    let id = job.sandbox_id;
    let row = app
        .write(async move |work| {
            let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
            if sandbox.state == SandboxState::Completing {
                lifecycle::finish_flush(work, &mut session, &mut sandbox).await?;
            }
            Ok(sandbox)
        })
        .await?;
    // A failed sandbox keeps only its files after the grace period.
    let provider = providers.get(row.provider);
    let runs_agents = provider.capabilities().runs_agents();
    if let (SandboxState::Failed, true, Some(name)) = (row.state, runs_agents, row.provider_id) {
        let stopped = provider.stop(&ProviderId(name)).await;
        if let Err(error) = stopped
            && error != Error::Gone
        {
            tracing::warn!(sandbox = %id, %error, "failed to stop a failed sandbox's processes; will retry");
            return Ok(JobOutcome::RetryAfter(back_off(job.attempts)));
        }
    }
    Ok(JobOutcome::Finished)
}

/// Closes an ended sandbox to its worker after the drain time.
pub(crate) async fn end_drain(app: &App, job: &Job) -> Result<JobOutcome> {
    let id = job.sandbox_id;
    app.write(async move |work| {
        let (_, mut sandbox) = work.lock_sandbox(id).await?;
        if sandbox.state.has_ended() {
            // The results stay pending: only the removal of the files loses them.
            sandbox.is_drained = true;
            sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
            tokens::delete_worker_token(work.tx, id).await?;
        }
        Ok(JobOutcome::Finished)
    })
    .await
}

/// Ends a continuous loop at its time limit, even during a run.
pub(crate) async fn end_continuous(app: &App, job: &Job) -> Result<JobOutcome> {
    let (id, own, claim) = (job.sandbox_id, job.id, job.claim);
    app.write(async move |work| {
        if jobs::finish_job(work.tx, own, claim).await? {
            crate::app::continuous::end_at_deadline(work, id).await?;
        }
        Ok(JobOutcome::Finished)
    })
    .await
}

/// Warns, interrupts or ends the agent of a task whose time limit is near or over.
pub(crate) async fn apply_task_timeout(app: &App, job: &Job, step: TimeoutStep) -> Result<JobOutcome> {
    let (id, own, claim) = (job.sandbox_id, job.id, job.claim);
    app.write(async move |work| {
        if jobs::finish_job(work.tx, own, claim).await? {
            task_work::apply_timeout(work, id, step).await?;
        }
        Ok(JobOutcome::Finished)
    })
    .await
}
