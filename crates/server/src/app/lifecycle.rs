//! Applies triggers to a sandbox: the state machine's step, the row, the event and the jobs, in one transaction.

use super::{Work, branch_workflow, continuous, fence, restarts, task_work, traces};
use crate::metrics::record_seconds;
use crate::problem::Result;
use atoll_api::events::{EventData, SandboxPending, SandboxTransition, WorkerLost};
use atoll_core::agent_status::Signal;
use atoll_core::event::{EventSource, NewEvent};
use atoll_core::job::JobKind;
use atoll_core::lifecycle::{LifecycleEffect, Trigger, next};
use atoll_core::observation::Observation;
use atoll_core::provider::Capabilities;
use atoll_core::sandbox::{Activity, EndPolicy, Reason, ResultsState, SandboxState, TurnState};
use atoll_store::sandboxes::SandboxRow;
use atoll_store::sessions::SessionRow;
use atoll_store::{approvals, jobs, messages, sandboxes, sessions};
use std::time::Duration;

/// Added to a continuous loop's time limit for the work before and after the loop.
const LOOP_TIMEOUT_MARGIN: Duration = Duration::from_secs(600);

/// The event that reports the sandbox's current state.
fn state_event(sandbox: &SandboxRow) -> EventData {
    let SandboxRow { state, outcome, reason, .. } = sandbox;
    let transition = SandboxTransition { state: *state, outcome: *outcome, reason: reason.clone() };
    match state {
        SandboxState::Pending => EventData::SandboxPending(SandboxPending { state: *state }),
        SandboxState::Creating => EventData::SandboxCreating(transition),
        SandboxState::Running => EventData::SandboxRunning(transition),
        SandboxState::Completing => EventData::SandboxCompleting(transition),
        SandboxState::Completed => EventData::SandboxCompleted(transition),
        SandboxState::Failed => EventData::SandboxFailed(transition),
    }
}

/// Applies a trigger and writes both rows. The caller holds the session's lock.
pub async fn apply_trigger(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    trigger: Trigger,
    reason: Option<Reason>,
    actor: Option<String>,
) -> Result<()> {
    let step = next(sandbox.phase(), trigger)?;
    let is_failure = matches!(trigger, Trigger::WorkFailed | Trigger::CreationFailed | Trigger::SetupFailed);
    let is_unfinished = is_failure && restarts::has_unfinished_work(work, session, sandbox).await?;
    if sandbox.state == SandboxState::Running {
        continuous::record_sandbox_end(work, sandbox).await?;
    }
    sandbox.state = step.to.state;
    match step.to.state {
        SandboxState::Running if delivers_results(sandbox, &work.capabilities(sandbox.provider)) => {
            sandbox.results = ResultsState::Pending
        }
        // A person discarded them.
        SandboxState::Completed if sandbox.results == ResultsState::Pending => sandbox.results = ResultsState::Lost,
        SandboxState::Pending
        | SandboxState::Creating
        | SandboxState::Running
        | SandboxState::Completing
        | SandboxState::Completed
        | SandboxState::Failed => {}
    }
    if trigger == Trigger::FirstHeartbeat {
        let phase = [("phase", "total")];
        record_seconds(crate::metrics::CREATION_SECONDS, &phase, work.now.elapsed_since(sandbox.created_at));
        traces::record_worker_start(work, sandbox).await?;
    }
    sandbox.ending = step.to.pending_outcome;
    sandbox.apply_signal(Signal::StateEntered);
    sandbox.state_since = work.now;
    sandbox.work_at = Some(work.steady);
    sandbox.pause_cause = None;
    if step.outcome.is_some() {
        sandbox.outcome = step.outcome;
        sandbox.ended_at = Some(work.now);
    }
    if reason.is_some() {
        sandbox.reason = reason;
    }
    let source = if actor.is_some() { EventSource::User } else { EventSource::System };
    let event = state_event(sandbox).into_event(work.now).with_source(source, actor);
    work.log(sandbox, vec![event]).await?;
    sandboxes::update_sandbox(work.tx, sandbox).await?;
    if sandbox.state.has_ended() {
        traces::end_turn(work, sandbox, work.now, Some("sandbox_ended")).await?;
    }
    if sandbox.state.has_ended() && session.sandbox_id == Some(sandbox.id) {
        session.sandbox_id = None;
        session.updated_at = work.now;
        sessions::update_session(work.tx, session).await?;
        cancel_deadlines(work, sandbox).await?;
        if let Some(stream) = sandbox.stream {
            fence::release_leases(work, session, stream).await?;
        }
    }
    for effect in step.effects {
        schedule_effect(work, sandbox, effect).await?;
    }
    if sandbox.state == SandboxState::Failed && work.capabilities(sandbox.provider).runs_agents() {
        // The files stay for inspection; the processes only until the worker has flushed.
        jobs::schedule_job(work.tx, JobKind::FlushGrace, sandbox.id, work.steady + work.config.sandbox.flush_grace)
            .await?;
    }
    if is_unfinished {
        restarts::plan_restart(work, session, sandbox).await?;
    }
    work.out.states.push((sandbox.id, sandbox.state));
    if sandbox.state.has_ended() {
        task_work::record_sandbox_end(work, session, sandbox).await?;
    }
    Ok(())
}

