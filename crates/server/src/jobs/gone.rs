//! A worker on this machine is dead. What it had spooled is taken in, and the sandbox says what is so.

use super::back_off;
use crate::app::lifecycle;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::event::{NewEvent, kind};
use atoll_core::id::SandboxId;
use atoll_core::lifecycle::Trigger;
use atoll_core::provider::{Error, Exit};
use atoll_core::sandbox::{Reason, SandboxState};
use atoll_providers::inside::Remains;
use atoll_store::sandboxes;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// For all that one worker may have left.
const DRAIN: Duration = Duration::from_secs(120);

/// Until it is done, or the server stops: the next one finds it again.
pub(crate) async fn worker_gone(app: Arc<App>, id: SandboxId) {
    let mut stopping = app.stopping.clone();
    for attempt in 0.. {
        let Err(problem) = look_after(&app, id).await else { return };
        tracing::warn!(sandbox = %id, detail = %problem.detail, "could not take over from a dead worker; trying again");
        tokio::select! {
            () = tokio::time::sleep(back_off(attempt)) => {}
            _ = stopping.wait_for(|stop| *stop) => return,
        }
    }
}

async fn look_after(app: &Arc<App>, id: SandboxId) -> Result<()> {
    let row = app.read(move |tx| Box::pin(async move { Ok(sandboxes::get(tx, id).await?) })).await?;
    let Some(row) = row.filter(|row| row.provider.is_on_this_machine()) else { return Ok(()) };
    let providers = app.providers()?;
    let remains = match providers.remains(row.provider, id).await {
        Ok(remains) => Some(remains),
        Err(Error::Gone) => None,
        Err(error) => return Err(error.into()),
    };
    let left = match (&remains, row.drained) {
        (Some(remains), false) => drain(app, id, remains).await?,
        (Some(_), true) | (None, _) => 0,
    };
    let exit = remains.as_ref().map_or(Exit::Unknown, |remains| remains.exit);
    app.write(move |work| {
        Box::pin(async move {
            let (mut session, mut sandbox) = work.locked(id).await?;
            if left > 0 {
                let data =
                    json!({ "stream": sandbox.stream, "events": left, "detail": "a part of its spool can't be read" });
                work.log(&mut sandbox, vec![NewEvent::system(kind::WORKER_LOST, work.now, &data)]).await?;
                sandboxes::update(work.tx, &mut sandbox).await?;
            }
            match sandbox.state {
                SandboxState::Pending | SandboxState::Creating => {
                    let reason = reason(exit, "before it had said anything");
                    let (session, sandbox) = (&mut session, &mut sandbox);
                    if sandbox.state == SandboxState::Pending {
                        lifecycle::apply(work, session, sandbox, Trigger::ProviderAsked, None, None).await?;
                    }
                    lifecycle::apply(work, session, sandbox, Trigger::CreationFailed, Some(reason), None).await
                }
                SandboxState::Running => {
                    let reason = reason(exit, "in the middle of the work");
                    lifecycle::apply(work, &mut session, &mut sandbox, Trigger::WorkFailed, Some(reason), None).await
                }
                SandboxState::Completing => lifecycle::flushed(work, &mut session, &mut sandbox).await,
                SandboxState::Completed | SandboxState::Failed => Ok(()),
            }
        })
    })
    .await
}

fn reason(exit: Exit, when: &str) -> Reason {
    let detail = match exit {
        Exit::Exited { code } => format!("its worker ended with code {code} {when}"),
        Exit::Signalled { signal } => format!("its worker was killed by signal {signal} {when}"),
        Exit::OutOfMemory => format!("its worker ran out of memory {when}"),
        Exit::TimedOut | Exit::Unknown => format!("its worker died {when}; nobody saw how"),
    };
    Reason::new("worker_died", detail)
}

/// Takes in what the worker had spooled. Says how many events could not be.
async fn drain(app: &Arc<App>, id: SandboxId, remains: &Remains) -> Result<i64> {
    let dial = app.providers()?.linked().inward(id);
    let dial = dial.ok_or_else(|| Problem::new(crate::problem::Code::ShuttingDown, "the server is stopping"))?;
    match atoll_worker::drain::drain(&remains.spool, id, dial, DRAIN).await {
        Ok(drained) => {
            if drained.events > 0 {
                tracing::info!(sandbox = %id, events = drained.events, "took in what a dead worker had spooled");
            }
            Ok(drained.left)
        }
        // It was removed meanwhile, and nobody wanted what was in it.
        Err(_) if !remains.spool.exists() => Ok(0),
        Err(error) => Err(Problem::internal(format!("the spool of {id}: {error}"))),
    }
}
