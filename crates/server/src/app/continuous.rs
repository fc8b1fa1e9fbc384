//! Continuous mode: `atoll_core::continuous::next` decides; this module stores the progress, logs events and schedules jobs.

use super::inbox::{self, MessageDraft};
use super::{Work, lifecycle};
use crate::problem::Result;
use atoll_api::events::{
    ContinuousCheck, ContinuousChecked, ContinuousPassed, ContinuousRunFailed, ContinuousStarted, ContinuousStopped,
    ContinuousValidating, EventData,
};
use atoll_core::agent_status::Signal;
use atoll_core::continuous::check::{self, CheckResult};
use atoll_core::continuous::{
    CheckVerdict, LoopEffect, LoopInput, LoopMeasurements, LoopPhase, LoopProgress, StopReason, describe_stop, next,
};
use atoll_core::event::NewEvent;
use atoll_core::id::SandboxId;
use atoll_core::job::JobKind;
use atoll_core::lifecycle::Trigger;
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::{EndPolicy, Reason, SandboxState, TurnState};
use atoll_store::Tx;
use atoll_store::continuous::{self as rows, ContinuousRecord};
use atoll_store::jobs;
use atoll_store::messages;
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::SessionRow;

/// The sender of the messages that report failed checks.
const MESSAGE_SENDER: &str = "atoll";
/// Longest check name in a list.
const MAX_CHECK_NAME_CHARS: usize = 200;
/// Longest command output stored with the sandbox; the event log has more.
const MAX_STORED_OUTPUT_BYTES: usize = 1024;

const fn loop_measurements(work: &Work<'_>, sandbox: &SandboxRow) -> LoopMeasurements {
    LoopMeasurements { steady_now: work.steady, cost_micros: sandbox.cost_model_micros }
}

/// True while checks run or a back-off pause lasts: the agent is idle but the work goes on.
pub async fn is_between_runs(tx: &mut dyn Tx, sandbox: &SandboxRow) -> Result<bool> {
    if sandbox.settings.continuous.is_none() {
        return Ok(false);
    }
    let phase = rows::find_continuous_record(tx, sandbox.id).await?.map(|record| record.progress.phase);
    Ok(matches!(phase, Some(LoopPhase::Validating | LoopPhase::Resting)))
}

/// True until the checks pass or the loop stops.
pub async fn is_live(tx: &mut dyn Tx, sandbox: &SandboxRow) -> Result<bool> {
    if sandbox.settings.continuous.is_none() {
        return Ok(false);
    }
    Ok(rows::find_continuous_record(tx, sandbox.id).await?.is_some_and(|record| record.progress.is_live()))
}

/// Records that a turn started. The first turn starts the loop.
pub async fn record_run_start(work: &mut Work<'_>, sandbox: &mut SandboxRow) -> Result<()> {
    advance_loop(work, sandbox, LoopInput::RunBegan, None).await.map(drop)
}

/// Records that the turn ended with an empty queue. Returns whether the loop continues.
pub async fn record_run_end(work: &mut Work<'_>, sandbox: &mut SandboxRow) -> Result<bool> {
    let Some((record, _)) = advance_loop(work, sandbox, LoopInput::RunEnded, None).await? else { return Ok(false) };
    if record.progress.is_live() {
        sandbox.apply_signal(Signal::LoopContinues);
        sandboxes::update_sandbox(work.tx, sandbox).await?;
    }
    Ok(record.progress.is_live())
}

/// Records that the agent failed. Returns whether the loop handles the failure.
pub async fn record_run_failure(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    reason: &Reason,
) -> Result<bool> {
    // Retrying does not help an agent that cannot start.
    let is_start_failure = matches!(reason.code.as_str(), "agent_not_started" | "service_failed");
    if is_start_failure || !is_live(work.tx, sandbox).await? {
        return Ok(false);
    }
    sandbox.apply_signal(Signal::LoopRunFailed);
    let error = Some(reason.detail.clone());
    let Some((record, effects)) = advance_loop(work, sandbox, LoopInput::RunFailed, error).await? else {
        return Ok(false);
    };
    sandboxes::update_sandbox(work.tx, sandbox).await?;
    work.out.inboxes.push(session.id);
    if effects.contains(&LoopEffect::EndLoop) {
        finish_loop(work, session, sandbox, &record).await?;
    }
    Ok(true)
}

/// Ends the loop because a person interrupted the agent.
pub async fn record_interrupt(work: &mut Work<'_>, sandbox: &mut SandboxRow) -> Result<()> {
    let Some((_, effects)) = advance_loop(work, sandbox, LoopInput::Interrupted, None).await? else { return Ok(()) };
    // The interrupted check did not pass, so the sandbox must not end as done: it waits for the person.
    if effects.contains(&LoopEffect::EndLoop) {
        sandbox.apply_signal(Signal::LoopInterrupted);
    }
    set_waiting(work, sandbox).await
}

