//! Asks a provider to make a sandbox.

use super::{Done, back_off};
use crate::app::lifecycle;
use crate::problem::Result;
use crate::providers::Providers;
use crate::repo::{self, Packed};
use crate::state::App;
use atoll_core::event::{NewEvent, Source};
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::{CreateSpec, Error, Found, Identity, ProviderState, snapshot_of};
use atoll_core::sandbox::{ProviderKind, Reason, SandboxState};
use atoll_store::jobs::Job;
use atoll_store::sandboxes::{self, Sandbox};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// One provider call may take this long. A sandbox that is not there in its create timeout fails by
/// another job; what is made of it afterwards is removed.
const DEADLINE: Duration = Duration::from_secs(900);

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
                Ok(wanted.then_some((sandbox, labels, session.branch)))
            })
        })
        .await?;
    let Some((sandbox, labels, branch)) = asked else { return Ok(Done::Finished) };
    let identity = Identity {
        deployment: app.deployment.clone(),
        sandbox: id,
        session: sandbox.session_id,
        project: sandbox.project_id,
    };
    // A bundle that is on its way in goes when the provider has it, or has failed.
    let packed = match pack(app, &sandbox, branch).await {
        Ok(packed) => packed,
        Err(problem) if problem.code.status().is_server_error() => return Err(problem),
        Err(problem) => {
            let reason = Reason::new("source_failed", lifecycle::bounded(&problem.detail, 500));
            return failed(app, job, reason).await;
        }
    };
    let source = packed.as_ref().map(|packed| packed.source.clone());
    let mut settings = sandbox.settings.clone();
    settings.snapshot = settings.snapshot.map(|name| snapshot_of(sandbox.project_id, &name));
    let programs = match app.agents.programs(sandbox.provider, sandbox.agent.as_deref()) {
        Ok(programs) => programs,
        // It was there when the sandbox was asked for.
        Err(unable) => {
            let reason = Reason::new("agent_missing", lifecycle::bounded(&unable.sentence(), 500));
            return failed(app, job, reason).await;
        }
    };
    let spec = CreateSpec { identity, labels, settings, source, programs };
    let provider = providers.get(sandbox.provider);
    // The sandbox's own id is the key: asking twice makes one.
    let key = id.to_string();
    let call = tokio::time::timeout(DEADLINE, provider.create(&spec, &key));
    let made = call.await.unwrap_or_else(|_| Err(Error::Unreachable { detail: "it did not answer in time".into() }));
    match made {
        Ok(found) => made_it(app, job, found, packed.as_ref().map(|packed| packed.uncommitted)).await,
        Err(error) if error.is_worth_a_retry() && job.attempts < 1 => Ok(Done::Later(Duration::from_secs(1))),
        Err(error) => {
            let reason = Reason::new(error.code(), lifecycle::bounded(&error.to_string(), 500));
            failed(app, job, reason).await
        }
    }
}

/// What stands in the workspace before the worker starts: the repository where the session's earlier
/// sandbox left it on `branch`, else at its base. Only sandboxes on this machine have one yet.
async fn pack(app: &App, sandbox: &Sandbox, branch: Option<String>) -> Result<Option<Packed>> {
    // A fork has its repository already, with all that was done in it.
    let repo = sandbox.settings.repo.as_ref().filter(|_| sandbox.settings.forked_from.is_none());
    match (sandbox.provider, repo) {
        (ProviderKind::Local | ProviderKind::Docker, Some(repo)) => {
            repo::pack(app, sandbox.id, repo.clone(), branch).await.map(Some)
        }
        (ProviderKind::Local | ProviderKind::Docker, None) | (ProviderKind::External | ProviderKind::Fake, _) => {
            Ok(None)
        }
    }
}

async fn made_it(app: &Arc<App>, job: &Job, found: Found, uncommitted: Option<u64>) -> Result<Done> {
    let (id, server_id) = (job.sandbox_id, app.server_id.clone());
    let is_dead = found.state == ProviderState::Stopped;
    let stored = app.write(move |work| {
        Box::pin(async move {
            let (_, mut sandbox) = work.locked(id).await?;
            sandbox.provider_id = Some(found.id.0);
            if sandbox.provider.is_on_this_machine() {
                sandbox.server_id = Some(server_id);
            }
            let mut events = Vec::new();
            if let (Some(uncommitted), Some(repo)) = (uncommitted, &sandbox.settings.repo) {
                let data = json!({
                    "commit": repo.base, "branch": repo.branch, "repo": repo.path, "uncommitted": uncommitted,
                });
                events.push(NewEvent::system("git.cloned", work.now, &data).by(Source::Forge, None));
            }
            let notices = found.notices.iter().map(|text| json!({ "text": text }));
            events.extend(notices.map(|data| NewEvent::system("sandbox.notice", work.now, &data)));
            work.log(&mut sandbox, events).await?;
            sandboxes::update(work.tx, &mut sandbox).await?;
            if sandbox.state.has_ended() {
                // It was stopped while it was being made.
                atoll_store::jobs::put(work.tx, atoll_core::job::JobKind::Remove, id, work.steady).await?;
                work.out.jobs = true;
            }
            Ok(Done::Finished)
        })
    });
    let done = stored.await?;
    if is_dead {
        // An earlier server had made it, and its worker has died since.
        tokio::spawn(super::gone::worker_gone(Arc::clone(app), id));
    }
    Ok(done)
}

async fn failed(app: &App, job: &Job, reason: Reason) -> Result<Done> {
    let (id, attempts) = (job.sandbox_id, job.attempts);
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
