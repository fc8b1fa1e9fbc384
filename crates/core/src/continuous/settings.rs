//! Settings of continuous mode, and their defaults.

use crate::bounds::{self, OutOfBounds};
use crate::string_enum;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Maximum number of commands.
pub const MAX_CHECKS: usize = 20;
const MAX_COMMAND_BYTES: usize = 8 * bounds::KB;
/// Maximum of `check_timeout_s`: a round of checks ends within the hour, so that two rounds never overlap.
pub const MAX_CHECK_TIMEOUT_S: u32 = 45 * 60;

string_enum! {
    /// A requirement that Atoll checks itself.
    "requirement"
    Requirement {
        /// The working tree has no uncommitted changes.
        Clean = "clean",
        /// There is at least one new commit.
        Committed = "committed",
        /// The remote repository has the work: the server pushes it.
        Pushed = "pushed",
        /// There is a pull request for the work: the server opens it.
        PullRequest = "pull_request",
    }
}

/// All fields are optional: a request inherits from the project, and the project from the server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Continuous {
    /// True by default; `false` overrides the project's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Commands, each run by /bin/sh in the workspace; exit code 0 passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 20))]
    pub checks: Option<Vec<String>>,
    /// Default with a repository: `clean` and `committed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require: Option<Vec<Requirement>>,
    /// Maximum number of agent runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub iterations: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub duration_s: Option<u32>,
    /// Maximum number of failed runs in a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub errors: Option<u32>,
    /// Timeout of each command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2700))]
    pub check_timeout_s: Option<u32>,
}

/// Limits that end a loop that does not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopLimits {
    pub max_iterations: u32,
    /// In millionths of a dollar.
    pub max_cost_micros: Option<i64>,
    pub max_duration: Duration,
    pub max_errors: u32,
}

impl Continuous {
    /// Defaults.
    pub const DEFAULT_ITERATIONS: u32 = 10;
    pub const DEFAULT_DURATION_S: u32 = 3600;
    pub const DEFAULT_ERRORS: u32 = 3;
    pub const DEFAULT_CHECK_TIMEOUT_S: u32 = 600;

    /// Fills absent fields from `other`. Any setting enables continuous mode.
    #[must_use]
    pub fn or(self, other: Option<Self>) -> Self {
        let other = other.unwrap_or_default();
        Self {
            enabled: Some(self.enabled.unwrap_or(true)),
            checks: self.checks.or(other.checks),
            require: self.require.or(other.require),
            iterations: self.iterations.or(other.iterations),
            cost_usd: self.cost_usd.or(other.cost_usd),
            duration_s: self.duration_s.or(other.duration_s),
            errors: self.errors.or(other.errors),
            check_timeout_s: self.check_timeout_s.or(other.check_timeout_s),
        }
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    pub fn loop_limits(&self) -> LoopLimits {
        #[allow(clippy::cast_possible_truncation, reason = "it is bounded, and a float saturates")]
        let micros = |dollars: f64| (dollars * 1e6) as i64;
        LoopLimits {
            max_iterations: self.iterations.unwrap_or(Self::DEFAULT_ITERATIONS),
            max_cost_micros: self.cost_usd.map(micros),
            max_duration: Duration::from_secs(self.duration_s.unwrap_or(Self::DEFAULT_DURATION_S).into()),
            max_errors: self.errors.unwrap_or(Self::DEFAULT_ERRORS),
        }
    }

    pub fn check_timeout(&self) -> Duration {
        Duration::from_secs(self.check_timeout_s.unwrap_or(Self::DEFAULT_CHECK_TIMEOUT_S).into())
    }

    pub fn check_bounds(&self) -> Result<(), OutOfBounds> {
        let refuse = |field: &str, detail: &str| {
            Err(OutOfBounds { field: format!("continuous.{field}"), detail: detail.to_owned() })
        };
        let checks = self.checks.as_deref().unwrap_or_default();
        if checks.len() > MAX_CHECKS {
            return refuse("checks", &format!("at most {MAX_CHECKS}"));
        }
        for check in checks {
            bounds::check_content("continuous.checks", check, MAX_COMMAND_BYTES)?;
        }
        for (field, value) in [("iterations", self.iterations), ("errors", self.errors)] {
            if value.is_some_and(|value| !(1..=1000).contains(&value)) {
                return refuse(field, "must be from 1 to 1000");
            }
        }
        if self.duration_s == Some(0) {
            return refuse("duration_s", "must be above 0");
        }
        if self.check_timeout_s.is_some_and(|value| !(1..=MAX_CHECK_TIMEOUT_S).contains(&value)) {
            return refuse("check_timeout_s", &format!("must be from 1 to {MAX_CHECK_TIMEOUT_S}"));
        }
        self.cost_usd.map_or(Ok(()), |cost| bounds::check_amount("continuous.cost_usd", cost, 1e6))
    }

    /// Returns the requirements: the configured ones, or the defaults for a task with or without a repository.
    pub fn requirements(&self, has_repository: bool) -> Vec<Requirement> {
        match &self.require {
            Some(named) => {
                let mut named = named.clone();
                named.sort_unstable();
                named.dedup();
                named
            }
            None if has_repository => vec![Requirement::Clean, Requirement::Committed],
            None => Vec::new(),
        }
    }
}
