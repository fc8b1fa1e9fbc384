//! The report on what this host supports, found by trying.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::sandbox::{EnforcedLimits, IdMapKind};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    pub tier: Tier,
    pub kernel: String,
    pub architecture: String,
    pub root: bool,
    /// Unavailable if the test sandbox failed.
    pub isolation: Support,
    pub user_namespaces: Support,
    pub id_ranges: Support,
    pub seccomp: Support,
    /// Landlock, in addition to read-only mounts.
    pub landlock: Support,
    /// overlayfs in user namespaces, for forks and snapshots.
    pub overlay: Support,
    /// The cgroup freezer; without it a pause stops each process by a signal.
    pub freezer: Support,
    pub cgroups: CgroupVersion,
    /// `None` if no sandbox can be created.
    pub enforced: Option<EnforcedLimits>,
    pub disk: DiskQuota,
    /// Host paths that are visible inside, all read-only.
    pub visible: Vec<PathBuf>,
    /// The kernel's limit of inotify instances per user, which sandboxes with the same ids share.
    pub inotify_instances: Option<u64>,
    pub missing: Vec<MissingFeature>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// No sandbox can be created.
    None,
    /// Isolated, but some limit or the disk quota is not enforced.
    Standard,
    /// Isolated, with all limits and the disk quota enforced.
    Strong,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Support {
    Available,
    Unavailable { reason: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CgroupVersion {
    V2,
    V1,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskQuota {
    Enforced,
    Monitored,
    None,
}

/// A feature that this host lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingFeature {
    pub description: String,
    pub remedy: String,
    /// The lowest tier that needs the feature; `None` if it is optional.
    pub blocks_tier: Option<Tier>,
}

impl HostReport {
    /// Namespaces, ids other than the launching user's, seccomp and the network policy confine each agent. Limits do not
    /// count: an agent that fills the disk harms the availability of this host, not its files.
    pub fn confines_agents(&self) -> bool {
        let has_other_ids = self.enforced.is_some_and(|enforced| enforced.ids != IdMapKind::SingleId);
        self.isolation == Support::Available && self.seccomp == Support::Available && has_other_ids
    }

    /// Lists the missing features and remedies for a tier; `None` if the host has the tier.
    pub fn explain_missing_tier(&self, tier: Tier) -> Option<String> {
        if self.tier >= tier {
            return None;
        }
        let reasons = self.missing.iter().filter(|missing| missing.blocks_tier.is_some_and(|lowest| lowest <= tier));
        let reasons: Vec<String> =
            reasons.map(|missing| format!("{}. {}", missing.description, missing.remedy)).collect();
        Some(if reasons.is_empty() { "run `atoll doctor` to see why".to_owned() } else { reasons.join(" ") })
    }
}

impl Tier {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Standard => "standard",
            Self::Strong => "strong",
        }
    }
}
