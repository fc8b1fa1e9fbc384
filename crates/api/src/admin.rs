//! Maintenance of the server.

use serde::{Deserialize, Serialize};

/// Asks the server to apply its retention rules now.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GcRequest {
    /// Report what the rules would remove, and remove nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Ignore the age of data: remove everything of ended sandboxes that retention may ever remove.
    #[serde(default)]
    pub all: bool,
}

/// Counts of what retention removed.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GcReport {
    pub dry_run: bool,
    pub events: i64,
    pub sandboxes: i64,
    pub blobs: i64,
    /// Set-up layers.
    #[serde(default)]
    pub caches: i64,
    /// Sandboxes at their provider that no row explains.
    #[serde(default)]
    pub orphans: i64,
    /// Orphans whose grace period is not over, so that they stay for now.
    #[serde(default)]
    pub waiting_orphans: i64,
    /// Commits that mirrors keep for removed sandboxes.
    #[serde(default)]
    pub unused_pins: i64,
    /// Running sandboxes that their provider no longer has.
    #[serde(default)]
    pub lost_sandboxes: i64,
}