/// Cancels the jobs of a sandbox that has ended.
async fn cancel_deadlines(work: &mut Work<'_>, sandbox: &SandboxRow) -> Result<()> {
    const OF_A_LIFE: [JobKind; 13] = [
        JobKind::Create,
        JobKind::CreateTimeout,
        JobKind::Timeout,
        JobKind::FlushGrace,
        JobKind::Results,
        JobKind::Validate,
        JobKind::ContinuousDeadline,
        JobKind::TaskWarning,
        JobKind::TaskInterrupt,
        JobKind::TaskEnd,
        JobKind::RecoverWorker,
        JobKind::EndIdle,
        JobKind::Wake,
    ];
    for kind in OF_A_LIFE {
        jobs::cancel_job(work.tx, kind, sandbox.id).await?;
    }
    Ok(())
}

/// The sandbox's time limit: the requested one, else the server's default for its `end`.
pub fn run_timeout(work: &Work<'_>, sandbox: &SandboxRow) -> Option<Duration> {
    let own_timeout = sandbox.settings.timeout_s.map(|seconds| Duration::from_secs(seconds.into()));
    // A continuous loop has its own limit, which must come first because its reason says more.
    let enough = sandbox
        .settings
        .continuous
        .as_ref()
        .map(|continuous| continuous.loop_limits().max_duration + LOOP_TIMEOUT_MARGIN);
    own_timeout.or(match sandbox.end {
        EndPolicy::WhenDone => work.config.sandbox.timeout.when_done,
        EndPolicy::Keep => work.config.sandbox.timeout.keep,
    }
    .map(|usual| enough.map_or(usual, |enough| usual.max(enough))))
}

async fn schedule_effect(work: &mut Work<'_>, sandbox: &SandboxRow, effect: LifecycleEffect) -> Result<()> {
    let (kind, after) = match effect {
        LifecycleEffect::StartCreateTimeout => {
            (JobKind::CreateTimeout, Some(work.config.sandbox.create_timeout.for_provider(sandbox.provider)))
        }
        LifecycleEffect::StartSandboxTimeout => (JobKind::Timeout, run_timeout(work, sandbox)),
        LifecycleEffect::ExportResults => (JobKind::FlushGrace, Some(work.config.sandbox.flush_grace)),
        LifecycleEffect::RemoveNow => (JobKind::Remove, Some(Duration::ZERO)),
        LifecycleEffect::RemoveLater => (JobKind::Remove, Some(work.config.sandbox.keep_failed_for)),
        LifecycleEffect::StartDrainTimeout => (JobKind::EndDrain, Some(work.config.sandbox.drain_for)),
    };
    if let Some(after) = after {
        jobs::schedule_job(work.tx, kind, sandbox.id, work.steady + after).await?;
        work.out.jobs = true;
    }
    Ok(())
}

/// Applies what a worker's event says about the sandbox. The caller writes the row.
pub async fn apply_observation(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    observation: Observation,
    turn: Option<i64>,
    data: &str,
) -> Result<()> {
    let shows_work = match observation {
        Observation::TurnStarted => true,
        Observation::Activity(activity) => {
            activity == Activity::Working && sandbox.status.activity() != Activity::Working
        }
        Observation::NoEffect | Observation::TurnEnded | Observation::AgentFailed | Observation::WorkerExited => false,
    };
    if shows_work {
        task_work::record_work(work, sandbox).await?;
    }
    match observation {
        Observation::NoEffect => {}
        Observation::TurnStarted => {
            sandbox.apply_signal(Signal::TurnStarted { turn });
            if sandbox.state == SandboxState::Running {
                continuous::record_run_start(work, sandbox).await?;
            }
        }
        Observation::TurnEnded => {
            sandbox.apply_signal(Signal::TurnCompleted { turn });
            work.out.inboxes.push(session.id);
            finish_if_done(work, session, sandbox).await?;
        }
        Observation::Activity(activity) => {
            let was_in_turn = sandbox.status.turn_state() == TurnState::Open;
            let has_open_approval = activity == Activity::Working
                && sandbox.status.activity() == Activity::WaitingApproval
                && approvals::has_open_approvals(work.tx, sandbox.id).await?;
            let is_between_runs =
                activity == Activity::WaitingMessage && continuous::is_between_runs(work.tx, sandbox).await?;
            sandbox.apply_signal(Signal::EventReceived { activity, has_open_approval, is_between_runs });
            if was_in_turn && sandbox.status.turn_state() != TurnState::Open {
                work.out.inboxes.push(session.id);
            }
        }
        Observation::AgentFailed => {
            if sandbox.state == SandboxState::Running {
                let reason = failure_reason(data);
                if continuous::record_run_failure(work, session, sandbox, &reason).await? {
                    return Ok(());
                }
                apply_trigger(work, session, sandbox, Trigger::WorkFailed, Some(reason), None).await?;
            }
        }
        Observation::WorkerExited => match sandbox.state {
            SandboxState::Completing => finish_flush(work, session, sandbox).await?,
            SandboxState::Running => {
                sandbox.worker_has_exited = true;
                sandbox.apply_signal(Signal::WorkerLeft);
            }
            SandboxState::Pending | SandboxState::Creating | SandboxState::Completed | SandboxState::Failed => {}
        },
    }
    Ok(())
}