/// Ends the loop because the sandbox leaves `running`. The caller writes the row.
pub async fn record_sandbox_end(work: &mut Work<'_>, sandbox: &mut SandboxRow) -> Result<()> {
    advance_loop(work, sandbox, LoopInput::SandboxEnding, None).await.map(drop)
}

/// Ends the back-off pause after a failed run and tells the agent to continue.
pub async fn continue_after_rest(work: &mut Work<'_>, id: SandboxId) -> Result<()> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    let error = rows::find_continuous_record(work.tx, id).await?.and_then(|record| record.error).unwrap_or_default();
    let Some((record, effects)) = advance_loop(work, &mut sandbox, LoopInput::BackOffEnded, None).await? else {
        return Ok(());
    };
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    if effects.contains(&LoopEffect::PromptAgent) {
        let most = loop_limits(&sandbox).max_iterations;
        let content = check::failed_run_message(&error, record.progress.iteration.saturating_sub(1), most);
        queue_system_message(work, &mut session, content).await?;
    }
    Ok(())
}

/// Stores the results of a round of checks. Does nothing if a new message arrived meanwhile or the loop is over.
pub async fn record_checks(work: &mut Work<'_>, id: SandboxId, round: u32, checks: Vec<CheckResult>) -> Result<()> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    let still = rows::find_continuous_record(work.tx, id)
        .await?
        .is_some_and(|record| record.progress.phase == LoopPhase::Validating && record.progress.round == round);
    let rests = sandbox.state == SandboxState::Running && sandbox.status.is_turn_done();
    if !still || !rests {
        return Ok(());
    }
    if messages::has_open_messages(work.tx, session.id).await? {
        // The message starts another run; the checks run again after it.
        record_run_start(work, &mut sandbox).await?;
        return Ok(sandboxes::update_sandbox(work.tx, &mut sandbox).await?);
    }
    let verdict = check::combine_verdicts(&checks);
    log_checks(work, &mut sandbox, round, verdict, &checks).await?;
    let advanced = advance_loop(work, &mut sandbox, LoopInput::ChecksFinished { round, verdict }, None).await?;
    let Some((mut record, effects)) = advanced else { return Ok(()) };
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    let text = check::failed_checks_message(
        &checks,
        record.progress.iteration.saturating_sub(1),
        loop_limits(&sandbox).max_iterations,
    );
    record.checks = checks.into_iter().map(truncate_check).collect();
    rows::put_continuous_record(work.tx, id, &record).await?;
    if effects.contains(&LoopEffect::EndLoop) {
        finish_loop(work, &mut session, &mut sandbox, &record).await?;
    }
    if effects.contains(&LoopEffect::PromptAgent) {
        queue_system_message(work, &mut session, text).await?;
    }
    Ok(())
}

/// Ends the loop at its time limit, even during a run.
pub async fn end_at_deadline(work: &mut Work<'_>, id: SandboxId) -> Result<()> {
    end_loop_early(work, id, LoopInput::DeadlineReached, "The time for this task is over.").await
}

/// Ends the loop because the gateway refused a model request that could exceed `limit`.
pub async fn end_at_cost_limit(work: &mut Work<'_>, id: SandboxId, limit: i64) -> Result<()> {
    let (_, sandbox) = work.lock_sandbox(id).await?;
    // A loop that started meanwhile has its own cost limit.
    if cost_limit(work.tx, &sandbox).await? != Some(limit) {
        return Ok(());
    }
    end_loop_early(work, id, LoopInput::CostLimitReached, "The money for this task is used up.").await
}

/// The total cost at which the loop ends, also before the loop's start is recorded.
pub async fn cost_limit(tx: &mut dyn Tx, sandbox: &SandboxRow) -> Result<Option<i64>> {
    if sandbox.settings.continuous.is_none() {
        return Ok(None);
    }
    let limits = loop_limits(sandbox);
    Ok(match rows::find_continuous_record(tx, sandbox.id).await? {
        Some(record) => record.progress.max_total_cost_micros(&limits),
        None => limits.max_cost_micros,
    })
}

