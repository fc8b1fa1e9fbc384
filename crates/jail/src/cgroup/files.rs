//! Where this process is in the hierarchies of cgroups, and where those are mounted.

use std::path::{Path, PathBuf};

/// A mounted hierarchy, and this process's own directory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub mount: PathBuf,
    pub own: PathBuf,
}

/// The hierarchy of version 1 that has a controller.
pub(super) fn version_1(mounts: &str, membership: &str, controller: &str) -> Option<Hierarchy> {
    let path = membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        fields.next()?.split(',').any(|name| name == controller).then(|| fields.next())?
    })?;
    let mount = mounts
        .lines()
        .filter_map(Mount::parse)
        .find(|mount| mount.kind == "cgroup" && mount.options.split(',').any(|name| name == controller))?;
    mount.hierarchy(path)
}

/// The hierarchy of version 2.
pub(super) fn version_2(mounts: &str, membership: &str) -> Option<Hierarchy> {
    let path = membership.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().filter_map(Mount::parse).find(|mount| mount.kind == "cgroup2")?.hierarchy(path)
}

/// A line of `/proc/self/mountinfo`.
struct Mount<'a> {
    root: &'a str,
    target: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        Some(Self { root: before.next()?, target: before.next()?, kind: after.next()?, options: after.nth(1)? })
    }

    fn hierarchy(&self, path: &str) -> Option<Hierarchy> {
        let below = Path::new(path).strip_prefix(self.root).ok()?;
        // A path that leads up is outside of what this process may see.
        if below.components().any(|part| part == std::path::Component::ParentDir) {
            return None;
        }
        let mount = PathBuf::from(self.target);
        let own = if below.as_os_str().is_empty() { mount.clone() } else { mount.join(below) };
        Some(Hierarchy { mount, own })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
24 1 0:22 / /proc rw,relatime - proc proc rw
30 29 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
34 29 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 29 0:35 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const MEMBERSHIP: &str = "9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/\n0::/user.slice/x:y.scope\n";

    #[test]
    fn finds_the_own_directory_of_each_controller() {
        let hierarchy = |mount: &str, own: &str| Some(Hierarchy { mount: mount.into(), own: own.into() });
        assert_eq!(
            version_1(MOUNTS, MEMBERSHIP, "memory"),
            hierarchy("/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/a/b")
        );
        let shared = "/sys/fs/cgroup/cpu,cpuacct";
        assert_eq!(version_1(MOUNTS, MEMBERSHIP, "cpuacct"), hierarchy(shared, shared));
        assert_eq!(version_1(MOUNTS, MEMBERSHIP, "pids"), None);
        let unified = "/sys/fs/cgroup/unified";
        assert_eq!(version_2(MOUNTS, MEMBERSHIP), hierarchy(unified, "/sys/fs/cgroup/unified/user.slice/x:y.scope"));
    }

    #[test]
    fn a_mount_of_a_part_hides_what_is_above() {
        let mounts = "34 29 0:30 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let own = |path: &str| version_1(mounts, &format!("4:memory:{path}\n"), "memory").map(|found| found.own);
        assert_eq!(own("/docker/1/x"), Some(PathBuf::from("/sys/fs/cgroup/memory/x")));
        assert_eq!(own("/docker/1"), Some(PathBuf::from("/sys/fs/cgroup/memory")));
        assert_eq!(own("/other"), None);
        assert_eq!(own("/../x"), None);
    }
}
