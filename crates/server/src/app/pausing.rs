//! A sandbox that stands still, and one that goes on: what the row and the log say of it. The
//! provider was asked before.

use super::Work;
use crate::problem::{Code, Problem, Result};
use atoll_core::event::{NewEvent, Source};
use atoll_core::id::SandboxId;
use atoll_core::job::JobKind;
use atoll_core::sandbox::{Activity, SandboxState, TurnState};
use atoll_store::jobs;
use atoll_store::sandboxes::{self, Sandbox};
use serde_json::json;

/// Only a running sandbox can be paused, and only then go on.
pub fn check(sandbox: &Sandbox) -> Result<()> {
    match sandbox.state {
        SandboxState::Running => Ok(()),
        SandboxState::Pending
        | SandboxState::Creating
        | SandboxState::Completing
        | SandboxState::Completed
        | SandboxState::Failed => {
            let detail = format!("the sandbox is {}, and only a running one can be paused", sandbox.state);
            Err(Problem::new(Code::IllegalTransition, detail).with("state", sandbox.state.as_str()))
        }
    }
}

/// Nothing can be run in one that stands still.
pub fn refuse_paused(sandbox: &Sandbox) -> Result<()> {
    if sandbox.state == SandboxState::Running && sandbox.activity == Activity::Paused {
        return Err(Problem::new(
            Code::SandboxPaused,
            "the sandbox is paused: nothing runs in it and nothing is taken from it",
        ));
    }
    Ok(())
}

pub async fn paused(work: &mut Work<'_>, id: SandboxId, actor: String) -> Result<Sandbox> {
    change(work, id, Activity::Paused, "sandbox.paused", actor).await
}

pub async fn resumed(work: &mut Work<'_>, id: SandboxId, actor: String) -> Result<Sandbox> {
    let (_, sandbox) = work.locked(id).await?;
    let activity = match (sandbox.limit_paused, sandbox.turn_state) {
        (Some(_), _) => Activity::LimitPaused,
        (None, TurnState::Open) => Activity::Working,
        (None, TurnState::Idle | TurnState::Done) => Activity::WaitingMessage,
    };
    if sandbox.activity != Activity::Paused {
        return Ok(sandbox);
    }
    change(work, id, activity, "sandbox.resumed", actor).await
}

async fn change(
    work: &mut Work<'_>,
    id: SandboxId,
    activity: Activity,
    event_type: &'static str,
    actor: String,
) -> Result<Sandbox> {
    let (_, mut sandbox) = work.locked(id).await?;
    if sandbox.state != SandboxState::Running || sandbox.activity == activity {
        return Ok(sandbox);
    }
    // Its time stands with it.
    match activity {
        Activity::Paused => jobs::hold(work.tx, JobKind::Timeout, id, work.steady).await?,
        _ => jobs::go_on(work.tx, JobKind::Timeout, id, work.steady).await?,
    }
    // A worker that stood still was not silent.
    sandbox.last_heartbeat = sandbox.last_heartbeat.map(|_| work.now);
    work.out.jobs = true;
    sandbox.activity = activity;
    sandbox.updated_at = work.now;
    let event = NewEvent::system(event_type, work.now, &json!({ "activity": activity }));
    work.log(&mut sandbox, vec![event.by(Source::User, Some(actor))]).await?;
    sandboxes::update(work.tx, &mut sandbox).await?;
    work.out.states.push((sandbox.id, sandbox.state));
    Ok(sandbox)
}
