//! The state machine of a task as one pure function.
//!
//! `next` returns the phase that a trigger leads to, and the effects. The caller stores both in one transaction.

use super::{FailureVerdict, TaskState};
use crate::id::SandboxId;
use std::time::Duration;

/// The part of a task that its state machine changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskPhase {
    pub state: TaskState,
    /// The sandbox of the current attempt. While the task validates, the one whose work is validated.
    pub sandbox: Option<SandboxId>,
    /// Attempts that failed and were followed by another.
    pub retries: u32,
    /// Validations that failed and were followed by another attempt.
    pub revisions: u32,
    /// The next attempt answers a validation's feedback.
    pub is_revision: bool,
}

impl TaskPhase {
    pub const NEW: Self =
        Self { state: TaskState::Pending, sandbox: None, retries: 0, revisions: 0, is_revision: false };
}

/// A fact that shows that a sandbox works on the task. They arrive in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PickUpFact {
    /// The server wrote the assignment.
    StatusWritten,
    /// The server set the task's sandbox.
    SandboxSet,
    /// The sandbox's worker sent a work event.
    WorkObserved,
}

/// An input to the state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskTrigger {
    /// A server chose the task.
    Claimed,
    /// The claim ended without a sandbox, and without a failure of the task.
    ClaimReleased,
    PickedUp {
        fact: PickUpFact,
        sandbox: SandboxId,
    },
    /// The attempt ended with its work done.
    WorkSucceeded {
        needs_validation: bool,
    },
    AttemptFailed {
        verdict: FailureVerdict,
    },
    ValidationPassed,
    ValidationFailed {
        may_revise: bool,
    },
    /// A person cancelled the task or its sandbox.
    Cancelled,
    /// A person starts an ended task again.
    Restarted,
}

/// An effect of a transition, as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskEffect {
    /// Put the task into the queue, after this pause.
    Enqueue { after: Duration },
    /// Begin to count the task's time limit.
    StartTimeout,
    /// End the sandbox of the cancelled attempt, and export its results.
    EndSandbox { sandbox: SandboxId },
    /// Release the tasks that depend on this one.
    ReleaseDependants,
    /// Release the tasks that wait for this one's files, and use its slot for another.
    ReleaseSlot,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskStep {
    pub to: TaskPhase,
    pub effects: Vec<TaskEffect>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("illegal transition of a task: {trigger:?} in state {from}")]
pub struct IllegalTaskStep {
    pub from: TaskState,
    pub trigger: TaskTrigger,
}

/// The effect of leaving an active state.
fn release(from: TaskState) -> impl Iterator<Item = TaskEffect> {
    from.is_active().then_some(TaskEffect::ReleaseSlot).into_iter()
}

fn end(from: TaskPhase, state: TaskState) -> TaskStep {
    let completes = (state == TaskState::Completed).then_some(TaskEffect::ReleaseDependants);
    TaskStep { to: TaskPhase { state, ..from }, effects: completes.into_iter().chain(release(from.state)).collect() }
}

fn enqueue(from: TaskPhase, to: TaskPhase, after: Duration) -> TaskStep {
    let state = if to.is_revision { TaskState::NeedsRevision } else { TaskState::Pending };
    let effects = std::iter::once(TaskEffect::Enqueue { after }).chain(release(from.state)).collect();
    TaskStep { to: TaskPhase { state, sandbox: None, ..to }, effects }
}

fn pick_up(from: TaskPhase, fact: PickUpFact, sandbox: SandboxId) -> TaskStep {
    let state = match (from.state, fact) {
        // The assignment never overwrites work that has begun.
        (TaskState::Running, _) | (_, PickUpFact::WorkObserved) => TaskState::Running,
        (_, PickUpFact::StatusWritten | PickUpFact::SandboxSet) => TaskState::Assigned,
    };
    let begins = state == TaskState::Running && from.state != TaskState::Running;
    let to = TaskPhase { state, sandbox: Some(sandbox), is_revision: false, ..from };
    TaskStep { to, effects: begins.then_some(TaskEffect::StartTimeout).into_iter().collect() }
}

