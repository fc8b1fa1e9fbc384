//! Moves tasks: `core::task` decides; this module stores the step, its effects and its events in the transaction of what
//! caused it.
//!
//! A transaction that locks a session and a task locks the session first.

use super::inbox::{self, MessageDraft};
use super::{Work, lifecycle, results};
use crate::problem::{Code, Problem, Result};
use atoll_api::events::{EventData, TaskProgress, TaskSetback, TaskTimeLeft};
use atoll_core::id::{SandboxId, TaskId};
use atoll_core::job::JobKind;
use atoll_core::lifecycle::Trigger;
use atoll_core::message::{Delivery, MessageType};
use atoll_core::sandbox::{Outcome, Reason, ResultsState, SandboxState};
use atoll_core::task::task_state::IllegalTaskStep;
use atoll_core::task::task_timing::timeout_warning;
use atoll_core::task::{
    DeadlineLevel, Failure, FailureClass, FailureVerdict, PickUpFact, Standing, TASKS_SENDER, TaskEffect, TaskState,
    TaskTrigger, TaskWait, TimeoutPlan, TimeoutStep, classify_failure, decide_failure, next,
};
use atoll_store::jobs;
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::SessionRow;
use atoll_store::task_queue;
use atoll_store::tasks::{self, TaskAttempt, TaskRow};
use std::time::Duration;

/// Tasks that one transaction releases when files become free. Further ones follow at the next look of the dispatcher.
const MAX_RELEASED_WAITERS: i64 = 100;
/// Attempts that a decision about retries looks at; more than a task can have between two restarts.
const MAX_COUNTED_ATTEMPTS: i64 = 50;

impl From<IllegalTaskStep> for Problem {
    fn from(error: IllegalTaskStep) -> Self {
        Self::new(Code::IllegalTransition, format!("the task is {}", error.from)).with("state", error.from.as_str())
    }
}

/// Applies a trigger, writes the task and runs the effects on other tasks. Returns the sandbox that the caller must end.
pub async fn apply_task_trigger(
    work: &mut Work<'_>,
    task: &mut TaskRow,
    trigger: TaskTrigger,
    pause_reason: TaskWait,
) -> Result<Option<SandboxId>> {
    let step = next(task.phase, trigger)?;
    if step.to == task.phase {
        return Ok(None);
    }
    if step.to.state != task.phase.state {
        task.state_since = work.now;
    }
    if !step.to.state.is_queued() {
        (task.wait, task.available_at, task.level_due_at, task.holder_id) = (None, None, None, None);
    }
    if step.to.state != TaskState::Claiming {
        (task.claimed_by, task.claim_expires_at) = (None, None);
    }
    task.details.ended_at = step.to.state.has_ended().then_some(work.now);
    if step.effects.contains(&TaskEffect::StartTimeout) {
        task.details.started_at = Some(work.now);
    }
    task.phase = step.to;
    for effect in &step.effects {
        if let TaskEffect::Enqueue { after } = effect {
            task.queued_since = work.steady;
            task.available_at = (!after.is_zero()).then(|| work.steady + *after);
            task.details.reported_success = None;
            place_in_queue(work, task, pause_reason);
        }
    }
    write_task(work, task).await?;
    let mut to_end = None;
    for effect in step.effects {
        match effect {
            TaskEffect::Enqueue { .. } => {}
            TaskEffect::StartTimeout => schedule_timeouts(work, task).await?,
            TaskEffect::EndSandbox { sandbox } => to_end = Some(sandbox),
            TaskEffect::ReleaseDependants => release_dependants(work, task.id).await?,
            TaskEffect::ReleaseSlot => release_file_waiters(work, task.id).await?,
        }
    }
    Ok(to_end)
}

/// Writes the task, and wakes the dispatcher after the commit.
pub async fn write_task(work: &mut Work<'_>, task: &mut TaskRow) -> Result<()> {
    task.updated_at = work.now;
    tasks::update_task(work.tx, task).await?;
    work.out.tasks_changed = true;
    Ok(())
}

