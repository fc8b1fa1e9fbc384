//! Set-up layers: what the set-up of projects left, from which later sandboxes start.

use atoll_core::id::ProjectId;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A project's set-up layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cache {
    /// The key of the set-up: the root, the commands and the lock files.
    pub name: String,
    pub project_id: ProjectId,
    /// Disk usage without what older layers already contain; absent until measured.
    pub bytes: Option<u64>,
    pub created_at: Option<Timestamp>,
    /// When a sandbox last started from it.
    pub used_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheList {
    pub items: Vec<Cache>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct RemoveCacheQuery {
    /// Its project; the default project if absent.
    pub project_id: Option<ProjectId>,
}

/// The response to the removal of a set-up layer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemovedCache {
    pub name: String,
    pub project_id: ProjectId,
}

/// Asks the server to remove unused set-up layers of all projects in which the caller may work.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PruneCaches {
    /// Remove layers that no sandbox has started from for this many days; 30 if absent.
    pub unused_days: Option<u32>,
    /// Remove all layers, whatever their age.
    #[serde(default)]
    pub all: bool,
    /// Only of this project.
    pub project_id: Option<ProjectId>,
    /// Report what would be removed, and remove nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// The response to pruning: the removed set-up layers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PrunedCaches {
    pub dry_run: bool,
    pub items: Vec<Cache>,
}
