//! Restarts: after a failure with unfinished work, the session continues in a new sandbox, or a person has to look.

use super::sandbox_plan::plan_from_last;
use super::{Work, continuous, create, inbox};
use crate::problem::Result;
use atoll_api::events::{EventData, SessionEscalated, SessionRestartPlanned};
use atoll_core::health::RestartMode;
use atoll_core::health::restarts::RestartVerdict;
use atoll_core::id::SandboxId;
use atoll_core::job::JobKind;
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::{EndPolicy, Reason, ResultsState, SandboxState, TurnState};
use atoll_core::session::SessionState;
use atoll_core::task::{FailureClass, classify_failure};
use atoll_store::sandboxes::SandboxRow;
use atoll_store::sessions::SessionRow;
use atoll_store::{health, jobs, messages, sandboxes, sessions, tasks};
use std::time::Duration;

/// Sender of the messages after a restart.
pub const HEALTH_SENDER: &str = "atoll:health";

/// True if the sandbox failed before its work was done. The caller asks before it ends a continuous loop.
pub async fn has_unfinished_work(work: &mut Work<'_>, session: &SessionRow, sandbox: &SandboxRow) -> Result<bool> {
    Ok(sandbox.end == EndPolicy::WhenDone
        || sandbox.status.turn_state() == TurnState::Open
        || messages::has_open_messages(work.tx, session.id).await?
        || continuous::is_live(work.tx, sandbox).await?)
}

/// Plans another sandbox for the session of a failed one, or escalates. The caller has written both rows. The dispatcher
/// repeats the sandboxes of tasks.
pub async fn plan_restart(work: &mut Work<'_>, session: &mut SessionRow, sandbox: &mut SandboxRow) -> Result<()> {
    let mode = sandbox.settings.health.and_then(|own| own.restart).unwrap_or(work.config.health.restart);
    let Some(reason) = sandbox.reason.clone().filter(|_| mode == RestartMode::OnFailure) else { return Ok(()) };
    if tasks::find_task_id(work.tx, sandbox.id).await?.is_some() {
        return Ok(());
    }
    let failure = classify_failure(&reason.code);
    let class = failure.class();
    let earlier = health::list_restarts(work.tx, session.id, work.steady).await?;
    let retries = work.config.orchestrator.retry_policy();
    let verdict = work.config.health.restart_policy().judge_failure(failure, &retries, &earlier, work.steady);
    let count = u32::try_from(earlier.len()).unwrap_or(u32::MAX);
    let delay = match verdict {
        RestartVerdict::Now => Duration::ZERO,
        RestartVerdict::After(delay) => delay,
        RestartVerdict::Escalate => return escalate(work, session, sandbox, class, reason, count).await,
    };
    let (session_id, delay_s) = (session.id, delay.as_secs());
    let planned = SessionRestartPlanned { session_id, class, delay_s, earlier: count };
    work.log(sandbox, vec![EventData::SessionRestartPlanned(planned).into_event(work.now)]).await?;
    sandboxes::update_sandbox(work.tx, sandbox).await?;
    jobs::schedule_job(work.tx, JobKind::Restart, sandbox.id, work.steady + delay).await?;
    work.out.jobs = true;
    Ok(())
}

/// Shows a person that the session needs them.
async fn escalate(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    class: FailureClass,
    reason: Reason,
    restarts: u32,
) -> Result<()> {
    session.attention = Some(reason.clone());
    session.updated_at = work.now;
    sessions::update_session(work.tx, session).await?;
    let escalated = SessionEscalated { session_id: session.id, class, reason, restarts };
    work.log(sandbox, vec![EventData::SessionEscalated(escalated).into_event(work.now)]).await?;
    Ok(sandboxes::update_sandbox(work.tx, sandbox).await?)
}

/// Shows a person that the next sandbox of a session cannot be created.
pub async fn escalate_refusal(work: &mut Work<'_>, id: SandboxId, detail: &str) -> Result<()> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    let class = classify_failure(sandbox.reason.as_ref().map_or("", |reason| &reason.code)).class();
    let restarts = health::list_restarts(work.tx, session.id, work.steady).await?.len();
    let reason = Reason::new("restart_refused", format!("the next sandbox cannot be created: {detail}"));
    escalate(work, &mut session, &mut sandbox, class, reason, u32::try_from(restarts).unwrap_or(u32::MAX)).await
}

/// What the restart of a session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartStep {
    /// The failed sandbox still has results, which the server has to take out first.
    TakeResults,
    /// The results are being taken out.
    Wait,
    /// The next sandbox can start.
    Create,
    /// A person was faster, or the session is closed.
    Nothing,
}

/// Decides what the restart of the session of a failed sandbox does next.
pub async fn next_step(work: &mut Work<'_>, id: SandboxId) -> Result<RestartStep> {
    let (session, sandbox) = work.lock_sandbox(id).await?;
    if session.state == SessionState::Closed || session.last_sandbox_id != Some(id) {
        return Ok(RestartStep::Nothing);
    }
    let has_results = sandbox.results == ResultsState::Pending && sandbox.provider_id.is_some();
    let has_failed_before = sandbox.reason.as_ref().is_some_and(|reason| reason.code.starts_with("results_"));
    Ok(match sandbox.state {
        SandboxState::Completing => RestartStep::Wait,
        SandboxState::Failed if has_results && !has_failed_before => RestartStep::TakeResults,
        SandboxState::Failed => RestartStep::Create,
        SandboxState::Pending | SandboxState::Creating | SandboxState::Running | SandboxState::Completed => {
            RestartStep::Nothing
        }
    })
}

/// Gives the session its next sandbox, on the same branch, and tells the agent what happened.
pub async fn create_successor(work: &mut Work<'_>, id: SandboxId) -> Result<()> {
    let (mut session, sandbox) = work.lock_sandbox(id).await?;
    // The next sandbox belongs to the same person, whose credentials its repository needs.
    let creator = sandbox.created_by.clone().unwrap_or_else(|| HEALTH_SENDER.to_owned());
    let plan = plan_from_last(work, &session, creator).await?;
    health::record_restart(work.tx, session.id, work.steady).await?;
    let created = create::create_next_sandbox(work, &mut session, plan).await?;
    let detail = sandbox.reason.map(|reason| reason.detail).unwrap_or_default();
    let content = format!(
        "Atoll: your sandbox failed: {detail}. You continue in a new one. It has your branch as it was taken out of the \
         old one; look at what is there, then continue with your task."
    );
    if created.sandbox.agent.is_some() {
        let mut session = super::sessions::lock_session(work, session.id).await?;
        inbox::queue_message(work, &mut session, continue_message(content)).await?;
    }
    Ok(())
}

/// The message that lets an agent continue after a restart.
pub fn continue_message(content: String) -> inbox::MessageDraft {
    inbox::MessageDraft {
        content,
        message_type: MessageType::System,
        delivery: Delivery::Steer,
        sender: Some(HEALTH_SENDER.to_owned()),
    }
}
