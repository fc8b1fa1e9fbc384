//! The create job: asks the provider to create a sandbox.

use super::{JobOutcome, back_off};
use crate::app::lifecycle;
use crate::problem::Result;
use crate::providers::Providers;
use crate::repositories::{self, PackedRepository};
use crate::state::App;
use atoll_api::events::{EventData, GitCloned, SandboxNotice};
use atoll_core::event::{EventSource, NewEvent};
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::{CreateSpec, Error, Identity, ProviderSandbox, ProviderState, provider_snapshot_name};
use atoll_core::sandbox::{Reason, SandboxState};
use atoll_store::jobs::Job;
use atoll_store::sandboxes::{self, SandboxRow};
use std::sync::Arc;
use std::time::Duration;

/// Time limit of one provider call. Another job fails the sandbox at its create timeout; a sandbox that the provider
/// creates after that is removed.
const CREATE_TIMEOUT: Duration = Duration::from_secs(900);

pub(crate) async fn create_sandbox(app: &Arc<App>, providers: &Providers, job: &Job) -> Result<JobOutcome> {
    let id = job.sandbox_id;
    let pending = app
        .write(async move |work| {
            let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
            if sandbox.state == SandboxState::Pending {
                lifecycle::apply_trigger(work, &mut session, &mut sandbox, Trigger::CreationRequested, None, None)
                    .await?;
            }
            let labels = sandboxes::list_labels(work.tx, id).await?;
            let is_needed = sandbox.state.is_live() && sandbox.provider_id.is_none();
            // The session's branch may be one of another repository.
            let repo_branch = sandbox.settings.repo.as_ref().and_then(|repo| repo.branch.clone());
            let own_branch = session.branch.filter(|branch| Some(branch) == repo_branch.as_ref());
            Ok(is_needed.then_some((sandbox, labels, own_branch)))
        })
        .await?;
    let Some((sandbox, labels, branch)) = pending else { return Ok(JobOutcome::Finished) };
    let identity = Identity {
        deployment: app.deployment.clone(),
        sandbox: id,
        session: sandbox.session_id,
        project: sandbox.project_id,
    };
    let provider = providers.get(sandbox.provider);
    let runs_agents = provider.capabilities().runs_agents();
    // `packed` holds the bundle until the provider has read it or failed.
    let packed = match pack_repository(app, &sandbox, runs_agents, branch).await {
        Ok(packed) => packed,
        Err(problem) if problem.is_server_error() => return Err(problem),
        Err(problem) => {
            let reason = Reason::new("source_failed", lifecycle::truncate_text(&problem.detail, 500));
            return record_failure(app, job, reason).await;
        }
    };
    let source = packed.as_ref().map(|packed| packed.source.clone());
    let mut settings = sandbox.settings.clone();
    settings.snapshot = settings.snapshot.map(|name| provider_snapshot_name(sandbox.project_id, &name));
    let agent = sandbox.agent.as_deref().filter(|_| runs_agents);
    let programs = match app.agents.programs_for(agent) {
        Ok(programs) => programs,
        // The program existed when the request was checked.
        Err(unable) => {
            let reason = Reason::new("agent_missing", lifecycle::truncate_text(&unable.describe(), 500));
            return record_failure(app, job, reason).await;
        }
    };
    let spec = CreateSpec { identity, labels, settings, source, programs, cache: None };
    // The sandbox's id is the idempotency key.
    let key = id.to_string();
    let call = tokio::time::timeout(CREATE_TIMEOUT, provider.create(&spec, &key));
    let created = call.await.unwrap_or_else(|_| Err(Error::Unreachable { detail: "the provider timed out".into() }));
    match created {
        Ok(found) => {
            let cloned = packed.as_ref().map(|packed| describe_clone(&sandbox, packed));
            record_created(app, job, found, cloned.unwrap_or_default()).await
        }
        Err(error) if error.is_retryable() && job.attempts < 1 => Ok(JobOutcome::RetryAfter(Duration::from_secs(1))),
        Err(error) => {
            let reason = Reason::new(error.code(), lifecycle::truncate_text(&error.to_string(), 500));
            record_failure(app, job, reason).await
        }
    }
}

