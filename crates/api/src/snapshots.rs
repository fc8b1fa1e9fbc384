//! Snapshots and images: the files that new sandboxes can start from.

use atoll_core::id::ProjectId;
use atoll_core::provider::{ImageRef, SnapshotRef};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewSnapshot {
    /// 1 to 32 characters of a-z, 0-9, `.`, `_` and `-`; the first is a letter or digit.
    pub name: String,
}

/// A project's snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Snapshot {
    pub project_id: ProjectId,
    #[serde(flatten)]
    pub snapshot: SnapshotRef,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotList {
    pub items: Vec<Snapshot>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct RemoveSnapshotQuery {
    /// Its project; the default project if absent.
    pub project_id: Option<ProjectId>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ImageList {
    pub items: Vec<ImageRef>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct ImportImageQuery {
    /// 1 to 64 characters of a-z, 0-9, `.`, `_` and `-`; the first is a letter or digit.
    pub name: String,
}

/// The response to the removal of a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemovedSnapshot {
    pub name: String,
    pub project_id: ProjectId,
}

/// The response to the removal of an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemovedImage {
    pub name: String,
}