/// Reads the failure reason from the agent's event.
fn failure_reason(data: &str) -> Reason {
    let failure: serde_json::Value = serde_json::from_str(data).unwrap_or_default();
    let word = |key: &str| failure.get(key).and_then(|value| value.as_str()).map(|text| truncate_text(text, 500));
    // Codes that Atoll's worker reports. Other texts come from the agent and go into the detail.
    const KNOWN: [&str; 5] = ["out_of_memory", "agent_crashed", "agent_exited", "agent_not_started", "service_failed"];
    let said_reason = word("reason").unwrap_or_default();
    let code = KNOWN.into_iter().find(|known| said_reason == *known).unwrap_or("agent_failed");
    let detail = word("error").or_else(|| word("detail")).or_else(|| word("reason"));
    Reason::new(code, detail.unwrap_or_else(|| "the agent reported failure".into()))
}

pub fn truncate_text(text: &str, most: usize) -> String {
    text.chars().filter(|c| *c != '\0').take(most).collect()
}

/// Completes the sandbox, or starts its checks, if the turn is done and no message is queued or leased.
pub async fn finish_if_done(work: &mut Work<'_>, session: &mut SessionRow, sandbox: &mut SandboxRow) -> Result<()> {
    let idle = sandbox.state == SandboxState::Running && sandbox.status.is_turn_done();
    let matters = sandbox.end == EndPolicy::WhenDone || sandbox.settings.continuous.is_some();
    if !idle || !matters || messages::has_open_messages(work.tx, session.id).await? {
        return Ok(());
    }
    if continuous::record_run_end(work, sandbox).await? || sandbox.end == EndPolicy::Keep {
        return Ok(());
    }
    apply_trigger(work, session, sandbox, Trigger::WorkDone, None, None).await
}

/// Skips the flush if the worker has already exited cleanly.
pub async fn complete_if_worker_left(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
) -> Result<()> {
    if sandbox.state == SandboxState::Completing && sandbox.worker_has_exited {
        finish_flush(work, session, sandbox).await?;
    }
    Ok(())
}

/// Continues after the worker flushed: schedules the results job, or completes the sandbox.
pub async fn finish_flush(work: &mut Work<'_>, session: &mut SessionRow, sandbox: &mut SandboxRow) -> Result<()> {
    if sandbox.results != ResultsState::Pending {
        if branch_workflow::holds_sandbox(work.tx, sandbox).await? {
            return Ok(());
        }
        return apply_trigger(work, session, sandbox, Trigger::ResultsExported, None, None).await;
    }
    jobs::cancel_job(work.tx, JobKind::FlushGrace, sandbox.id).await?;
    // The worker's goodbye and its exit both lead here; the results job runs once.
    jobs::schedule_job_if_absent(work.tx, JobKind::Results, sandbox.id, work.steady).await?;
    work.out.jobs = true;
    Ok(())
}

/// True if the sandbox's commits are exported as a branch at the end.
pub fn delivers_results(sandbox: &SandboxRow, capabilities: &Capabilities) -> bool {
    capabilities.runs_agents() && sandbox.settings.repo.is_some() && sandbox.settings.deliver != Some(false)
}

/// The event that reports a possible loss of the worker's last events.
pub fn worker_lost_event(work: &Work<'_>, sandbox: &SandboxRow, last_key: i64, detail: &str) -> NewEvent {
    let (stream, detail) = (sandbox.stream, Some(detail.to_owned()));
    let lost = WorkerLost { stream, last_key: Some(last_key), detail, ..WorkerLost::default() };
    EventData::WorkerLost(lost).into_event(work.now)
}
