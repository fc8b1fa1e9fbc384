//! Pausing and resuming sandboxes: first at the provider, then in the row and the event log.

use super::Work;
use super::targets::{SandboxTarget, find_sandbox, find_target, find_target_of, load_sandbox};
use super::views::load_sandbox_view;
use crate::auth::access::CanWork;
use crate::keyed_locks::run_to_completion;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::events::{EventData, SandboxActivity};
use atoll_core::agent_status::Signal;
use atoll_core::event::{EventSource, NewEvent};
use atoll_core::health::PauseCause;
use atoll_core::id::SandboxId;
use atoll_core::job::JobKind;
use atoll_core::sandbox::{Activity, SandboxState};
use atoll_store::jobs;
use atoll_store::sandboxes::{self, SandboxRow};
use std::sync::Arc;

/// Requires a running sandbox: only that can be paused or resumed.
pub fn require_running(sandbox: &SandboxRow) -> Result<()> {
    match sandbox.state {
        SandboxState::Running => Ok(()),
        SandboxState::Pending
        | SandboxState::Creating
        | SandboxState::Completing
        | SandboxState::Completed
        | SandboxState::Failed => {
            let detail = format!("the sandbox is {}; only a running sandbox can be paused or resumed", sandbox.state);
            Err(Problem::new(Code::IllegalTransition, detail).with("state", sandbox.state.as_str()))
        }
    }
}

/// Refuses operations that need running processes.
pub fn require_not_paused(sandbox: &SandboxRow) -> Result<()> {
    if sandbox.state == SandboxState::Running && sandbox.status.is_paused() {
        return Err(Problem::new(Code::SandboxPaused, "the sandbox is paused; resume it first"));
    }
    Ok(())
}

pub async fn mark_paused(work: &mut Work<'_>, id: SandboxId, by: Pauser) -> Result<SandboxRow> {
    apply_pause(work, id, Some(by.cause()), by).await
}

pub async fn mark_resumed(work: &mut Work<'_>, id: SandboxId, actor: String) -> Result<SandboxRow> {
    apply_pause(work, id, None, Pauser::Person(actor)).await
}

/// The component or person that pauses or resumes a sandbox.
#[derive(Debug, Clone)]
pub enum Pauser {
    Person(String),
    Guardian,
    /// The server pauses an idle sandbox until a person uses it or it gets a message.
    Health,
}

impl Pauser {
    fn sign(self, event: NewEvent) -> NewEvent {
        match self {
            Self::Person(actor) => event.with_source(EventSource::User, Some(actor)),
            Self::Guardian => event.with_source(EventSource::Guardian, None),
            Self::Health => event.with_source(EventSource::System, None),
        }
    }

    const fn cause(&self) -> PauseCause {
        match self {
            Self::Person(_) => PauseCause::Person,
            Self::Guardian => PauseCause::Guardian,
            Self::Health => PauseCause::Idle,
        }
    }
}

async fn apply_pause(work: &mut Work<'_>, id: SandboxId, cause: Option<PauseCause>, by: Pauser) -> Result<SandboxRow> {
    let (_, mut sandbox) = work.lock_sandbox(id).await?;
    let signal = if cause.is_some() { Signal::Paused } else { Signal::Resumed };
    let event = if cause.is_some() { EventData::SandboxPaused } else { EventData::SandboxResumed };
    let is_changed_cause = sandbox.pause_cause != cause && sandbox.status.is_paused();
    sandbox.pause_cause = cause;
    if !sandbox.apply_signal(signal) {
        // A person's pause of an idle sandbox holds until they resume it.
        if is_changed_cause {
            sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
        }
        return Ok(sandbox);
    }
    // A pause is not time without work.
    sandbox.work_at = Some(work.steady);
    let activity = sandbox.status.activity();
    // A paused sandbox's time limits stop too.
    for kind in [JobKind::Timeout, JobKind::TaskWarning, JobKind::TaskInterrupt, JobKind::TaskEnd] {
        match activity {
            Activity::Paused => jobs::suspend_job(work.tx, kind, id, work.steady).await?,
            _ => jobs::resume_job(work.tx, kind, id, work.steady).await?,
        }
    }
    // The pause does not count as missing heartbeats.
    sandbox.last_heartbeat = sandbox.last_heartbeat.map(|_| work.now);
    work.out.jobs = true;
    sandbox.updated_at = work.now;
    let event = event(SandboxActivity { activity }).into_event(work.now);
    work.log(&mut sandbox, vec![by.sign(event)]).await?;
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    work.out.states.push((sandbox.id, sandbox.state));
    Ok(sandbox)
}

