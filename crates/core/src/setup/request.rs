//! What a request or a project's defaults say about set-up.

use crate::bounds::{self, OutOfBounds};
use crate::sandbox::Network;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Maximum number of commands.
pub(super) const MAX_COMMANDS: usize = 20;
pub(super) const MAX_COMMAND_BYTES: usize = 8 * bounds::KB;
const MAX_TIMEOUT_S: u32 = 60 * 60;

/// All fields are optional: a request inherits from the project.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SetupRequest {
    /// True by default; `false` skips set-up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Commands, each run by /bin/sh in the workspace. Absent: the repository decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 20))]
    pub commands: Option<Vec<String>>,
    /// Network of set-up; `packages` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Timeout of the whole set-up; 900 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 3600))]
    pub timeout_s: Option<u32>,
}

impl SetupRequest {
    pub const DEFAULT_TIMEOUT_S: u32 = 15 * 60;

    /// A request to skip set-up.
    pub fn disabled() -> Self {
        Self { enabled: Some(false), ..Self::default() }
    }

    /// Fills absent fields from `other`.
    #[must_use]
    pub fn or(self, other: Option<Self>) -> Self {
        let other = other.unwrap_or_default();
        Self {
            enabled: self.enabled.or(other.enabled),
            commands: self.commands.or(other.commands),
            network: self.network.or(other.network),
            timeout_s: self.timeout_s.or(other.timeout_s),
        }
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_s.unwrap_or(Self::DEFAULT_TIMEOUT_S).into())
    }

    pub fn check_bounds(&self) -> Result<(), OutOfBounds> {
        let commands = self.commands.as_deref().unwrap_or_default();
        if commands.len() > MAX_COMMANDS {
            return bounds::reject_field("setup.commands", format!("at most {MAX_COMMANDS}"));
        }
        for command in commands {
            bounds::check_content("setup.commands", command, MAX_COMMAND_BYTES)?;
        }
        if self.timeout_s.is_some_and(|value| !(1..=MAX_TIMEOUT_S).contains(&value)) {
            return bounds::reject_field("setup.timeout_s", format!("must be from 1 to {MAX_TIMEOUT_S}"));
        }
        Ok(())
    }
}
