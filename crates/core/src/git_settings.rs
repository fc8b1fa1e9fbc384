//! Git settings of a project or a sandbox.

use serde::{Deserialize, Serialize};

/// How a sandbox's branch is connected with its forge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitSettings {
    /// Send reviews, comments and failed checks of the branch to the agent as messages; off by default. A session without a
    /// sandbox gets a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_messages: Option<bool>,
}

impl GitSettings {
    /// Fills absent fields from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { webhook_messages: self.webhook_messages.or(other.webhook_messages) }
    }
}