/// Pauses a sandbox. Its processes keep their memory.
pub async fn pause_sandbox(app: Arc<App>, access: CanWork<SandboxId>) -> Result<atoll_api::Sandbox> {
    let row = pause_running(app.clone(), access.id, Pauser::Person(access.actor())).await?;
    app.read(async move |tx| load_sandbox_view(tx, row).await).await
}

/// Pauses a running sandbox at its provider, then in its row.
pub async fn pause_running(app: Arc<App>, id: SandboxId, by: Pauser) -> Result<SandboxRow> {
    run_to_completion(async move {
        let _lock = app.sandbox_locks.lock(id).await;
        require_running(&find_sandbox(&app, id).await?)?;
        let target = find_target_of(&app, id).await?;
        target.provider.pause(&target.id).await?;
        let paused = app.write(async move |work| {
            let row = mark_paused(work, id, by).await?;
            // The sandbox may have ended while the provider paused it.
            require_running(&row)?;
            Ok(row)
        });
        let paused = paused.await;
        // A sandbox that is not marked as paused must not stay paused: no client would resume it.
        if paused.is_err()
            && let Err(error) = target.provider.resume(&target.id).await
        {
            tracing::warn!(sandbox = %id, %error, "failed to resume a sandbox after a failed pause");
        }
        paused
    })
    .await
}

pub async fn resume_sandbox(app: Arc<App>, access: CanWork<SandboxId>) -> Result<atoll_api::Sandbox> {
    run_to_completion(async move {
        let _lock = app.sandbox_locks.lock(access.id).await;
        require_running(&load_sandbox(&app, &access).await?)?;
        let target = find_target(&app, &access).await?;
        resume_target(&app, &access, &target).await
    })
    .await
}

async fn resume_target(app: &App, access: &CanWork<SandboxId>, target: &SandboxTarget) -> Result<atoll_api::Sandbox> {
    target.provider.resume(&target.id).await?;
    let (id, actor) = (access.id, access.actor());
    app.write(async move |work| {
        let row = mark_resumed(work, id, actor).await?;
        load_sandbox_view(work.tx, row).await
    })
    .await
}

/// Resumes a sandbox that was paused because it was idle. Does nothing to one that a person paused.
pub async fn wake_idle(app: &App, id: SandboxId) -> Result<()> {
    let _lock = app.sandbox_locks.lock(id).await;
    let target = find_target_of(app, id).await?;
    if !is_asleep(&target.row) {
        return Ok(());
    }
    target.provider.resume(&target.id).await?;
    app.write(async move |work| {
        let (_, sandbox) = work.lock_sandbox(id).await?;
        if is_asleep(&sandbox) {
            apply_pause(work, id, None, Pauser::Health).await?;
        }
        Ok(())
    })
    .await
}

/// True if the sandbox is paused because it was idle.
pub fn is_asleep(row: &SandboxRow) -> bool {
    row.state == SandboxState::Running && row.status.is_paused() && row.pause_cause == Some(PauseCause::Idle)
}

/// Resumes a paused sandbox before it stops, so that its worker can flush. On failure the sandbox is stopped by force later.
pub(super) async fn resume_before_stop(app: &Arc<App>, access: &CanWork<SandboxId>) -> Result<()> {
    if !is_paused(app, access).await {
        return Ok(());
    }
    let (app, access) = (Arc::clone(app), access.clone());
    run_to_completion(async move {
        let _lock = app.sandbox_locks.lock(access.id).await;
        if is_paused(&app, &access).await
            && let Ok(target) = find_target(&app, &access).await
            && let Err(problem) = resume_target(&app, &access, &target).await
        {
            tracing::warn!(sandbox = %access.id, detail = %problem.detail, "failed to resume a paused sandbox that stops");
        }
        Ok(())
    })
    .await
}

async fn is_paused(app: &App, access: &CanWork<SandboxId>) -> bool {
    load_sandbox(app, access).await.is_ok_and(|row| row.status.is_paused() && row.provider_id.is_some())
}
