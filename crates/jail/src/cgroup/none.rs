//! No cgroups: limits hold for each process alone.

use std::collections::BTreeSet;
use std::io;

use super::{Bounds, Enforces, Groups, Leaf};
use crate::report::GroupVersion;

pub(super) struct NoGroups;

impl Groups for NoGroups {
    fn version(&self) -> GroupVersion {
        GroupVersion::None
    }

    fn enforces(&self) -> Enforces {
        Enforces::default()
    }

    fn freezes(&self) -> bool {
        false
    }

    fn lacks(&self) -> Option<String> {
        Some("no cgroup is writable for this user".to_owned())
    }

    fn make(&self, _sandbox: &str, _leaf: &str, _bounds: &Bounds) -> io::Result<Leaf> {
        Ok(Leaf::default())
    }

    fn sweep(&self, _keep: &BTreeSet<String>) {}
}
