//! The section `health`: idle and stalled agents, restarts, the reaper, and failing providers.

use crate::format::{Integer, OneOf, TIME, TIME_OR_NEVER, TIME_OR_ZERO};
use crate::key::section;
use crate::sections::Config;
use atoll_core::health::circuit_breaker::BreakerPolicy;
use atoll_core::health::idleness::ProgressPolicy;
use atoll_core::health::restarts::RestartPolicy;
use atoll_core::health::{IdleAction, RestartMode};
use std::time::Duration;

section! {
    /// Health of sandboxes and providers.
    Health at [health] {
        /// Time without a work event after which a working agent is `stalled`
        stalled_after: Option<Duration> = Some(Duration::from_secs(15 * 60)) => TIME_OR_NEVER;
        /// Time without work and without use by a person after which a waiting sandbox is idle
        idle_after: Option<Duration> = Some(Duration::from_secs(10 * 60)) => TIME_OR_NEVER;
        /// What the server does with an idle sandbox: `pause`, `end` or `keep` it
        idle_action: IdleAction = IdleAction::Pause => OneOf(IdleAction::ALL);
        /// Give the session of a failed sandbox another one, if its work is unfinished and a retry may help
        restart: RestartMode = RestartMode::Never => OneOf(RestartMode::ALL);
        /// Maximum restarts of a session within an hour; then a person has to look
        restarts_per_hour: u32 = 3 => Integer(0, 1000);
        /// Shortest time between two restarts of a session
        restart_cool_down: Duration = Duration::from_secs(60) => TIME_OR_ZERO;
        /// Interval of the search for orphaned sandboxes
        reap_interval: Duration = Duration::from_secs(5 * 60) => TIME;
        /// Time after which a sandbox that no row explains is removed at its provider
        reap_grace: Duration = Duration::from_secs(10 * 60) => TIME_OR_ZERO;
        /// Consecutive failures after which the server asks a provider for no sandbox
        provider_failures: u32 = 5 => Integer(1, 1000);
        /// Time until the server tries a failing provider again; each failed attempt doubles it, up to 15m
        provider_retry: Duration = Duration::from_secs(60) => TIME;
    }
}

impl Health {
    pub const fn progress_policy(&self) -> ProgressPolicy {
        ProgressPolicy { stalled_after: self.stalled_after, idle_after: self.idle_after }
    }

    pub const fn restart_policy(&self) -> RestartPolicy {
        RestartPolicy { max_per_hour: self.restarts_per_hour, cool_down: self.restart_cool_down }
    }

    pub const fn breaker_policy(&self) -> BreakerPolicy {
        BreakerPolicy { max_failures: self.provider_failures, open_for: self.provider_retry }
    }
}