/// Computes what a queued task waits for, and its standing.
pub fn place_in_queue(work: &Work<'_>, task: &mut TaskRow, pause_reason: TaskWait) {
    let (level, next_level) = DeadlineLevel::at(task.deadline, work.now);
    let blocked = u32::try_from(task.blocked_tasks).unwrap_or(0);
    task.standing = Standing::new(task.priority, level, blocked, task.phase.retries, task.details.max_retries);
    task.holder_id = None;
    task.wait = Some(match task.available_at {
        Some(_) => pause_reason,
        None if task.open_dependencies > 0 => TaskWait::Dependencies,
        None => TaskWait::Slot,
    });
    task.level_due_at = next_level.filter(|_| task.wait == Some(TaskWait::Slot));
}

async fn schedule_timeouts(work: &mut Work<'_>, task: &TaskRow) -> Result<()> {
    let Some(sandbox) = task.phase.sandbox else { return Ok(()) };
    let plan = timeout_plan(work, task);
    for (kind, step) in [
        (JobKind::TaskWarning, TimeoutStep::Warn),
        (JobKind::TaskInterrupt, TimeoutStep::Interrupt),
        (JobKind::TaskEnd, TimeoutStep::End),
    ] {
        jobs::schedule_job(work.tx, kind, sandbox, work.steady + plan.after(step)).await?;
    }
    work.out.jobs = true;
    Ok(())
}

fn timeout_plan(work: &Work<'_>, task: &TaskRow) -> TimeoutPlan {
    let limit = Duration::from_secs(task.details.timeout_s.into());
    TimeoutPlan::new(limit, work.config.orchestrator.timeout_grace)
}

/// Counts a completed dependency of every dependant. Those without others become ready.
async fn release_dependants(work: &mut Work<'_>, id: TaskId) -> Result<()> {
    for dependant in tasks::list_dependants(work.tx, id).await? {
        let Some(mut dependant) = tasks::lock_task(work.tx, dependant.id).await? else { continue };
        dependant.open_dependencies = (dependant.open_dependencies - 1).max(0);
        if dependant.wait == Some(TaskWait::Dependencies) {
            place_in_queue(work, &mut dependant, TaskWait::BackOff);
        }
        write_task(work, &mut dependant).await?;
    }
    Ok(())
}

/// Changes the number of open tasks that wait for each dependency of a task.
pub async fn count_blocked(work: &mut Work<'_>, task: TaskId, change: i64) -> Result<()> {
    for need in tasks::list_dependencies(work.tx, task).await? {
        if need.state.has_ended() && need.state == TaskState::Completed {
            continue;
        }
        let Some(mut need) = tasks::lock_task(work.tx, need.id).await? else { continue };
        need.blocked_tasks = (need.blocked_tasks + change).max(0);
        if need.wait == Some(TaskWait::Slot) {
            place_in_queue(work, &mut need, TaskWait::BackOff);
        }
        write_task(work, &mut need).await?;
    }
    Ok(())
}

/// Puts tasks that wait for a task's files back into the queue. Their time in the queue goes on.
pub async fn release_file_waiters(work: &mut Work<'_>, holder: TaskId) -> Result<()> {
    for mut waiter in task_queue::list_file_waiters(work.tx, holder, MAX_RELEASED_WAITERS).await? {
        place_in_queue(work, &mut waiter, TaskWait::BackOff);
        write_task(work, &mut waiter).await?;
    }
    work.out.tasks_changed = true;
    Ok(())
}

pub fn task_progress(task: &TaskRow) -> TaskProgress {
    TaskProgress { task_id: task.id, title: task.details.title.clone(), retries: task.phase.retries }
}

/// Records a work event of the task's sandbox. The caller holds the session's lock and writes the sandbox's row.
pub async fn record_work(work: &mut Work<'_>, sandbox: &mut SandboxRow) -> Result<()> {
    let Some(mut task) = tasks::lock_current_task(work.tx, sandbox.id).await? else { return Ok(()) };
    if !matches!(task.phase.state, TaskState::Claiming | TaskState::Assigned) {
        return Ok(());
    }
    let fact = TaskTrigger::PickedUp { fact: PickUpFact::WorkObserved, sandbox: sandbox.id };
    apply_task_trigger(work, &mut task, fact, TaskWait::BackOff).await?;
    let event = EventData::TaskRunning(task_progress(&task)).into_event(work.now);
    work.log(sandbox, vec![event]).await
}

