//! Without cgroups, limits apply to each process alone.

use std::collections::BTreeSet;
use std::io;

use super::{CgroupBackend, CgroupEnforcement, CgroupLeaf, LeafLimits};
use crate::host_report::CgroupVersion;

pub(super) struct NoCgroups;

impl CgroupBackend for NoCgroups {
    fn version(&self) -> CgroupVersion {
        CgroupVersion::None
    }

    fn enforcement(&self) -> CgroupEnforcement {
        CgroupEnforcement::default()
    }

    fn can_freeze(&self) -> bool {
        false
    }

    fn has_cpuset(&self) -> bool {
        false
    }

    fn missing_controllers(&self) -> Option<String> {
        Some("no cgroup is writable for this user".to_owned())
    }

    fn create_leaf(&self, _sandbox: &str, _leaf: &str, _bounds: &LeafLimits) -> io::Result<CgroupLeaf> {
        Ok(CgroupLeaf::default())
    }

    fn remove_stale(&self, _keep: &BTreeSet<String>) {}
}
