//! Checks the work of a continuous run, or lets it go on after a run that failed.
//!
//! The checks are real commands in the sandbox. What they come to is decided and stored in one transaction with what
//! follows from it; a server that is killed before that makes them again.

use super::checks::{self, Place};
use super::{Done, back_off};
use crate::app::continuous;
use crate::problem::Result;
use crate::state::App;
use atoll_core::continuous::Phase;
use atoll_core::continuous::check::Checked;
use atoll_core::provider::ProviderId;
use atoll_core::sandbox::{Activity, SandboxState};
use atoll_store::jobs::{self, Job};
use atoll_store::sandboxes::{self, Sandbox};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;

/// How often a fault on the way is tried again before a check counts as unknown.
const TRIES: i64 = 5;
/// A paused sandbox is looked at again after this.
const PAUSED: Duration = Duration::from_secs(5);

pub(crate) async fn validate(app: &Arc<App>, job: &Job) -> Result<Done> {
    let (id, own) = (job.sandbox_id, job.id);
    let Some((row, phase, round)) = state(app, job).await? else { return Ok(Done::Finished) };
    match phase {
        Phase::Resting => {
            let rested = app.write(move |work| {
                Box::pin(async move {
                    // A job of the same kind may be left by what follows: this one is done with here.
                    jobs::finish(work.tx, own).await?;
                    continuous::rested(work, id).await
                })
            });
            rested.await?;
            return Ok(Done::Finished);
        }
        Phase::Validating => {}
        Phase::Working | Phase::Passed | Phase::Stopped => return Ok(Done::Finished),
    }
    if row.activity == Activity::Paused {
        return Ok(Done::Later(PAUSED));
    }
    let sandbox = ProviderId(row.provider_id.clone().unwrap_or_default());
    let place = Place { providers: app.providers()?, kind: row.provider, sandbox };
    let mut states = app.hub.states();
    let making = checks::make(&place, &row);
    tokio::pin!(making);
    let made = loop {
        tokio::select! {
            made = &mut making => break made,
            news = states.recv() => {
                match news {
                    Ok((about, _)) if about != id => continue,
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return Ok(Done::Finished),
                }
                // Dropping what makes them ends the command under way.
                let now = state(app, job).await?;
                if !now.is_some_and(|(_, phase, now)| phase == Phase::Validating && now == round) {
                    return Ok(Done::Finished);
                }
            }
        }
    };
    let made: Vec<Checked> = match made {
        Ok(made) => made,
        Err(detail) if job.attempts < TRIES => {
            tracing::warn!(sandbox = %id, detail, "the work could not be checked; trying again");
            return Ok(Done::Later(back_off(job.attempts)));
        }
        Err(detail) => checks::unknown(&row, &detail),
    };
    let stored = app.write(move |work| {
        Box::pin(async move {
            jobs::finish(work.tx, own).await?;
            continuous::checked(work, id, round, made).await
        })
    });
    stored.await?;
    Ok(Done::Finished)
}

/// The sandbox and where its loop is, if it still runs.
async fn state(app: &App, job: &Job) -> Result<Option<(Sandbox, Phase, u32)>> {
    let id = job.sandbox_id;
    app.read(move |tx| {
        Box::pin(async move {
            let row = sandboxes::get(tx, id).await?.filter(|row| row.state == SandboxState::Running);
            let record = atoll_store::continuous::get(tx, id).await?;
            Ok(row.zip(record).map(|(row, record)| (row, record.progress.phase, record.progress.round)))
        })
    })
    .await
}
