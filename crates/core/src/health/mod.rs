//! Health of sandboxes: silent workers, agents without progress, restarts, failing providers and orphans.
//!
//! Every rule is pure and gets the time from its caller.

pub mod circuit_breaker;
pub mod idleness;
pub mod orphans;
pub mod restarts;
pub mod silence;

use crate::bounds::{OutOfBounds, reject_field};
use crate::string_enum;
use serde::{Deserialize, Serialize};

string_enum! {
    /// What happens to a sandbox whose agent waits and that no person uses.
    "idle action"
    IdleAction {
        /// Pause it until a person uses it. Where the provider cannot pause, the sandbox ends.
        Pause = "pause",
        /// End it and take its results.
        End = "end",
        /// Leave it running.
        Keep = "keep",
    }
}

string_enum! {
    /// What follows when a sandbox fails with unfinished work.
    "restart mode"
    RestartMode {
        /// A person decides.
        Never = "never",
        /// The session gets another sandbox, if the failure is worth a retry.
        OnFailure = "on_failure",
    }
}

string_enum! {
    /// Why a sandbox is paused.
    "pause cause"
    PauseCause {
        /// A person paused it.
        Person = "person",
        /// The guardian paused it. A person decides when it continues.
        Guardian = "guardian",
        /// It was idle. It continues as soon as a person uses it.
        Idle = "idle",
    }
}

/// A sandbox's own settings of health; absent ones are the server's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HealthSettings {
    /// Time without work after which a waiting sandbox is idle; 0 is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_after_s: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_action: Option<IdleAction>,
    /// Time without a work event after which a working agent is stalled; 0 is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled_after_s: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<RestartMode>,
}

/// Bound of the times, in seconds: 30 days.
const MAX_SECONDS: u32 = 30 * 24 * 3600;

impl HealthSettings {
    /// Fills absent fields from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            idle_after_s: self.idle_after_s.or(other.idle_after_s),
            idle_action: self.idle_action.or(other.idle_action),
            stalled_after_s: self.stalled_after_s.or(other.stalled_after_s),
            restart: self.restart.or(other.restart),
        }
    }

    pub fn check_bounds(&self, field: &str) -> Result<(), OutOfBounds> {
        for (name, seconds) in [("idle_after_s", self.idle_after_s), ("stalled_after_s", self.stalled_after_s)] {
            if seconds.is_some_and(|seconds| seconds > MAX_SECONDS) {
                return reject_field(&format!("{field}.{name}"), format!("at most {MAX_SECONDS}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_request_replace_those_of_the_project() {
        let of_project = HealthSettings {
            idle_after_s: Some(60),
            restart: Some(RestartMode::OnFailure),
            ..HealthSettings::default()
        };
        let requested = HealthSettings { idle_after_s: Some(0), ..HealthSettings::default() };
        let joined = HealthSettings { idle_after_s: Some(0), ..of_project };
        assert_eq!(requested.or(of_project), joined);
        assert!(joined.check_bounds("health").is_ok());
        let long = HealthSettings { stalled_after_s: Some(MAX_SECONDS + 1), ..HealthSettings::default() };
        assert!(long.check_bounds("health").unwrap_err().to_string().starts_with("health.stalled_after_s: "));
    }
}