/// Ends the loop and interrupts its current run.
async fn end_loop_early(work: &mut Work<'_>, id: SandboxId, input: LoopInput, words: &str) -> Result<()> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    let Some((record, effects)) = advance_loop(work, &mut sandbox, input, None).await? else { return Ok(()) };
    if !effects.contains(&LoopEffect::EndLoop) {
        return Ok(());
    }
    sandboxes::update_sandbox(work.tx, &mut sandbox).await?;
    let in_turn = sandbox.status.turn_state() == TurnState::Open;
    finish_loop(work, &mut session, &mut sandbox, &record).await?;
    if sandbox.state == SandboxState::Running && in_turn {
        let content = words.to_owned();
        let sender = Some(MESSAGE_SENDER.to_owned());
        let draft = MessageDraft { content, message_type: MessageType::Interrupt, delivery: Delivery::Steer, sender };
        inbox::queue_message(work, &mut session, draft).await?;
    }
    Ok(())
}

fn loop_limits(sandbox: &SandboxRow) -> atoll_core::continuous::LoopLimits {
    sandbox.settings.continuous.clone().unwrap_or_default().loop_limits()
}

/// Advances the state machine by one input: stores the record, logs events and schedules jobs. The caller sends messages,
/// ends the sandbox and writes the row.
async fn advance_loop(
    work: &mut Work<'_>,
    sandbox: &mut SandboxRow,
    input: LoopInput,
    error: Option<String>,
) -> Result<Option<(ContinuousRecord, Vec<LoopEffect>)>> {
    if sandbox.settings.continuous.is_none() {
        return Ok(None);
    }
    let (here, limits) = (loop_measurements(work, sandbox), loop_limits(sandbox));
    let before = match rows::find_continuous_record(work.tx, sandbox.id).await? {
        Some(record) => record,
        // The first model request of a run can be recorded before the run's start.
        None if matches!(input, LoopInput::RunBegan | LoopInput::RunEnded | LoopInput::CostLimitReached) => {
            // For the same reason, count the sandbox's whole cost.
            let progress = LoopProgress::start_loop(LoopMeasurements { cost_micros: 0, ..here });
            let record = ContinuousRecord { progress, checks: Vec::new(), error: None };
            record_loop_start(work, sandbox).await?;
            record
        }
        None => return Ok(None),
    };
    let (progress, effects) = next(&before.progress, input, here, &limits);
    if before.progress.phase != progress.phase && !before.progress.is_live() {
        record_loop_start(work, sandbox).await?;
    }
    let record = ContinuousRecord { progress, error: error.or(before.error), checks: before.checks };
    work.out.tasks.push((sandbox.id, record.progress.max_total_cost_micros(&limits)));
    rows::put_continuous_record(work.tx, sandbox.id, &record).await?;
    if let Some(event) = loop_event(work, sandbox, &record, input, &effects) {
        work.log(sandbox, vec![event]).await?;
    }
    for effect in &effects {
        match effect {
            LoopEffect::RunChecks => jobs::schedule_job(work.tx, JobKind::Validate, sandbox.id, work.steady).await?,
            LoopEffect::BackOff(pause) => {
                jobs::schedule_job(work.tx, JobKind::Validate, sandbox.id, work.steady + *pause).await?
            }
            LoopEffect::CancelChecks => {
                jobs::cancel_job(work.tx, JobKind::Validate, sandbox.id).await?;
                // Makes the running check job look at the phase again.
                work.out.states.push((sandbox.id, sandbox.state));
            }
            LoopEffect::EndLoop => jobs::cancel_job(work.tx, JobKind::ContinuousDeadline, sandbox.id).await?,
            LoopEffect::PromptAgent => {}
        }
    }
    work.out.jobs |= !effects.is_empty();
    Ok(Some((record, effects)))
}

async fn record_loop_start(work: &mut Work<'_>, sandbox: &mut SandboxRow) -> Result<()> {
    let Some(settings) = sandbox.settings.continuous.clone() else { return Ok(()) };
    let limits = settings.loop_limits();
    let started = EventData::ContinuousStarted(ContinuousStarted {
        checks: settings.checks.clone().unwrap_or_default(),
        require: settings.requirements(lifecycle::delivers_results(sandbox, &work.capabilities(sandbox.provider))),
        iterations: limits.max_iterations,
        errors: limits.max_errors,
        duration_s: limits.max_duration.as_secs(),
        cost_usd: settings.cost_usd,
    });
    work.log(sandbox, vec![started.into_event(work.now)]).await?;
    let due = work.steady + limits.max_duration;
    jobs::schedule_job(work.tx, JobKind::ContinuousDeadline, sandbox.id, due).await?;
    work.out.jobs = true;
    Ok(())
}

