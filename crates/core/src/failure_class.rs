//! Classes of failures: why a sandbox failed, and how often its work is worth a retry.

use crate::string_enum;
use std::time::Duration;

string_enum! {
    /// Why a sandbox failed. A retry continues the same session on the same branch in a new sandbox.
    "failure class"
    FailureClass {
        /// The provider failed, or it lost the sandbox or its worker.
        Provider = "provider",
        /// The workspace could not be prepared: its source, its set-up, its services or its agent's program.
        Setup = "setup",
        /// The agent's process ended unexpectedly.
        AgentCrash = "agent_crash",
        /// The kernel killed the agent at the memory limit.
        OutOfMemory = "out_of_memory",
        /// The work used up its time, its rounds or its money.
        Budget = "budget",
        /// The agent worked and reported failure, or its results cannot be used.
        Merits = "merits",
    }
}

impl FailureClass {
    /// The class of a failed sandbox, by the code of its reason. An unknown code is a failure on the merits, which is
    /// never repeated without a change.
    pub fn from_reason_code(code: &str) -> Self {
        match code {
            // A refusal, an unsupported operation and bad configuration repeat at every retry.
            "provider_refused"
            | "provider_unsupported"
            | "source_failed"
            | "agent_missing"
            | "agent_not_started"
            | "service_failed" => Self::Setup,
            "create_timeout" | "sandbox_lost" | "worker_died" | "worker_unresponsive" => Self::Provider,
            "agent_crashed" | "agent_exited" => Self::AgentCrash,
            "out_of_memory" => Self::OutOfMemory,
            "timeout" => Self::Budget,
            code if code.starts_with("provider_") => Self::Provider,
            code if code.starts_with("setup_") => Self::Setup,
            code if code.starts_with("continuous_") && code != "continuous_errors" => Self::Budget,
            _ => Self::Merits,
        }
    }

    /// How often and how soon work that failed in this way is repeated.
    pub const fn retry_policy(self) -> RetryPolicy {
        let (max_retries, first_delay_s) = match self {
            Self::Provider => (5, 5),
            Self::Setup => (1, 30),
            Self::AgentCrash => (3, 5),
            Self::OutOfMemory => (1, 5),
            // The same budget would end the same way, and so would the same work.
            Self::Budget | Self::Merits => (0, 0),
        };
        RetryPolicy { max_retries, first_delay: Duration::from_secs(first_delay_s) }
    }
}

/// Number and back-off of the retries of one failure class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    pub max_retries: u32,
    pub first_delay: Duration,
}

/// Longest delay before a retry.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);

impl RetryPolicy {
    /// The delay before the next retry, doubled with each of the `earlier` ones; `None` if there is none left.
    pub fn next_delay(self, earlier: u32) -> Option<Duration> {
        let delay = self.first_delay.saturating_mul(1 << earlier.min(16));
        (earlier < self.max_retries).then_some(delay.min(MAX_RETRY_DELAY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_class() {
        use FailureClass as C;
        for (code, class) in [
            ("provider_unreachable", C::Provider),
            ("provider_exhausted", C::Provider),
            ("provider_busy", C::Provider),
            ("provider_gone", C::Provider),
            ("provider_refused", C::Setup),
            ("provider_unsupported", C::Setup),
            ("create_timeout", C::Provider),
            ("sandbox_lost", C::Provider),
            ("worker_died", C::Provider),
            ("worker_unresponsive", C::Provider),
            ("source_failed", C::Setup),
            ("setup_failed", C::Setup),
            ("agent_missing", C::Setup),
            ("agent_not_started", C::Setup),
            ("service_failed", C::Setup),
            ("agent_crashed", C::AgentCrash),
            ("agent_exited", C::AgentCrash),
            ("out_of_memory", C::OutOfMemory),
            ("timeout", C::Budget),
            ("continuous_duration", C::Budget),
            ("continuous_iterations", C::Budget),
            ("continuous_errors", C::Merits),
            ("agent_failed", C::Merits),
            ("results_failed", C::Merits),
            ("invented", C::Merits),
            ("", C::Merits),
        ] {
            assert_eq!(FailureClass::from_reason_code(code), class, "{code}");
        }
    }

    #[test]
    fn retries_back_off_and_end() {
        let delays = |class: FailureClass| {
            let policy = class.retry_policy();
            (0..10).map_while(|earlier| policy.next_delay(earlier)).map(|delay| delay.as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(delays(FailureClass::Provider), [5, 10, 20, 40, 80]);
        assert_eq!(delays(FailureClass::Setup), [30]);
        assert_eq!(delays(FailureClass::AgentCrash), [5, 10, 20]);
        assert_eq!(delays(FailureClass::OutOfMemory), [5]);
        assert!(delays(FailureClass::Budget).is_empty() && delays(FailureClass::Merits).is_empty());
        let endless = RetryPolicy { max_retries: u32::MAX, first_delay: Duration::from_secs(60) };
        assert_eq!(endless.next_delay(1_000_000), Some(MAX_RETRY_DELAY));
    }
}