/// Applies the end of a sandbox to its task. The caller holds the session's lock and has written both rows.
pub async fn record_sandbox_end(work: &mut Work<'_>, session: &mut SessionRow, sandbox: &mut SandboxRow) -> Result<()> {
    let Some(mut task) = tasks::lock_current_task(work.tx, sandbox.id).await? else { return Ok(()) };
    if !task.phase.state.is_active() {
        return Ok(());
    }
    let reason = sandbox.reason.clone();
    match sandbox.outcome {
        Some(Outcome::Succeeded) => complete_attempt(work, sandbox, &mut task).await,
        Some(Outcome::Cancelled) => {
            tasks::end_attempt(work.tx, sandbox.id, work.now, "cancelled", None, reason.as_ref()).await?;
            task.details.error = reason;
            apply_task_trigger(work, &mut task, TaskTrigger::Cancelled, TaskWait::BackOff).await?;
            count_blocked(work, task.id, -1).await?;
            log_event(work, sandbox, EventData::TaskCancelled(task_progress(&task))).await
        }
        Some(Outcome::Failed) | None => {
            let reason = reason.unwrap_or_else(|| Reason::new("sandbox_failed", "the sandbox failed"));
            let setback = fail_attempt(work, &mut task, Some(sandbox.id), reason).await?;
            let retries = task.phase.state.is_queued();
            let event = if retries { EventData::TaskRetrying(setback) } else { EventData::TaskFailed(setback) };
            log_event(work, sandbox, event).await?;
            // The next attempt continues on the branch, so the work so far must be on it.
            if retries && sandbox.results == ResultsState::Pending && sandbox.provider_id.is_some() {
                Box::pin(results::recover_results(work, session, sandbox, None)).await?;
            }
            Ok(())
        }
    }
}

async fn complete_attempt(work: &mut Work<'_>, sandbox: &mut SandboxRow, task: &mut TaskRow) -> Result<()> {
    tasks::end_attempt(work.tx, sandbox.id, work.now, "succeeded", None, None).await?;
    let needs_validation = task.details.needs_validation;
    (task.details.error, task.details.failure_class) = (None, None);
    apply_task_trigger(work, task, TaskTrigger::WorkSucceeded { needs_validation }, TaskWait::BackOff).await?;
    let event = if needs_validation { EventData::TaskValidating } else { EventData::TaskCompleted };
    log_event(work, sandbox, event(task_progress(task))).await
}

/// Appends an event to the log of a sandbox whose row is written.
pub async fn log_event(work: &mut Work<'_>, sandbox: &mut SandboxRow, event: EventData) -> Result<()> {
    let event = event.into_event(work.now);
    work.log(sandbox, vec![event]).await?;
    Ok(sandboxes::update_sandbox(work.tx, sandbox).await?)
}

/// Records a failed attempt and decides about another. Without a sandbox, the attempt ended before it got one.
pub async fn fail_attempt(
    work: &mut Work<'_>,
    task: &mut TaskRow,
    sandbox: Option<SandboxId>,
    reason: Reason,
) -> Result<TaskSetback> {
    let failure = classify_failure(&reason.code);
    let class = match failure {
        Failure::Quota => None,
        Failure::Retryable(class) | Failure::Permanent(class) => Some(class),
    };
    let quota = task_queue::find_quota(work.tx, task.provider, work.steady).await?;
    let quota_pause =
        quota.map(|until| until.elapsed_since(work.steady)).or(Some(work.config.orchestrator.quota_pause));
    let counts = (task.phase.retries, count_failures(work, task, class).await?, task.details.max_retries);
    let verdict = decide_failure(failure, counts, &work.config.orchestrator.retry_policy(), quota_pause);
    let outcome = if class.is_none() { "waited" } else { "failed" };
    match sandbox {
        Some(sandbox) => tasks::end_attempt(work.tx, sandbox, work.now, outcome, class, Some(&reason)).await?,
        None => {
            let attempt = TaskAttempt {
                number: 0,
                sandbox_id: None,
                started_at: task.state_since,
                ended_at: Some(work.now),
                outcome: Some(outcome.to_owned()),
                class,
                reason: Some(reason.clone()),
            };
            tasks::insert_attempt(work.tx, task.id, &attempt).await?;
        }
    }
    (task.details.error, task.details.failure_class) = (Some(reason.clone()), class);
    let pause_reason = if class.is_none() { TaskWait::Quota } else { TaskWait::BackOff };
    apply_task_trigger(work, task, TaskTrigger::AttemptFailed { verdict }, pause_reason).await?;
    let retry_s = match verdict {
        FailureVerdict::Retry { after } | FailureVerdict::Wait { after } => Some(after.as_secs()),
        FailureVerdict::GiveUp => None,
    };
    Ok(TaskSetback { task_id: task.id, class, reason, retries: task.phase.retries, retry_s })
}