fn loop_event(
    work: &Work<'_>,
    sandbox: &SandboxRow,
    record: &ContinuousRecord,
    input: LoopInput,
    effects: &[LoopEffect],
) -> Option<NewEvent> {
    let progress = &record.progress;
    let limits = loop_limits(sandbox);
    let iteration = progress.iteration;
    let data = if let Some(reason) = progress.stopped.filter(|_| effects.contains(&LoopEffect::EndLoop)) {
        let detail = describe_stop(reason, progress, &limits);
        let last_error = record.error.clone().filter(|_| reason == StopReason::Errors);
        let errors = progress.errors;
        EventData::ContinuousStopped(ContinuousStopped { reason, detail, iteration, errors, last_error })
    } else if effects.contains(&LoopEffect::EndLoop) {
        EventData::ContinuousPassed(ContinuousPassed { iteration })
    } else if effects.contains(&LoopEffect::RunChecks) {
        let (iterations, round) = (limits.max_iterations, progress.round);
        EventData::ContinuousValidating(ContinuousValidating { iteration, iterations, round })
    } else if input == LoopInput::RunFailed && !effects.is_empty() {
        let (errors, errors_limit, error) = (progress.errors, limits.max_errors, record.error.clone());
        EventData::ContinuousRunFailed(ContinuousRunFailed { iteration, errors, errors_limit, error })
    } else {
        return None;
    };
    Some(data.into_event(work.now))
}

async fn log_checks(
    work: &mut Work<'_>,
    sandbox: &mut SandboxRow,
    round: u32,
    verdict: CheckVerdict,
    checks: &[CheckResult],
) -> Result<()> {
    let mut events = Vec::new();
    for check in checks {
        let check = EventData::ContinuousCheck(ContinuousCheck { check: check.clone(), round });
        events.push(check.into_event(work.now));
    }
    let named = |expected: CheckVerdict| -> Vec<String> {
        let some = checks.iter().filter(|check| check.verdict == expected);
        some.map(|check| lifecycle::truncate_text(&check.name, MAX_CHECK_NAME_CHARS)).collect()
    };
    let checked = EventData::ContinuousChecked(ContinuousChecked {
        round,
        verdict,
        passed: named(CheckVerdict::Passed).len(),
        failed: named(CheckVerdict::Failed),
        unknown: named(CheckVerdict::Unknown),
    });
    events.push(checked.into_event(work.now));
    work.log(sandbox, events).await
}

fn truncate_check(check: CheckResult) -> CheckResult {
    let output = check::last_bytes(&check.output, MAX_STORED_OUTPUT_BYTES).to_owned();
    CheckResult { name: lifecycle::truncate_text(&check.name, MAX_CHECK_NAME_CHARS), output, ..check }
}

async fn queue_system_message(work: &mut Work<'_>, session: &mut SessionRow, content: String) -> Result<()> {
    let sender = Some(MESSAGE_SENDER.to_owned());
    let draft = MessageDraft { content, message_type: MessageType::System, delivery: Delivery::Queue, sender };
    inbox::queue_message(work, session, draft).await.map(drop)
}

/// Applies the end of the loop to the sandbox: it completes, fails or waits, depending on `end`.
async fn finish_loop(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    record: &ContinuousRecord,
) -> Result<()> {
    if sandbox.state != SandboxState::Running {
        return Ok(());
    }
    let stop = match record.progress.stopped {
        None if sandbox.end == EndPolicy::WhenDone => {
            return lifecycle::apply_trigger(work, session, sandbox, Trigger::WorkDone, None, None).await;
        }
        None | Some(StopReason::Interrupted | StopReason::SandboxEnded) => return set_waiting(work, sandbox).await,
        Some(
            stop @ (StopReason::Iterations
            | StopReason::Cost
            | StopReason::Duration
            | StopReason::Errors
            | StopReason::Undecided),
        ) => stop,
    };
    let mut detail = describe_stop(stop, &record.progress, &loop_limits(sandbox));
    if let (StopReason::Errors, Some(error)) = (stop, &record.error) {
        detail = format!("{detail}; the last one: {error}");
    }
    let reason = Some(Reason::new(&format!("continuous_{stop}"), lifecycle::truncate_text(&detail, 500)));
    match (sandbox.end, stop) {
        (EndPolicy::WhenDone, _) => {
            lifecycle::apply_trigger(work, session, sandbox, Trigger::WorkUnfinished, reason, None).await?;
            lifecycle::complete_if_worker_left(work, session, sandbox).await
        }
        (EndPolicy::Keep, StopReason::Errors) => {
            lifecycle::apply_trigger(work, session, sandbox, Trigger::WorkFailed, reason, None).await
        }
        (EndPolicy::Keep, _) => set_waiting(work, sandbox).await,
    }
}

async fn set_waiting(work: &mut Work<'_>, sandbox: &mut SandboxRow) -> Result<()> {
    sandbox.apply_signal(Signal::LoopEnded);
    Ok(sandboxes::update_sandbox(work.tx, sandbox).await?)
}