/// Applies `trigger` to `from`.
pub fn next(from: TaskPhase, trigger: TaskTrigger) -> Result<TaskStep, IllegalTaskStep> {
    use TaskState as S;
    use TaskTrigger as T;
    let step = match (from.state, trigger) {
        (S::Pending | S::NeedsRevision, T::Claimed) => {
            TaskStep { to: TaskPhase { state: S::Claiming, sandbox: None, ..from }, effects: Vec::new() }
        }
        (S::Claiming, T::ClaimReleased) => enqueue(from, from, Duration::ZERO),
        (S::Claiming | S::Assigned | S::Running, T::PickedUp { fact, sandbox })
            if from.sandbox.is_none_or(|own| own == sandbox) =>
        {
            pick_up(from, fact, sandbox)
        }
        (S::Assigned | S::Running, T::WorkSucceeded { needs_validation }) => {
            end(from, if needs_validation { S::Validating } else { S::Completed })
        }
        (S::Claiming | S::Assigned | S::Running, T::AttemptFailed { verdict }) => match verdict {
            FailureVerdict::Retry { after } => {
                enqueue(from, TaskPhase { retries: from.retries.saturating_add(1), ..from }, after)
            }
            FailureVerdict::Wait { after } => enqueue(from, from, after),
            FailureVerdict::GiveUp => end(from, S::Failed),
        },
        (S::Validating, T::ValidationPassed) => end(from, S::Completed),
        (S::Validating, T::ValidationFailed { may_revise: true }) => {
            let revisions = from.revisions.saturating_add(1);
            enqueue(from, TaskPhase { revisions, is_revision: true, ..from }, Duration::ZERO)
        }
        (S::Validating, T::ValidationFailed { may_revise: false }) => end(from, S::Failed),
        (S::Pending | S::NeedsRevision | S::Validating | S::Claiming | S::Assigned | S::Running, T::Cancelled) => {
            let mut step = end(from, S::Cancelled);
            if let (S::Assigned | S::Running, Some(sandbox)) = (from.state, from.sandbox) {
                step.effects.push(TaskEffect::EndSandbox { sandbox });
            }
            step
        }
        (S::Failed | S::Cancelled, T::Restarted) => {
            enqueue(from, TaskPhase { retries: 0, revisions: 0, ..from }, Duration::ZERO)
        }
        (
            from @ (S::Pending
            | S::Claiming
            | S::Assigned
            | S::Running
            | S::Validating
            | S::NeedsRevision
            | S::Completed
            | S::Failed
            | S::Cancelled),
            trigger @ (T::Claimed
            | T::ClaimReleased
            | T::PickedUp { .. }
            | T::WorkSucceeded { .. }
            | T::AttemptFailed { .. }
            | T::ValidationPassed
            | T::ValidationFailed { .. }
            | T::Cancelled
            | T::Restarted),
        ) => return Err(IllegalTaskStep { from, trigger }),
    };
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AFTER: Duration = Duration::from_secs(7);

    fn phase(state: TaskState, sandbox: Option<SandboxId>) -> TaskPhase {
        TaskPhase { state, sandbox, is_revision: state == TaskState::NeedsRevision, ..TaskPhase::NEW }
    }

    fn triggers(sandbox: SandboxId) -> Vec<TaskTrigger> {
        use TaskTrigger as T;
        let facts = [PickUpFact::StatusWritten, PickUpFact::SandboxSet, PickUpFact::WorkObserved];
        let verdicts =
            [FailureVerdict::Retry { after: AFTER }, FailureVerdict::Wait { after: AFTER }, FailureVerdict::GiveUp];
        let mut all = vec![T::Claimed, T::ClaimReleased, T::ValidationPassed, T::Cancelled, T::Restarted];
        all.extend(facts.map(|fact| T::PickedUp { fact, sandbox }));
        all.extend(verdicts.map(|verdict| T::AttemptFailed { verdict }));
        all.extend([true, false].map(|needs_validation| T::WorkSucceeded { needs_validation }));
        all.extend([true, false].map(|may_revise| T::ValidationFailed { may_revise }));
        all
    }

    /// Names the state that each trigger leads to, for a snapshot of the whole table.
    fn table_row(from: TaskState) -> String {
        let sandbox = SandboxId::new();
        let own = matches!(from, TaskState::Assigned | TaskState::Running | TaskState::Validating).then_some(sandbox);
        let cells = triggers(sandbox).into_iter().map(|trigger| match next(phase(from, own), trigger) {
            Ok(step) => step.to.state.as_str(),
            Err(_) => "-",
        });
        cells.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_table_of_transitions() {
        // claimed released passed cancelled restarted | status sandbox work | retry wait give-up | validate done | revise fail
        for (from, row) in [
            (TaskState::Pending, "claiming - - cancelled - - - - - - - - - - -"),
            (TaskState::Claiming, "- pending - cancelled - assigned assigned running pending pending failed - - - -"),
            (
                TaskState::Assigned,
                "- - - cancelled - assigned assigned running pending pending failed validating completed - -",
            ),
            (
                TaskState::Running,
                "- - - cancelled - running running running pending pending failed validating completed - -",
            ),
            (TaskState::Validating, "- - completed cancelled - - - - - - - - - needs_revision failed"),
            (TaskState::NeedsRevision, "claiming - - cancelled - - - - - - - - - - -"),
            (TaskState::Completed, "- - - - - - - - - - - - - - -"),
            (TaskState::Failed, "- - - - pending - - - - - - - - - -"),
            (TaskState::Cancelled, "- - - - pending - - - - - - - - - -"),
        ] {
            assert_eq!(table_row(from), row, "{from}");
        }
    }

    #[test]
    fn effects_follow_the_states() {
        let sandbox = SandboxId::new();
        for from in TaskState::ALL {
            for trigger in triggers(sandbox) {
                let own = from.is_active().then_some(sandbox).filter(|_| *from != TaskState::Claiming);
                let Ok(step) = next(phase(*from, own), trigger) else { continue };
                let (to, effects) = (step.to.state, &step.effects);
                let enqueues = effects.iter().any(|effect| matches!(effect, TaskEffect::Enqueue { .. }));
                assert_eq!(enqueues, to.is_queued(), "{from} {trigger:?}");
                let releases = from.is_active() && !to.is_active();
                assert_eq!(effects.contains(&TaskEffect::ReleaseSlot), releases, "{from} {trigger:?}");
                let completes = to == TaskState::Completed;
                assert_eq!(effects.contains(&TaskEffect::ReleaseDependants), completes, "{from} {trigger:?}");
                let begins = to == TaskState::Running && *from != TaskState::Running;
                assert_eq!(effects.contains(&TaskEffect::StartTimeout), begins, "{from} {trigger:?}");
                let ends = trigger == TaskTrigger::Cancelled && own.is_some();
                assert_eq!(effects.contains(&TaskEffect::EndSandbox { sandbox }), ends, "{from} {trigger:?}");
                assert!(!to.is_queued() || step.to.sandbox.is_none(), "{from} {trigger:?}");
            }
        }
    }

    #[test]
    fn a_retry_counts_and_a_wait_does_not() {
        let from = phase(TaskState::Running, Some(SandboxId::new()));
        let after = |verdict| next(from, TaskTrigger::AttemptFailed { verdict }).unwrap();
        let retried = after(FailureVerdict::Retry { after: AFTER });
        assert_eq!((retried.to.retries, retried.effects[0]), (1, TaskEffect::Enqueue { after: AFTER }));
        assert_eq!(after(FailureVerdict::Wait { after: AFTER }).to.retries, 0);
    }

    #[test]
    fn a_released_claim_keeps_its_revision() {
        let claimed = next(phase(TaskState::NeedsRevision, None), TaskTrigger::Claimed).unwrap().to;
        assert_eq!(next(claimed, TaskTrigger::ClaimReleased).unwrap().to.state, TaskState::NeedsRevision);
        let fact = TaskTrigger::PickedUp { fact: PickUpFact::SandboxSet, sandbox: SandboxId::new() };
        assert!(!next(claimed, fact).unwrap().to.is_revision);
    }

    #[test]
    fn facts_of_an_earlier_attempt_are_illegal() {
        let from = phase(TaskState::Assigned, Some(SandboxId::new()));
        let late = TaskTrigger::PickedUp { fact: PickUpFact::WorkObserved, sandbox: SandboxId::new() };
        assert!(next(from, late).is_err());
    }

    proptest! {
        /// Each fact alone picks the task up, and all orders of the three lead to the same phase and one start.
        #[test]
        fn facts_commute(order in Just(vec![PickUpFact::StatusWritten, PickUpFact::SandboxSet, PickUpFact::WorkObserved]).prop_shuffle()) {
            let sandbox = SandboxId::new();
            let mut now = phase(TaskState::Claiming, None);
            let mut starts = 0;
            for fact in order {
                let step = next(now, TaskTrigger::PickedUp { fact, sandbox }).unwrap();
                prop_assert!(matches!(step.to.state, TaskState::Assigned | TaskState::Running));
                prop_assert_eq!(step.to.sandbox, Some(sandbox));
                starts += step.effects.iter().filter(|effect| **effect == TaskEffect::StartTimeout).count();
                now = step.to;
            }
            prop_assert_eq!((now, starts), (phase(TaskState::Running, Some(sandbox)), 1));
        }

        /// Whatever happens, a task that has ended changes only by a restart, and a completed one never.
        #[test]
        fn an_end_is_final(choices in prop::collection::vec(0usize..15, 0..60)) {
            let sandbox = SandboxId::new();
            let mut now = TaskPhase::NEW;
            for choice in choices {
                let trigger = triggers(sandbox)[choice];
                let Ok(step) = next(now, trigger) else { continue };
                prop_assert!(now.state != TaskState::Completed);
                prop_assert!(!now.state.has_ended() || trigger == TaskTrigger::Restarted);
                now = step.to;
            }
        }
    }
}
