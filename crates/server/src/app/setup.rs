//! The set-up of a sandbox: every change of its phase, with the events and deadlines that belong to it.
//!
//! Each function returns false, and changes nothing, if the sandbox has ended or another server sets it up.

use super::{Work, lifecycle};
use crate::problem::{Problem, Result};
use atoll_api::events::{EventData, SandboxNotice, SetupCompleted, SetupFailed, SetupStarted};
use atoll_core::event::NewEvent;
use atoll_core::id::SandboxId;
use atoll_core::job::JobKind;
use atoll_core::lifecycle::Trigger;
use atoll_core::sandbox::{Reason, SandboxState};
use atoll_core::setup_phase::{SetupEnvironment, SetupPhase, SetupTrigger};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::{jobs, sessions::SessionRow};
use std::time::Duration;

/// Locks a sandbox whose set-up is in `phase`; `None` if the sandbox has ended or another server sets it up.
async fn lock_in_phase(
    work: &mut Work<'_>,
    id: SandboxId,
    phase: impl Fn(SetupPhase) -> bool,
) -> Result<Option<(SessionRow, SandboxRow)>> {
    let (session, sandbox) = work.lock_sandbox(id).await?;
    let is_current = sandbox.state == SandboxState::Creating && phase(sandbox.setup);
    Ok(is_current.then_some((session, sandbox)))
}

fn step(sandbox: &mut SandboxRow, trigger: SetupTrigger) -> Result<()> {
    sandbox.setup = sandbox.setup.next(trigger).map_err(|error| Problem::internal(error.to_string()))?;
    Ok(())
}

/// Writes the row and publishes the network policy of its phase.
async fn store_phase(work: &mut Work<'_>, sandbox: &mut SandboxRow, events: Vec<EventData>) -> Result<()> {
    let events: Vec<NewEvent> = events.into_iter().map(|data| data.into_event(work.now)).collect();
    work.log(sandbox, events).await?;
    sandbox.updated_at = work.now;
    sandboxes::update_sandbox(work.tx, sandbox).await?;
    work.out.networks.push((sandbox.id, sandbox.version, sandbox.current_network().cloned()));
    Ok(())
}

/// Starts the create timeout again, `after` this time.
async fn schedule_create_timeout(work: &mut Work<'_>, sandbox: &SandboxRow, after: Duration) -> Result<()> {
    let due = work.steady + after + work.config.sandbox.create_timeout.for_provider(sandbox.provider);
    jobs::schedule_job(work.tx, JobKind::CreateTimeout, sandbox.id, due).await?;
    work.out.jobs = true;
    Ok(())
}

/// Stores that the sandbox has a set-up, before its provider creates it: its worker must not start the agent.
pub async fn record_plan(work: &mut Work<'_>, id: SandboxId, environment: SetupEnvironment) -> Result<bool> {
    let Some((_, mut sandbox)) = lock_in_phase(work, id, |phase| phase != SetupPhase::Running).await? else {
        return Ok(false);
    };
    step(&mut sandbox, SetupTrigger::Planned)?;
    sandbox.setup_environment = environment;
    sandboxes::update_setup_environment(work.tx, &sandbox).await?;
    store_phase(work, &mut sandbox, Vec::new()).await?;
    Ok(true)
}

/// Stores the variables of a plan without commands.
pub async fn record_environment(work: &mut Work<'_>, id: SandboxId, environment: SetupEnvironment) -> Result<()> {
    let (_, mut sandbox) = work.lock_sandbox(id).await?;
    sandbox.setup_environment = environment;
    Ok(sandboxes::update_setup_environment(work.tx, &sandbox).await?)
}

/// Stores that a repeated creation has no set-up after all.
pub async fn record_no_plan(work: &mut Work<'_>, id: SandboxId) -> Result<bool> {
    let Some((_, mut sandbox)) = lock_in_phase(work, id, |phase| phase == SetupPhase::Pending).await? else {
        return Ok(false);
    };
    step(&mut sandbox, SetupTrigger::NotNeeded)?;
    store_phase(work, &mut sandbox, Vec::new()).await?;
    Ok(true)
}

