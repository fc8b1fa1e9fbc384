//! Removes a provider's sandbox, for as long as it takes.

use super::recover::look_for;
use super::{Done, back_off};
use crate::problem::Result;
use crate::providers::Providers;
use crate::state::App;
use atoll_core::provider::{Error, Lookup, ProviderId};
use atoll_store::jobs::Job;
use atoll_store::sandboxes;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);
/// From here on somebody should look at it.
const LOUD: i64 = 8;

pub(crate) async fn remove(app: &App, providers: &Providers, job: &Job) -> Result<Done> {
    let id = job.sandbox_id;
    let row = app.read(move |tx| Box::pin(async move { Ok(sandboxes::get(tx, id).await?) })).await?;
    let Some(row) = row.filter(|row| row.state.has_ended()) else { return Ok(Done::Finished) };
    let provider = providers.get(row.provider);
    let provider_id = match row.provider_id {
        Some(name) => ProviderId(name),
        // The answer that named it may have been lost: it is looked for by its labels.
        None => match look_for(app, provider, id).await {
            Lookup::Found(found) => found.id,
            Lookup::Gone => return Ok(Done::Finished),
            Lookup::Unreachable { .. } => return Ok(Done::Later(back_off(job.attempts))),
        },
    };
    let call = tokio::time::timeout(DEADLINE, provider.destroy(&provider_id));
    match call.await {
        Ok(Ok(()) | Err(Error::Gone)) => {
            app.write(move |work| {
                Box::pin(async move {
                    let (_, mut sandbox) = work.locked(id).await?;
                    sandbox.provider_id = None;
                    Ok(sandboxes::update(work.tx, &mut sandbox).await?)
                })
            })
            .await?;
            Ok(Done::Finished)
        }
        Ok(Err(error)) => {
            if job.attempts >= LOUD {
                tracing::warn!(sandbox = %id, %error, attempts = job.attempts, "a sandbox can't be removed at its provider");
            }
            Ok(Done::Later(back_off(job.attempts)))
        }
        Err(_) => Ok(Done::Later(back_off(job.attempts))),
    }
}
