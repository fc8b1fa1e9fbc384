//! What a task may choose of continuous mode, and what holds where it is silent.

use crate::bounds::{self, OutOfBounds};
use crate::words;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// As many commands may be named.
pub const MOST_CHECKS: usize = 20;
const COMMAND_BYTES: usize = 8 * bounds::KB;
/// A round of checks is made within the hour, so that it is never made twice at once.
pub const LONGEST_CHECK_S: u32 = 45 * 60;

words! {
    /// What Atoll itself can look for.
    "requirement"
    Requirement {
        /// Nothing in the working tree is uncommitted.
        Clean = "clean",
        /// There is a commit that was not there at the beginning.
        Committed = "committed",
        /// The branch's upstream has the last commit.
        Pushed = "pushed",
        /// There is a pull request for the branch.
        PullRequest = "pull_request",
    }
}

/// Everything is optional: a request fills what it leaves open from the project, that from the server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Continuous {
    /// On unless it says `false`, which turns off what the project turned on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Commands, each run by /bin/sh in the workspace; 0 is passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 20))]
    pub checks: Option<Vec<String>>,
    /// With a repository `clean` and `committed`, unless it is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require: Option<Vec<Requirement>>,
    /// Runs of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub iterations: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub duration_s: Option<u32>,
    /// Runs in a row that fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub errors: Option<u32>,
    /// For each command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 2700))]
    pub check_timeout_s: Option<u32>,
}

/// What ends a loop that does not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub iterations: u32,
    /// In millionths of a dollar.
    pub cost: Option<i64>,
    pub duration: Duration,
    pub errors: u32,
}

impl Continuous {
    /// Where nobody says anything.
    pub const ITERATIONS: u32 = 10;
    pub const DURATION_S: u32 = 3600;
    pub const ERRORS: u32 = 3;
    pub const CHECK_TIMEOUT_S: u32 = 600;

    /// This, and where it is silent the other; who speaks at all turns it on.
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

    pub fn is_on(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    pub fn limits(&self) -> Limits {
        #[allow(clippy::cast_possible_truncation, reason = "it is bounded, and a float saturates")]
        let micros = |dollars: f64| (dollars * 1e6) as i64;
        Limits {
            iterations: self.iterations.unwrap_or(Self::ITERATIONS),
            cost: self.cost_usd.map(micros),
            duration: Duration::from_secs(self.duration_s.unwrap_or(Self::DURATION_S).into()),
            errors: self.errors.unwrap_or(Self::ERRORS),
        }
    }

    pub fn check_timeout(&self) -> Duration {
        Duration::from_secs(self.check_timeout_s.unwrap_or(Self::CHECK_TIMEOUT_S).into())
    }

    pub fn bounds(&self) -> Result<(), OutOfBounds> {
        let refuse = |field: &str, detail: &str| {
            Err(OutOfBounds { field: format!("continuous.{field}"), detail: detail.to_owned() })
        };
        let checks = self.checks.as_deref().unwrap_or_default();
        if checks.len() > MOST_CHECKS {
            return refuse("checks", &format!("at most {MOST_CHECKS}"));
        }
        for check in checks {
            bounds::content("continuous.checks", check, COMMAND_BYTES)?;
        }
        for (field, value) in [("iterations", self.iterations), ("errors", self.errors)] {
            if value.is_some_and(|value| !(1..=1000).contains(&value)) {
                return refuse(field, "must be from 1 to 1000");
            }
        }
        if self.duration_s == Some(0) {
            return refuse("duration_s", "must be above 0");
        }
        if self.check_timeout_s.is_some_and(|value| !(1..=LONGEST_CHECK_S).contains(&value)) {
            return refuse("check_timeout_s", &format!("must be from 1 to {LONGEST_CHECK_S}"));
        }
        self.cost_usd.map_or(Ok(()), |cost| bounds::amount("continuous.cost_usd", cost, 1e6))
    }

    /// What is checked for a task with or without a repository: what it names, else what makes sense.
    pub fn required(&self, has_repository: bool) -> Vec<Requirement> {
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