/// Counts the failures of a class among the attempts since the task was created or restarted.
async fn count_failures(work: &mut Work<'_>, task: &TaskRow, class: Option<FailureClass>) -> Result<u32> {
    let attempts = tasks::list_attempts(work.tx, task.id, MAX_COUNTED_ATTEMPTS).await?;
    let failed = attempts.iter().filter(|attempt| class.is_some() && attempt.class == class).count();
    // A restart resets the retries; earlier attempts no longer count.
    Ok(u32::try_from(failed).unwrap_or(u32::MAX).min(task.phase.retries))
}

/// Ends a running task's sandbox for a reason, as a failure of the task. Results are exported. Returns false if the sandbox
/// is not running.
pub async fn end_task(work: &mut Work<'_>, sandbox: SandboxId, reason: Reason) -> Result<bool> {
    let (mut session, mut sandbox) = work.lock_sandbox(sandbox).await?;
    let trigger = match sandbox.state {
        SandboxState::Running => Trigger::WorkUnfinished,
        SandboxState::Creating => Trigger::CreationFailed,
        SandboxState::Pending | SandboxState::Completing | SandboxState::Completed | SandboxState::Failed => {
            return Ok(false);
        }
    };
    lifecycle::apply_trigger(work, &mut session, &mut sandbox, trigger, Some(reason), None).await?;
    lifecycle::complete_if_worker_left(work, &mut session, &mut sandbox).await?;
    Ok(true)
}

/// Runs a step of ending a task on time.
pub async fn apply_timeout(work: &mut Work<'_>, id: SandboxId, step: TimeoutStep) -> Result<()> {
    let (mut session, mut sandbox) = work.lock_sandbox(id).await?;
    let Some(task) = tasks::lock_current_task(work.tx, id).await? else { return Ok(()) };
    if task.phase.state != TaskState::Running || sandbox.state != SandboxState::Running {
        return Ok(());
    }
    let plan = timeout_plan(work, &task);
    let left = plan.end_after.saturating_sub(plan.after(step));
    let time_left = TaskTimeLeft { task_id: task.id, left_s: left.as_secs() };
    let message = |message_type, content| MessageDraft {
        content,
        message_type,
        delivery: Delivery::Steer,
        sender: Some(TASKS_SENDER.to_owned()),
    };
    match step {
        TimeoutStep::Warn => {
            log_event(work, &mut sandbox, EventData::TaskWarned(time_left)).await?;
            inbox::queue_message(work, &mut session, message(MessageType::System, timeout_warning(left))).await?;
        }
        TimeoutStep::Interrupt => {
            log_event(work, &mut sandbox, EventData::TaskInterrupted(time_left)).await?;
            let content = "Atoll: the time for this task is over.".to_owned();
            inbox::queue_message(work, &mut session, message(MessageType::Interrupt, content)).await?;
        }
        TimeoutStep::End => {
            let limit = task.details.timeout_s;
            let reason = Reason::new("task_timeout", format!("the task reached its time limit of {limit} s"));
            end_task(work, id, reason).await?;
        }
    }
    Ok(())
}