/// Stores that an earlier server ended during set-up. The caller has destroyed the provider's sandbox.
pub async fn record_interruption(work: &mut Work<'_>, id: SandboxId) -> Result<bool> {
    let Some((_, mut sandbox)) = lock_in_phase(work, id, SetupPhase::is_active).await? else {
        return Ok(false);
    };
    let was_running = sandbox.setup == SetupPhase::Running;
    step(&mut sandbox, SetupTrigger::Interrupted)?;
    // The next worker counts its boots from 1 again.
    (sandbox.provider_id, sandbox.stream, sandbox.boot) = (None, None, None);
    let text = "the server ended during set-up; set-up starts again in a new sandbox".to_owned();
    let notice = EventData::SandboxNotice(SandboxNotice { text, routine: false });
    store_phase(work, &mut sandbox, Some(notice).filter(|_| was_running).into_iter().collect()).await?;
    schedule_create_timeout(work, &sandbox, Duration::ZERO).await?;
    Ok(true)
}

/// Stores that the sandbox waits for the same set-up of another one, for at most `time_limit`.
pub async fn record_wait(work: &mut Work<'_>, id: SandboxId, time_limit: Duration) -> Result<bool> {
    let Some((_, mut sandbox)) = lock_in_phase(work, id, |phase| phase == SetupPhase::Pending).await? else {
        return Ok(false);
    };
    let text = "another sandbox runs the same set-up; this one waits for its result".to_owned();
    let notice = EventData::SandboxNotice(SandboxNotice { text, routine: false });
    store_phase(work, &mut sandbox, vec![notice]).await?;
    schedule_create_timeout(work, &sandbox, time_limit).await?;
    Ok(true)
}

/// Stores the start of the first step. Set-up has its own time limit, so the create timeout ends.
pub async fn record_start(work: &mut Work<'_>, id: SandboxId, started: SetupStarted) -> Result<bool> {
    let Some((_, mut sandbox)) = lock_in_phase(work, id, |phase| phase == SetupPhase::Pending).await? else {
        return Ok(false);
    };
    step(&mut sandbox, SetupTrigger::Started)?;
    jobs::cancel_job(work.tx, JobKind::CreateTimeout, id).await?;
    store_phase(work, &mut sandbox, vec![EventData::SetupStarted(started)]).await?;
    Ok(true)
}

/// Appends output and ends of steps.
pub async fn record_events(work: &mut Work<'_>, id: SandboxId, events: Vec<EventData>) -> Result<bool> {
    let Some((_, mut sandbox)) = lock_in_phase(work, id, |phase| phase == SetupPhase::Running).await? else {
        return Ok(false);
    };
    let events = events.into_iter().map(|data| data.into_event(work.now)).collect();
    work.log(&mut sandbox, events).await?;
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    Ok(true)
}

/// Lets the agent start, with the sandbox's own network policy.
pub async fn record_completion(work: &mut Work<'_>, id: SandboxId, completed: SetupCompleted) -> Result<bool> {
    let Some((_, mut sandbox)) = lock_in_phase(work, id, SetupPhase::is_active).await? else {
        return Ok(false);
    };
    step(&mut sandbox, SetupTrigger::Completed)?;
    store_phase(work, &mut sandbox, vec![EventData::SetupCompleted(completed)]).await?;
    schedule_create_timeout(work, &sandbox, Duration::ZERO).await?;
    // A waiting heartbeat gets the start instructions.
    work.out.states.push((id, sandbox.state));
    Ok(true)
}

/// Ends the creation. The provider's sandbox is removed at once.
pub async fn record_failure(
    work: &mut Work<'_>,
    id: SandboxId,
    failed: Option<SetupFailed>,
    reason: Reason,
) -> Result<bool> {
    let Some((mut session, mut sandbox)) = lock_in_phase(work, id, SetupPhase::is_active).await? else {
        return Ok(false);
    };
    step(&mut sandbox, SetupTrigger::Failed)?;
    store_phase(work, &mut sandbox, failed.map(EventData::SetupFailed).into_iter().collect()).await?;
    lifecycle::apply_trigger(work, &mut session, &mut sandbox, Trigger::SetupFailed, Some(reason), None).await?;
    Ok(true)
}
