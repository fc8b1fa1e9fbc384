//! Set-up layers: the files that a project's set-up leaves, sealed, so that later sandboxes start from them.

use crate::id::ProjectId;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};

/// Directory of the package managers' download caches in a sandbox. [`CacheUse::Downloads`] keeps only this one.
pub const PACKAGE_CACHE_DIR: &str = "/home/agent/.cache/packages";

/// Maximum layers of a set-up layer that may serve as [`CacheUse::Downloads`]: each seal above one adds a layer.
pub const MAX_CACHE_DEPTH: u32 = 8;

/// Name of a project's set-up layer at its provider, prefixed with the project so that projects cannot use each
/// other's. A key has at most 32 lower-case letters and digits.
pub fn provider_cache_name(project: ProjectId, key: &str) -> String {
    format!("{project}.{key}")
}

/// The set-up layer that a new sandbox starts from, by its name at the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "name", rename_all = "snake_case")]
pub enum CacheUse {
    /// All files that set-up left, with the sandbox's own checkout in place of the layer's.
    SetUp(String),
    /// Only the files below [`PACKAGE_CACHE_DIR`].
    Downloads(String),
}

impl CacheUse {
    pub fn name(&self) -> &str {
        match self {
            Self::SetUp(name) | Self::Downloads(name) => name,
        }
    }
}

/// A sealed set-up layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheRef {
    pub name: String,
    /// Disk usage of the layers that no older set-up layer has; absent until measured.
    pub bytes: Option<u64>,
    pub created_at: Option<Timestamp>,
    /// When a sandbox last started from it.
    pub used_at: Option<Timestamp>,
    /// Number of layers that it consists of.
    pub depth: u32,
}
