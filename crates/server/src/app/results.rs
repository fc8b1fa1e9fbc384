//! Ending a sandbox: stop, results, removal.

use super::{Work, continuous, lifecycle};
use crate::problem::{Code, Problem, Result};
use atoll_core::id::SandboxId;
use atoll_core::job::JobKind;
use atoll_core::lifecycle::Trigger;
use atoll_core::sandbox::{Reason, Results, SandboxState, TakeResults, TurnState};
use atoll_store::jobs;
use atoll_store::sandboxes::{self, Sandbox};

/// A person ends it.
pub async fn stop(work: &mut Work<'_>, id: SandboxId, choice: TakeResults, actor: String) -> Result<Sandbox> {
    let (mut session, mut sandbox) = work.locked(id).await?;
    let work_was_done = sandbox.turn_state == TurnState::Done && !continuous::is_live(work.tx, &sandbox).await?;
    let trigger = match choice {
        TakeResults::Take => Trigger::StopTaking { work_was_done },
        TakeResults::Discard => Trigger::StopDiscarding { work_was_done },
    };
    let already = match (sandbox.state, choice) {
        (SandboxState::Completed | SandboxState::Failed, _) => true,
        (SandboxState::Completing, TakeResults::Take) => true,
        (SandboxState::Completing, TakeResults::Discard) => false,
        (SandboxState::Pending | SandboxState::Creating | SandboxState::Running, _) => false,
    };
    if !already {
        let reason = Reason::new("stopped", "a person stopped it");
        lifecycle::apply(work, &mut session, &mut sandbox, trigger, Some(reason), Some(actor)).await?;
        lifecycle::complete_if_left(work, &mut session, &mut sandbox).await?;
    }
    Ok(sandbox)
}

/// Takes out what is there. Without a repository nothing is kept that is not sent already; with one,
/// a job makes the branch.
pub async fn take(work: &mut Work<'_>, id: SandboxId, actor: String) -> Result<Sandbox> {
    let (mut session, mut sandbox) = work.locked(id).await?;
    match sandbox.state {
        SandboxState::Running | SandboxState::Completing | SandboxState::Completed => {}
        SandboxState::Pending | SandboxState::Creating => {
            return Err(Problem::new(Code::IllegalTransition, "the sandbox has not started yet")
                .with("state", sandbox.state.as_str()));
        }
        SandboxState::Failed => {
            if sandbox.provider_id.is_none() {
                return Err(Problem::new(Code::SandboxGone, "nothing is left of it to take results from"));
            }
            let code = sandbox.reason.as_ref().map(|reason| reason.code.clone()).unwrap_or_default();
            let results_had_failed = code.starts_with("results_");
            let recover = Trigger::Recover { results_had_failed };
            lifecycle::apply(work, &mut session, &mut sandbox, recover, None, Some(actor.clone())).await?;
            if sandbox.results == Results::Pending {
                lifecycle::flushed(work, &mut session, &mut sandbox).await?;
            } else {
                sandbox.results = Results::Taken;
                lifecycle::apply(work, &mut session, &mut sandbox, Trigger::ResultsOut, None, Some(actor)).await?;
            }
        }
    }
    Ok(sandbox)
}

/// Removes it at its provider; row, events and blobs stay.
pub async fn remove(work: &mut Work<'_>, id: SandboxId, force: bool, actor: String) -> Result<Sandbox> {
    let (mut session, mut sandbox) = work.locked(id).await?;
    if sandbox.results == Results::Pending && !force {
        return Err(Problem::new(Code::ResultsPending, "take them out first, or say ?force=true to lose them"));
    }
    if sandbox.state.is_live() {
        let work_was_done = sandbox.turn_state == TurnState::Done && !continuous::is_live(work.tx, &sandbox).await?;
        let trigger = Trigger::StopDiscarding { work_was_done };
        let reason = Reason::new("removed", "a person removed it");
        lifecycle::apply(work, &mut session, &mut sandbox, trigger, Some(reason), Some(actor)).await?;
    } else {
        if sandbox.results == Results::Pending {
            sandbox.results = Results::Lost;
            sandboxes::update(work.tx, &mut sandbox).await?;
        }
        jobs::put(work.tx, JobKind::Remove, id, work.steady).await?;
        work.out.jobs = true;
    }
    Ok(sandbox)
}