/// Packs the repository for the workspace: at the session's `branch` if an earlier sandbox left one, else at its base.
async fn pack_repository(
    app: &App,
    sandbox: &SandboxRow,
    runs_agents: bool,
    branch: Option<String>,
) -> Result<Option<PackedRepository>> {
    // A fork already has its parent's repository.
    let repo = sandbox.settings.repo.as_ref().filter(|_| sandbox.settings.forked_from.is_none());
    match repo {
        Some(repo) if runs_agents => {
            repositories::pack_repository(app, sandbox.id, repo.clone(), branch).await.map(Some)
        }
        Some(_) | None => Ok(None),
    }
}

/// Submodules named in a notice.
const MAX_NAMED_SUBMODULES: usize = 5;

/// The events that describe the copied repository.
fn describe_clone(sandbox: &SandboxRow, packed: &PackedRepository) -> Vec<EventData> {
    let PackedRepository { source, uncommitted, submodules, .. } = packed;
    let (commit, branch) = (Some(source.commit.clone()), Some(source.branch.clone()));
    let repo = sandbox.settings.repo.as_ref().and_then(|repo| repo.path.clone());
    let cloned = GitCloned { commit, branch, repo, uncommitted: *uncommitted, submodules: submodules.clone() };
    let mut events = vec![EventData::GitCloned(cloned)];
    if !submodules.is_empty() {
        let named: Vec<&str> = submodules.iter().take(MAX_NAMED_SUBMODULES).map(String::as_str).collect();
        let more = if submodules.len() > named.len() { ", …" } else { "" };
        let text = format!(
            "this version does not support submodules ({}{more}): their directories are empty, and the run fails if the \
             agent leaves files in them, because no branch can hold those",
            named.join(", ")
        );
        events.push(EventData::SandboxNotice(SandboxNotice { text, routine: false }));
    }
    events
}

async fn record_created(
    app: &Arc<App>,
    job: &Job,
    found: ProviderSandbox,
    cloned: Vec<EventData>,
) -> Result<JobOutcome> {
    let (id, server_id) = (job.sandbox_id, app.server_id.clone());
    let is_dead = found.state == ProviderState::Stopped;
    let stored = app.write(async move |work| {
        let (_, mut sandbox) = work.lock_sandbox(id).await?;
        sandbox.provider_id = Some(found.id.0);
        if work.capabilities(sandbox.provider).runs_agents() {
            sandbox.server_id = Some(server_id);
        }
        let cloned = cloned.into_iter().map(|data| data.into_event(work.now).with_source(EventSource::Forge, None));
        let mut events: Vec<NewEvent> = cloned.collect();
        let notices = found.notices.into_iter().map(|text| SandboxNotice { text, routine: false });
        let disk_notice = found.disk_notice.map(|text| SandboxNotice { text, routine: true });
        events.extend(notices.chain(disk_notice).map(|notice| EventData::SandboxNotice(notice).into_event(work.now)));
        work.log(&mut sandbox, events).await?;
        sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
        if sandbox.state.has_ended() {
            // The sandbox was stopped during its creation.
            atoll_store::jobs::schedule_job(work.tx, atoll_core::job::JobKind::Remove, id, work.steady).await?;
            work.out.jobs = true;
        }
        Ok(JobOutcome::Finished)
    });
    let done = stored.await?;
    if is_dead {
        // An earlier server created it, and its worker has died since.
        tokio::spawn(super::dead_worker::handle_dead_worker(Arc::clone(app), id));
    }
    Ok(done)
}

async fn record_failure(app: &App, job: &Job, reason: Reason) -> Result<JobOutcome> {
    let (id, attempts) = (job.sandbox_id, job.attempts);
    app.write(async move |work| {
        let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
        match sandbox.state {
            SandboxState::Creating => {
                let trigger = Trigger::CreationFailed;
                lifecycle::apply_trigger(work, &mut session, &mut sandbox, trigger, Some(reason), None).await?;
                Ok(JobOutcome::Finished)
            }
            // The worker reported, so the sandbox exists: retry until its provider id is known.
            SandboxState::Running | SandboxState::Completing => Ok(JobOutcome::RetryAfter(back_off(attempts))),
            SandboxState::Pending | SandboxState::Completed | SandboxState::Failed => Ok(JobOutcome::Finished),
        }
    })
    .await
}
