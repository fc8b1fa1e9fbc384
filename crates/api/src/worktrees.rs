//! Copies of users' worktrees in sandboxes.

use serde::{Deserialize, Serialize};

/// The workspace after a user's worktree arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SyncedWorktree {
    /// The sync commit that both sides have.
    pub commit: String,
    pub changed_files: u64,
    /// Files that could not be copied.
    #[serde(default)]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct WorktreeQuery {
    /// The newest sync commit that the worktree has.
    pub base: String,
}
