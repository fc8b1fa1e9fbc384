//! What this machine can do, found by trying.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::place::Enforced;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub tier: Tier,
    pub kernel: String,
    pub architecture: String,
    pub root: bool,
    /// A whole sandbox was made and ended; otherwise why not.
    pub isolation: Ability,
    pub user_namespaces: Ability,
    pub id_ranges: Ability,
    pub seccomp: Ability,
    /// A second lock on the files.
    pub landlock: Ability,
    /// Layers over each other, as forks and snapshots are made of.
    pub overlay: Ability,
    /// Whole sandboxes can be frozen; else each process is stopped by itself.
    pub freezer: Ability,
    pub groups: GroupVersion,
    /// Absent when no sandbox can be made.
    pub enforced: Option<Enforced>,
    pub disk: DiskBound,
    /// What of the host can be seen inside, all read-only.
    pub visible: Vec<PathBuf>,
    /// How many inotify instances one user may have, over all sandboxes with the same ids.
    pub inotify_instances: Option<u64>,
    pub missing: Vec<Missing>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// No sandbox can be made.
    None,
    /// Isolated, but a limit or the disk bound is not enforced.
    Standard,
    /// Isolated, all limits and the disk bound enforced.
    Strong,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ability {
    Yes,
    No { reason: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupVersion {
    V2,
    V1,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskBound {
    Enforced,
    Watched,
    None,
}

/// What keeps this machine from the next tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub what: String,
    pub remedy: String,
    /// The lowest tier that can't be had for lack of it; none, if it only makes something worse.
    pub keeps_from: Option<Tier>,
}

impl Report {
    /// What keeps this machine from a tier, and the remedies, in sentences; nothing if it has the tier.
    pub fn lacks(&self, tier: Tier) -> Option<String> {
        if self.tier >= tier {
            return None;
        }
        let reasons = self.missing.iter().filter(|missing| missing.keeps_from.is_some_and(|lowest| lowest <= tier));
        let reasons: Vec<String> = reasons.map(|missing| format!("{}. {}", missing.what, missing.remedy)).collect();
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
