//! Recovers from a dead local worker: drains its spool, then records the sandbox's new state.

use super::back_off;
use crate::app::{lifecycle, setup};
use crate::problem::{Problem, Result};
use crate::providers::InProcessLink;
use crate::state::App;
use atoll_api::events::{EventData, WorkerLost};
use atoll_core::id::SandboxId;
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::{CommandExit, DeadWorker, Error};
use atoll_core::sandbox::{Reason, SandboxState};
use atoll_spool::drain::drain_spool;
use atoll_store::sandboxes;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for draining one spool.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(120);

/// Retries until it succeeds or the server stops. The next server finds the dead worker again.
pub(crate) async fn handle_dead_worker(app: Arc<App>, id: SandboxId) {
    let mut stopping = app.stopping.clone();
    for attempt in 0.. {
        let Err(problem) = take_over(&app, id).await else { return };
        tracing::warn!(sandbox = %id, detail = %problem.detail, "failed to recover from a dead worker; will retry");
        tokio::select! {
            () = tokio::time::sleep(back_off(attempt)) => {}
            _ = stopping.wait_for(|stop| *stop) => return,
        }
    }
}

async fn take_over(app: &Arc<App>, id: SandboxId) -> Result<()> {
    let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await?;
    let Some(row) = row else { return Ok(()) };
    let provider = app.providers()?.get(row.provider);
    if !provider.capabilities().runs_agents() {
        return Ok(());
    }
    let dead = match provider.find_dead_worker(id).await {
        Ok(dead) => Some(dead),
        Err(Error::Gone) => None,
        Err(error) => return Err(error.into()),
    };
    let left = match (&dead, row.is_drained) {
        (Some(dead), false) => drain_abandoned(app, id, dead).await?,
        (Some(_), true) | (None, _) => 0,
    };
    let exit = dead.as_ref().map_or(CommandExit::Unknown, |dead| dead.exit);
    app.write(async move |work| {
        let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
        if left > 0 {
            let lost = EventData::WorkerLost(WorkerLost {
                stream: sandbox.stream,
                events: Some(left),
                detail: Some("part of the spool cannot be read".to_owned()),
                ..WorkerLost::default()
            });
            work.log(&mut sandbox, vec![lost.into_event(work.now)]).await?;
            sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
        }
        if sandbox.is_being_set_up() {
            let reason = death_reason(exit, "during set-up");
            return setup::record_failure(work, id, None, reason).await.map(drop);
        }
        match sandbox.state {
            SandboxState::Pending | SandboxState::Creating => {
                let reason = death_reason(exit, "before its first heartbeat");
                let (session, sandbox) = (&mut session, &mut sandbox);
                if sandbox.state == SandboxState::Pending {
                    lifecycle::apply_trigger(work, session, sandbox, Trigger::CreationRequested, None, None).await?;
                }
                lifecycle::apply_trigger(work, session, sandbox, Trigger::CreationFailed, Some(reason), None).await
            }
            SandboxState::Running => {
                let reason = death_reason(exit, "during the work");
                lifecycle::apply_trigger(work, &mut session, &mut sandbox, Trigger::WorkFailed, Some(reason), None)
                    .await
            }
            SandboxState::Completing => lifecycle::finish_flush(work, &mut session, &mut sandbox).await,
            SandboxState::Completed | SandboxState::Failed => Ok(()),
        }
    })
    .await
}

fn death_reason(exit: CommandExit, when: &str) -> Reason {
    let detail = match exit {
        CommandExit::Exited { code } => format!("its worker ended with code {code} {when}"),
        CommandExit::Signalled { signal } => format!("its worker was killed by signal {signal} {when}"),
        CommandExit::OutOfMemory => format!("its worker reached its own memory limit and was killed {when}"),
        CommandExit::TimedOut | CommandExit::Unknown => format!("its worker died {when}; its exit status is unknown"),
    };
    Reason::new("worker_died", detail)
}

/// Stores the events and acknowledgements in a dead worker's spool; returns the number of events that are left.
async fn drain_abandoned(app: &Arc<App>, id: SandboxId, dead: &DeadWorker) -> Result<i64> {
    let link = InProcessLink::new(app);
    match drain_spool(&dead.spool, id, &link, DRAIN_TIMEOUT).await {
        Ok(drained) => {
            if drained.events > 0 {
                tracing::info!(sandbox = %id, events = drained.events, "drained the spool of a dead worker");
            }
            Ok(drained.events_left)
        }
        // The sandbox was removed in between.
        Err(_) if !dead.spool.exists() => Ok(0),
        Err(error) => Err(Problem::internal(format!("failed to drain the spool of {id}: {error}"))),
    }
}
