//! Asks a provider to make a sandbox.

use super::{Done, back_off};
use crate::app::lifecycle;
use crate::problem::Result;
use crate::providers::Providers;
use crate::state::App;
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::{CreateSpec, Error, Found, Identity};
use atoll_core::sandbox::{Reason, SandboxState};
use atoll_store::jobs::Job;
use atoll_store::sandboxes;
use std::sync::Arc;
use std::time::Duration;

/// One provider call may take this long.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) async fn create(app: &Arc<App>, providers: &Providers, job: &Job) -> Result<Done> {
    let id = job.sandbox_id;
    let asked = app
        .write(move |work| {
            Box::pin(async move {
                let (mut session, mut sandbox) = work.locked(id).await?;
                if sandbox.state == SandboxState::Pending {
                    lifecycle::apply(work, &mut session, &mut sandbox, Trigger::ProviderAsked, None, None).await?;
                }
                let labels = sandboxes::labels(work.tx, id).await?;
                let wanted = sandbox.state.is_live() && sandbox.provider_id.is_none();
                Ok(wanted.then_some((sandbox, labels)))
            })
        })
        .await?;
    let Some((sandbox, labels)) = asked else { return Ok(Done::Finished) };
    let identity = Identity {
        deployment: app.deployment.clone(),
        sandbox: id,
        session: sandbox.session_id,
        project: sandbox.project_id,
    };
    let spec = CreateSpec { identity, labels, settings: sandbox.settings.clone() };
    let provider = providers.get(sandbox.provider);
    // The sandbox's own id is the key: asking twice makes one.
    let key = id.to_string();
    let call = tokio::time::timeout(DEADLINE, provider.create(&spec, &key));
    let made = call.await.unwrap_or_else(|_| Err(Error::Unreachable { detail: "it did not answer in time".into() }));
    match made {
        Ok(found) => made_it(app, job, found).await,
        Err(error) if error.is_worth_a_retry() && job.attempts < 1 => Ok(Done::Later(Duration::from_secs(1))),
        Err(error) => failed(app, job, &error).await,
    }
}

async fn made_it(app: &App, job: &Job, found: Found) -> Result<Done> {
    let id = job.sandbox_id;
    app.write(move |work| {
        Box::pin(async move {
            let (_, mut sandbox) = work.locked(id).await?;
            sandbox.provider_id = Some(found.id.0);
            sandboxes::update(work.tx, &mut sandbox).await?;
            if sandbox.state.has_ended() {
                // It was stopped while it was being made.
                atoll_store::jobs::put(work.tx, atoll_core::job::JobKind::Remove, id, work.steady).await?;
                work.out.jobs = true;
            }
            Ok(Done::Finished)
        })
    })
    .await
}

async fn failed(app: &App, job: &Job, error: &Error) -> Result<Done> {
    let (id, attempts) = (job.sandbox_id, job.attempts);
    let reason = Reason::new(error.code(), lifecycle::bounded(&error.to_string(), 500));
    app.write(move |work| {
        Box::pin(async move {
            let (mut session, mut sandbox) = work.locked(id).await?;
            match sandbox.state {
                SandboxState::Creating => {
                    let trigger = Trigger::CreationFailed;
                    lifecycle::apply(work, &mut session, &mut sandbox, trigger, Some(reason), None).await?;
                    Ok(Done::Finished)
                }
                // It was made, as its worker speaks; without its name nobody could remove it later.
                SandboxState::Running | SandboxState::Completing => Ok(Done::Later(back_off(attempts))),
                SandboxState::Pending | SandboxState::Completed | SandboxState::Failed => Ok(Done::Finished),
            }
        })
    })
    .await
}
