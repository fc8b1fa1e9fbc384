//! Finds the mounted cgroup hierarchies and this process's directory in them.

use std::path::{Path, PathBuf};

/// A mounted hierarchy and this process's directory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    pub mount: PathBuf,
    pub own_dir: PathBuf,
}

/// Finds the v1 hierarchy of a controller.
pub(super) fn find_v1_hierarchy(mounts: &str, membership: &str, controller: &str) -> Option<Hierarchy> {
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

/// Finds the v2 hierarchy.
pub(super) fn find_v2_hierarchy(mounts: &str, membership: &str) -> Option<Hierarchy> {
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
        // A path with `..` is outside of this process's cgroup namespace.
        if below.components().any(|part| part == std::path::Component::ParentDir) {
            return None;
        }
        let mount = PathBuf::from(self.target);
        let own = if below.as_os_str().is_empty() { mount.clone() } else { mount.join(below) };
        Some(Hierarchy { mount, own_dir: own })
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
        let hierarchy = |mount: &str, own: &str| Some(Hierarchy { mount: mount.into(), own_dir: own.into() });
        assert_eq!(
            find_v1_hierarchy(MOUNTS, MEMBERSHIP, "memory"),
            hierarchy("/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/a/b")
        );
        let shared = "/sys/fs/cgroup/cpu,cpuacct";
        assert_eq!(find_v1_hierarchy(MOUNTS, MEMBERSHIP, "cpuacct"), hierarchy(shared, shared));
        assert_eq!(find_v1_hierarchy(MOUNTS, MEMBERSHIP, "pids"), None);
        let unified = "/sys/fs/cgroup/unified";
        assert_eq!(
            find_v2_hierarchy(MOUNTS, MEMBERSHIP),
            hierarchy(unified, "/sys/fs/cgroup/unified/user.slice/x:y.scope")
        );
    }

    #[test]
    fn a_partial_mount_hides_its_ancestors() {
        let mounts = "34 29 0:30 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let own =
            |path: &str| find_v1_hierarchy(mounts, &format!("4:memory:{path}\n"), "memory").map(|found| found.own_dir);
        assert_eq!(own("/docker/1/x"), Some(PathBuf::from("/sys/fs/cgroup/memory/x")));
        assert_eq!(own("/docker/1"), Some(PathBuf::from("/sys/fs/cgroup/memory")));
        assert_eq!(own("/other"), None);
        assert_eq!(own("/../x"), None);
    }
}
