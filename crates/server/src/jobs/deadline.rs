//! What happens when time is over.

use super::{Done, back_off};
use crate::app::lifecycle;
use crate::problem::Result;
use crate::providers::Providers;
use crate::state::App;
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::{Error, ProviderId, StopMode};
use atoll_core::sandbox::{Reason, Results, SandboxState};
use atoll_store::jobs::Job;
use atoll_store::{jobs, sandboxes, tokens};

/// Applies `trigger` if the sandbox is still in `from`.
async fn if_still(app: &App, job: &Job, from: SandboxState, trigger: Trigger, reason: Option<Reason>) -> Result<Done> {
    let id = job.sandbox_id;
    app.write(move |work| {
        Box::pin(async move {
            let (mut session, mut sandbox) = work.locked(id).await?;
            if sandbox.state == from {
                lifecycle::apply(work, &mut session, &mut sandbox, trigger, reason, None).await?;
            }
            Ok(Done::Finished)
        })
    })
    .await
}

pub(crate) async fn create_timeout(app: &App, job: &Job) -> Result<Done> {
    let reason = Reason::new("create_timeout", "no worker reported in time");
    if_still(app, job, SandboxState::Creating, Trigger::CreationFailed, Some(reason)).await
}

pub(crate) async fn timeout(app: &App, job: &Job) -> Result<Done> {
    let reason = Reason::new("timeout", "its time ran out");
    if_still(app, job, SandboxState::Running, Trigger::WorkFailed, Some(reason)).await
}

/// The worker did not say that it is flushed: what it has sent is what there is.
pub(crate) async fn flush_grace(app: &App, providers: &Providers, job: &Job) -> Result<Done> {
    let id = job.sandbox_id;
    let row = app
        .write(move |work| {
            Box::pin(async move {
                let (mut session, mut sandbox) = work.locked(id).await?;
                if sandbox.state == SandboxState::Completing {
                    lifecycle::flushed(work, &mut session, &mut sandbox).await?;
                }
                Ok(sandbox)
            })
        })
        .await?;
    // A failed one that is still there has had its time to speak, too: only its files are of use now.
    if let (SandboxState::Failed, true, Some(name)) = (row.state, row.provider.is_on_this_machine(), row.provider_id) {
        let stopped = providers.get(row.provider).stop(&ProviderId(name), StopMode::Force).await;
        if let Err(error) = stopped
            && error != Error::Gone
        {
            tracing::warn!(sandbox = %id, %error, "the processes of a failed sandbox can't be ended; trying again");
            return Ok(Done::Later(back_off(job.attempts)));
        }
    }
    Ok(Done::Finished)
}

/// The worker of an ended sandbox has had its time to send the rest.
pub(crate) async fn end_drain(app: &App, job: &Job) -> Result<Done> {
    let id = job.sandbox_id;
    app.write(move |work| {
        Box::pin(async move {
            let (_, mut sandbox) = work.locked(id).await?;
            if sandbox.state.has_ended() {
                sandbox.drained = true;
                if sandbox.results == Results::Pending {
                    sandbox.results = Results::Lost;
                }
                sandboxes::update(work.tx, &mut sandbox).await?;
                tokens::delete_of_worker(work.tx, id).await?;
            }
            Ok(Done::Finished)
        })
    })
    .await
}

/// A loop that has not passed within its time is over, also in the middle of a run.
pub(crate) async fn continuous(app: &App, job: &Job) -> Result<Done> {
    let (id, own) = (job.sandbox_id, job.id);
    app.write(move |work| {
        Box::pin(async move {
            jobs::finish(work.tx, own).await?;
            crate::app::continuous::deadline(work, id).await?;
            Ok(Done::Finished)
        })
    })
    .await
}
