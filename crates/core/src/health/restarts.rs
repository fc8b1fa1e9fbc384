//! Restarts of a session: how many, how soon, and when a person has to look.

use crate::task::{Failure, FailureVerdict, RetryPolicy, decide_failure};
use crate::time::Timestamp;
use std::time::Duration;

/// The time over which restarts are counted.
pub const RESTART_WINDOW: Duration = Duration::from_secs(3600);

/// Bounds the restarts of one session: of its workers and of its sandboxes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    pub max_per_hour: u32,
    /// Shortest time between two restarts.
    pub cool_down: Duration,
}

/// Whether a restart is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartVerdict {
    Now,
    After(Duration),
    /// Too many restarts did not help: a person has to look.
    Escalate,
}

impl RestartPolicy {
    /// Judges another restart after the `earlier` ones, in any order.
    pub fn judge(&self, earlier: &[Timestamp], now: Timestamp) -> RestartVerdict {
        let recent = || earlier.iter().filter(|at| now.elapsed_since(**at) < RESTART_WINDOW);
        if recent().count() >= self.max_per_hour as usize {
            return RestartVerdict::Escalate;
        }
        match recent().max().map(|last| self.cool_down.saturating_sub(now.elapsed_since(*last))) {
            Some(delay) if !delay.is_zero() => RestartVerdict::After(delay),
            Some(_) | None => RestartVerdict::Now,
        }
    }

    /// Judges a new sandbox for a session whose sandbox failed: by the class of its failure and by this policy.
    pub fn judge_failure(
        &self,
        failure: Failure,
        retries: &RetryPolicy,
        earlier: &[Timestamp],
        now: Timestamp,
    ) -> RestartVerdict {
        let recent = earlier.iter().filter(|at| now.elapsed_since(**at) < RESTART_WINDOW).count();
        let recent = u32::try_from(recent).unwrap_or(u32::MAX);
        let pause = match decide_failure(failure, (recent, recent, self.max_per_hour), retries, None) {
            FailureVerdict::Retry { after } | FailureVerdict::Wait { after } => after,
            FailureVerdict::GiveUp => return RestartVerdict::Escalate,
        };
        match self.judge(earlier, now) {
            RestartVerdict::Now if pause.is_zero() => RestartVerdict::Now,
            RestartVerdict::Now => RestartVerdict::After(pause),
            RestartVerdict::After(delay) => RestartVerdict::After(delay.max(pause)),
            RestartVerdict::Escalate => RestartVerdict::Escalate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::FailureClass;
    use crate::task::failure_class::tests::POLICY as RETRIES;

    const POLICY: RestartPolicy = RestartPolicy { max_per_hour: 3, cool_down: Duration::from_secs(60) };

    const fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    const fn after(seconds: u64) -> RestartVerdict {
        RestartVerdict::After(Duration::from_secs(seconds))
    }

    #[test]
    fn at_most_three_restarts_an_hour_with_a_cool_down() {
        use RestartVerdict as V;
        for (earlier, now, verdict) in [
            (vec![], 10_000, V::Now),
            (vec![9_990], 10_000, after(50)),
            (vec![9_940], 10_000, V::Now),
            (vec![9_000, 9_990], 10_000, after(50)),
            (vec![9_990, 9_000], 10_000, after(50)),
            (vec![8_000, 9_000, 9_900], 10_000, V::Escalate),
            // The oldest left the window.
            (vec![6_400, 9_000, 9_900], 10_000, V::Now),
            (vec![6_401, 9_000, 9_900], 10_000, V::Escalate),
        ] {
            let earlier: Vec<_> = earlier.into_iter().map(at).collect();
            assert_eq!(POLICY.judge(&earlier, at(now)), verdict, "{earlier:?}");
        }
        let none = RestartPolicy { max_per_hour: 0, ..POLICY };
        assert_eq!(none.judge(&[], at(0)), V::Escalate);
    }

    #[test]
    fn the_class_of_a_failure_bounds_its_restarts_too() {
        use Failure::{Permanent, Quota, Retryable};
        use FailureClass as C;
        use RestartVerdict as V;
        for (failure, earlier, verdict) in [
            (Retryable(C::Provider), vec![], after(10)),
            (Retryable(C::Provider), vec![9_000], after(20)),
            (Retryable(C::Provider), vec![9_990], after(50)),
            (Retryable(C::Provider), vec![8_000, 9_000, 9_900], V::Escalate),
            (Permanent(C::Provider), vec![], V::Escalate),
            (Quota, vec![], after(600)),
            (Quota, vec![8_000, 9_000, 9_900], V::Escalate),
            (Retryable(C::AgentCrash), vec![8_000, 9_000], after(40)),
            (Retryable(C::SetUp), vec![], after(10)),
            (Retryable(C::SetUp), vec![9_000], V::Escalate),
            (Retryable(C::OutOfMemory), vec![], after(10)),
            (Retryable(C::OutOfMemory), vec![9_000], V::Escalate),
            (Permanent(C::Budget), vec![], V::Escalate),
            (Retryable(C::Task), vec![], V::Escalate),
        ] {
            let earlier: Vec<_> = earlier.into_iter().map(at).collect();
            assert_eq!(
                POLICY.judge_failure(failure, &RETRIES, &earlier, at(10_000)),
                verdict,
                "{failure:?} {earlier:?}"
            );
        }
    }
}
