//! Time limits of tasks. All ages begin when the task enters its state.

use crate::time::Timestamp;
use std::time::Duration;

/// Share of the time limit after which the agent gets a warning.
const WARNING_PERCENT: u32 = 80;

/// A step of ending a task on time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeoutStep {
    /// Tell the agent how much time is left.
    Warn,
    /// Interrupt the turn, so that the agent's transcript is complete.
    Interrupt,
    /// End the sandbox; its transcript and its changes are exported.
    End,
}

/// The times of the steps, counted from the moment when the task began to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeoutPlan {
    pub warn_after: Duration,
    pub interrupt_after: Duration,
    pub end_after: Duration,
}

impl TimeoutPlan {
    pub fn new(limit: Duration, grace: Duration) -> Self {
        Self {
            warn_after: limit * WARNING_PERCENT / 100,
            interrupt_after: limit,
            end_after: limit.saturating_add(grace),
        }
    }

    pub const fn after(&self, step: TimeoutStep) -> Duration {
        match step {
            TimeoutStep::Warn => self.warn_after,
            TimeoutStep::Interrupt => self.interrupt_after,
            TimeoutStep::End => self.end_after,
        }
    }

    /// The last step that is due.
    pub fn due_step(&self, running_for: Duration) -> Option<TimeoutStep> {
        [TimeoutStep::End, TimeoutStep::Interrupt, TimeoutStep::Warn]
            .into_iter()
            .find(|step| running_for >= self.after(*step))
    }
}

/// True if an assigned task should have been picked up by now: since it was assigned, and since its worker's last sign, more
/// than `limit` has passed.
pub fn is_pick_up_overdue(
    assigned_at: Timestamp,
    last_sign: Option<Timestamp>,
    now: Timestamp,
    limit: Duration,
) -> bool {
    let since = last_sign.map_or(assigned_at, |sign| sign.max(assigned_at));
    now.elapsed_since(since) > limit
}

/// The message that warns an agent. One line: the demo agent reads lines.
pub fn timeout_warning(left: Duration) -> String {
    format!(
        "Atoll: this task ends in {} seconds. Finish the most important work, commit it, and report what is left.",
        left.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_task_is_warned_then_interrupted_then_ended() {
        let plan = TimeoutPlan::new(secs(100), secs(30));
        for (running_for, step) in [
            (0, None),
            (79, None),
            (80, Some(TimeoutStep::Warn)),
            (99, Some(TimeoutStep::Warn)),
            (100, Some(TimeoutStep::Interrupt)),
            (129, Some(TimeoutStep::Interrupt)),
            (130, Some(TimeoutStep::End)),
            (9_999, Some(TimeoutStep::End)),
        ] {
            assert_eq!(plan.due_step(secs(running_for)), step, "{running_for}");
        }
    }

    #[test]
    fn an_assignment_is_overdue_without_a_sign() {
        let at = |seconds| Timestamp::from_micros(0) + secs(seconds);
        for (assigned, sign, now, overdue) in [
            (at(0), None, at(180), false),
            (at(0), None, at(181), true),
            (at(0), Some(at(100)), at(181), false),
            (at(0), Some(at(100)), at(281), true),
            // A sign from before the assignment does not count.
            (at(100), Some(at(50)), at(281), true),
            (at(100), Some(at(50)), at(240), false),
            // The clock went back.
            (at(100), None, at(0), false),
        ] {
            assert_eq!(is_pick_up_overdue(assigned, sign, now, secs(180)), overdue, "{assigned} {sign:?} {now}");
        }
    }

    #[test]
    fn a_warning_is_one_line() {
        assert!(!timeout_warning(secs(12)).contains('\n') && timeout_warning(secs(12)).contains("12 seconds"));
    }
}
