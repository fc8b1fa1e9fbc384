//! Classes of failures, and what follows from each.

use crate::string_enum;
use std::time::Duration;

string_enum! {
    /// The cause of a failed attempt, which selects its retry policy.
    "failure class"
    FailureClass {
        /// The provider did not create the sandbox, or lost it.
        Provider = "provider",
        /// The repository, the set-up or the start of the worker failed.
        SetUp = "set_up",
        /// The agent or its worker crashed.
        AgentCrash = "agent_crash",
        OutOfMemory = "out_of_memory",
        /// The task's budget is used up.
        Budget = "budget",
        /// The task's time limit is over.
        Timeout = "timeout",
        /// The agent failed at the task itself.
        Task = "task",
    }
}

/// A classified failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The provider's quota is used up: no failure of the task.
    Quota,
    /// A retry may help.
    Retryable(FailureClass),
    /// A retry cannot help.
    Permanent(FailureClass),
}

impl Failure {
    /// The class of the failure. A provider's quota is the provider's.
    pub const fn class(self) -> FailureClass {
        match self {
            Self::Quota => FailureClass::Provider,
            Self::Retryable(class) | Self::Permanent(class) => class,
        }
    }
}

/// Classifies the reason code of a failed sandbox, or the code of a refused creation.
pub fn classify_failure(code: &str) -> Failure {
    use Failure::{Permanent, Quota, Retryable};
    match code {
        "provider_exhausted" => Quota,
        "provider_refused" | "provider_unsupported" | "provider_no_input" => Permanent(FailureClass::Provider),
        "sandbox_lost" | "worker_unresponsive" => Retryable(FailureClass::Provider),
        code if code.starts_with("provider_") => Retryable(FailureClass::Provider),
        "create_timeout" | "setup_failed" | "service_failed" | "not_picked_up" => Retryable(FailureClass::SetUp),
        "source_failed" | "agent_missing" | "agent_not_started" | "request_refused" => Permanent(FailureClass::SetUp),
        "out_of_memory" => Retryable(FailureClass::OutOfMemory),
        "worker_died" | "agent_crashed" | "agent_exited" => Retryable(FailureClass::AgentCrash),
        "budget" | "cost" | "continuous_cost" => Permanent(FailureClass::Budget),
        "timeout" | "task_timeout" => Retryable(FailureClass::Timeout),
        // The work exists, but not where it belongs. Another attempt would repeat it.
        code if code.starts_with("results_") => Permanent(FailureClass::Task),
        _ => Retryable(FailureClass::Task),
    }
}

/// Retries by class and their pauses. A task's own maximum also applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    pub provider: u32,
    pub set_up: u32,
    pub agent_crash: u32,
    pub out_of_memory: u32,
    pub timeout: u32,
    pub task: u32,
    pub first_pause: Duration,
    pub max_pause: Duration,
}

impl RetryPolicy {
    pub const fn max_retries(&self, class: FailureClass) -> u32 {
        match class {
            FailureClass::Provider => self.provider,
            FailureClass::SetUp => self.set_up,
            FailureClass::AgentCrash => self.agent_crash,
            FailureClass::OutOfMemory => self.out_of_memory,
            FailureClass::Budget => 0,
            FailureClass::Timeout => self.timeout,
            FailureClass::Task => self.task,
        }
    }

    /// The pause before a retry: doubles with each.
    pub fn pause(&self, retries: u32) -> Duration {
        self.first_pause.saturating_mul(1_u32.checked_shl(retries).unwrap_or(u32::MAX)).min(self.max_pause)
    }
}

/// What follows from a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureVerdict {
    Retry {
        after: Duration,
    },
    /// Wait for the provider's quota. Counts as no retry.
    Wait {
        after: Duration,
    },
    GiveUp,
}

/// Decides about a failed attempt. `retries` counts earlier retries, and `class_retries` those after a failure of the same class.
pub fn decide_failure(
    failure: Failure,
    (retries, class_retries, max_retries): (u32, u32, u32),
    policy: &RetryPolicy,
    quota_pause: Option<Duration>,
) -> FailureVerdict {
    match failure {
        Failure::Quota => FailureVerdict::Wait { after: quota_pause.unwrap_or(policy.max_pause) },
        Failure::Permanent(_) => FailureVerdict::GiveUp,
        Failure::Retryable(class) if retries < max_retries && class_retries < policy.max_retries(class) => {
            FailureVerdict::Retry { after: policy.pause(class_retries) }
        }
        Failure::Retryable(_) => FailureVerdict::GiveUp,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::provider::Error;

    pub(crate) const POLICY: RetryPolicy = RetryPolicy {
        provider: 5,
        set_up: 1,
        agent_crash: 3,
        out_of_memory: 1,
        timeout: 0,
        task: 0,
        first_pause: Duration::from_secs(10),
        max_pause: Duration::from_secs(600),
    };

    #[test]
    fn every_code_has_a_class() {
        for (code, failure) in [
            ("provider_exhausted", Failure::Quota),
            ("provider_unreachable", Failure::Retryable(FailureClass::Provider)),
            ("provider_failing", Failure::Retryable(FailureClass::Provider)),
            ("worker_unresponsive", Failure::Retryable(FailureClass::Provider)),
            ("sandbox_lost", Failure::Retryable(FailureClass::Provider)),
            ("provider_refused", Failure::Permanent(FailureClass::Provider)),
            ("create_timeout", Failure::Retryable(FailureClass::SetUp)),
            ("setup_failed", Failure::Retryable(FailureClass::SetUp)),
            ("source_failed", Failure::Permanent(FailureClass::SetUp)),
            ("worker_died", Failure::Retryable(FailureClass::AgentCrash)),
            ("out_of_memory", Failure::Retryable(FailureClass::OutOfMemory)),
            ("budget", Failure::Permanent(FailureClass::Budget)),
            ("task_timeout", Failure::Retryable(FailureClass::Timeout)),
            ("agent_failed", Failure::Retryable(FailureClass::Task)),
            ("results_lost", Failure::Permanent(FailureClass::Task)),
            ("anything else", Failure::Retryable(FailureClass::Task)),
        ] {
            assert_eq!(classify_failure(code), failure, "{code}");
        }
    }

    #[test]
    fn no_error_of_a_provider_counts_as_the_agents_failure() {
        for error in [
            Error::Refused { detail: String::new() },
            Error::Unreachable { detail: String::new() },
            Error::Busy { detail: String::new() },
            Error::NoInput { detail: String::new() },
            Error::Gone,
            Error::CacheGone { name: String::new() },
        ] {
            let failure = classify_failure(error.code());
            assert!(
                matches!(
                    failure,
                    Failure::Retryable(FailureClass::Provider) | Failure::Permanent(FailureClass::Provider)
                ),
                "{error}"
            );
        }
        let exhausted = Error::Exhausted { detail: String::new(), until: None };
        assert_eq!(classify_failure(exhausted.code()), Failure::Quota);
    }

    #[test]
    fn classes_have_their_own_retries_and_pauses() {
        let decide = |class, counts| decide_failure(Failure::Retryable(class), counts, &POLICY, None);
        let retry = |seconds| FailureVerdict::Retry { after: Duration::from_secs(seconds) };
        for (class, counts, verdict) in [
            (FailureClass::Provider, (0, 0, 10), retry(10)),
            (FailureClass::Provider, (4, 4, 10), retry(160)),
            (FailureClass::Provider, (5, 5, 10), FailureVerdict::GiveUp),
            (FailureClass::Provider, (3, 3, 3), FailureVerdict::GiveUp),
            (FailureClass::SetUp, (2, 0, 10), retry(10)),
            (FailureClass::SetUp, (2, 1, 10), FailureVerdict::GiveUp),
            (FailureClass::AgentCrash, (2, 2, 3), retry(40)),
            (FailureClass::OutOfMemory, (1, 1, 3), FailureVerdict::GiveUp),
            (FailureClass::Budget, (0, 0, 3), FailureVerdict::GiveUp),
            (FailureClass::Timeout, (0, 0, 3), FailureVerdict::GiveUp),
            (FailureClass::Task, (0, 0, 3), FailureVerdict::GiveUp),
        ] {
            assert_eq!(decide(class, counts), verdict, "{class} {counts:?}");
        }
        assert_eq!(POLICY.pause(40), Duration::from_secs(600));
        let quota = |pause| decide_failure(Failure::Quota, (9, 9, 0), &POLICY, pause);
        assert_eq!(quota(Some(Duration::from_secs(3))), FailureVerdict::Wait { after: Duration::from_secs(3) });
        assert_eq!(quota(None), FailureVerdict::Wait { after: POLICY.max_pause });
        let permanent = Failure::Permanent(FailureClass::Provider);
        assert_eq!(decide_failure(permanent, (0, 0, 10), &POLICY, None), FailureVerdict::GiveUp);
    }
}
