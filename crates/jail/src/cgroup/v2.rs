//! Cgroup v2: one directory, in a slice of its own (as root) or in the nearest ancestor cgroup where limits can be set.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{
    CPU_PERIOD_MICROS, CgroupBackend, CgroupEnforcement, CgroupLeaf, CpuConfinement, CpuTimeFile, Freezer, LeafLimits,
    TrialGroup, cpu_quota_micros, ensure_dir, hierarchy, remove_stale_groups, remove_upwards, write_control,
    write_control_if_present,
};
use crate::host_report::CgroupVersion;

const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// The cgroup of all deployments of root, beside the slices of the service manager. Sandboxes in it outlive the service
/// that created them, and no slice of others has to change.
const OWN_SLICE: &str = "atoll.slice";
/// Optional: without it the CPU quota still applies.
const CPUSET: &str = "cpuset";

#[derive(Debug)]
pub(super) struct CgroupV2 {
    /// The deployment's directory.
    directory: PathBuf,
    enforces: CgroupEnforcement,
    /// True if the cpuset controller is delegated.
    has_cpuset: bool,
    /// The unit of the service manager that this cgroup belongs to, if stopping it ends the sandboxes.
    unit: Option<String>,
}

impl CgroupV2 {
    pub fn detect(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
        let hierarchy = hierarchy::find_v2_hierarchy(&mounts, &membership)?;
        if rustix::process::geteuid().is_root() {
            let found = Self::find_best_parent(&hierarchy, name, &Self::root_parents(&hierarchy));
            let slice = hierarchy.mount.join(OWN_SLICE);
            if found.as_ref().is_none_or(|found| !found.directory.starts_with(&slice)) {
                // It stays while another deployment uses it.
                let _ = fs::remove_dir(slice);
            }
            found
        } else {
            let ancestors = hierarchy.own_dir.ancestors().take_while(|path| path.starts_with(&hierarchy.mount));
            Self::find_best_parent(&hierarchy, name, &ancestors.map(Path::to_path_buf).collect::<Vec<_>>())
        }
    }

    /// The cgroups that root may use: its own slice, or else the process's cgroup. Those between belong to others.
    fn root_parents(hierarchy: &hierarchy::Hierarchy) -> Vec<PathBuf> {
        let slice = hierarchy.mount.join(OWN_SLICE);
        let has_slice = ensure_dir(&slice).is_ok();
        if has_slice {
            enable_controllers(&hierarchy.mount, false);
        }
        has_slice.then_some(slice).into_iter().chain([hierarchy.own_dir.clone()]).collect()
    }

    /// Finds, among `parents`, the cgroup that can enforce most limits; the first of equals.
    fn find_best_parent(hierarchy: &hierarchy::Hierarchy, name: &str, parents: &[PathBuf]) -> Option<Self> {
        let mut best: Option<Self> = None;
        for parent in parents {
            let Some(found) = Self::try_parent(parent, name, *parent == hierarchy.own_dir) else { continue };
            if found.controller_count() > best.as_ref().map_or(0, Self::controller_count) {
                best = Some(found);
            }
            if best.as_ref().map_or(0, Self::controller_count) == CONTROLLERS.len() {
                break;
            }
        }
        best
    }

    fn try_parent(parent: &Path, name: &str, own: bool) -> Option<Self> {
        let trial = TrialGroup::create(parent).ok()?;
        // Moving a process needs write access to the common ancestor of its old and new cgroup.
        let movable = [trial.directory.as_path(), parent]
            .into_iter()
            .all(|group| rustix::fs::access(group.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).is_ok());
        let enabled = if movable { enable_controllers(parent, own) } else { Vec::new() };
        let has = |controller: &str| enabled.iter().any(|name| name == controller);
        let enforces = CgroupEnforcement { memory: has("memory"), cpu: has("cpu"), pids: has("pids") };
        Some(Self {
            directory: parent.join(name),
            enforces,
            has_cpuset: has(CPUSET),
            unit: parent.ancestors().find_map(service_name),
        })
    }

    fn controller_count(&self) -> usize {
        let CgroupEnforcement { memory, cpu, pids } = self.enforces;
        [memory, cpu, pids].into_iter().filter(|enforced| *enforced).count()
    }
}

/// The name of a cgroup that is a service of the service manager. A user's own manager is no such service.
fn service_name(group: &Path) -> Option<String> {
    let name = group.file_name()?.to_str()?;
    (name.ends_with(".service") && !name.starts_with("user@")).then(|| name.to_owned())
}

/// Enables the controllers for the children of `parent`; returns those that are enabled.
fn enable_controllers(parent: &Path, own: bool) -> Vec<String> {
    let control = parent.join("cgroup.subtree_control");
    let words = |path: &Path| -> Vec<String> {
        fs::read_to_string(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    let available = words(&parent.join("cgroup.controllers"));
    let enabled = words(&control);
    for controller in CONTROLLERS.into_iter().chain([CPUSET]) {
        if enabled.iter().any(|name| name == controller) || !available.iter().any(|name| name == controller) {
            continue;
        }
        let text = format!("+{controller}");
        match write_control(&control, &text) {
            // A v2 cgroup with processes cannot delegate controllers. If its only processes are this launcher and the
            // server, they can move into a child cgroup.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && own && move_into_subgroup(parent) => {
                let _ = write_control(&control, &text);
            }
            Ok(()) | Err(_) => {}
        }
    }
    words(&control)
}

fn move_into_subgroup(own: &Path) -> bool {
    let here: Vec<u32> = fs::read_to_string(own.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect();
    let own_pids = [std::process::id(), std::os::unix::process::parent_id()];
    if here.is_empty() || !here.iter().all(|pid| own_pids.contains(pid)) {
        return false;
    }
    let subgroup = own.join("atoll-server");
    ensure_dir(&subgroup).is_ok()
        && here.iter().all(|pid| write_control(&subgroup.join("cgroup.procs"), &pid.to_string()).is_ok())
}

/// A limit of one CPU gives the kernel's default weight of 100.
fn cpu_weight(milli: u32) -> u32 {
    (milli / 10).clamp(1, 10_000)
}

impl CgroupBackend for CgroupV2 {
    fn version(&self) -> CgroupVersion {
        CgroupVersion::V2
    }

    fn enforcement(&self) -> CgroupEnforcement {
        self.enforces
    }

    fn can_freeze(&self) -> bool {
        true
    }

    fn has_cpuset(&self) -> bool {
        self.has_cpuset
    }

    fn ending_unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }

    fn missing_controllers(&self) -> Option<String> {
        let CgroupEnforcement { memory, cpu, pids } = self.enforces;
        let missing: Vec<&str> = [("memory", memory), ("cpu", cpu), ("pids", pids)]
            .into_iter()
            .filter(|(_, enforced)| !enforced)
            .map(|(name, _)| name)
            .collect();
        (!missing.is_empty()).then(|| format!("the cgroup controllers {} are not delegated", missing.join(", ")))
    }

    fn create_leaf(&self, sandbox: &str, leaf: &str, limits: &LeafLimits) -> io::Result<CgroupLeaf> {
        let group = self.directory.join(sandbox);
        let directory = group.join(leaf);
        match self.configure_leaf(&group, &directory, limits) {
            Ok(()) => {
                let cpus = limits.cpus.as_deref().filter(|_| self.has_cpuset);
                let confined = cpus.and_then(|cpus| CpuConfinement::apply(directory.join("cpuset.cpus"), cpus));
                Ok(CgroupLeaf { confined, ..self.describe_leaf(directory) })
            }
            Err(error) => {
                remove_upwards(&directory);
                Err(error)
            }
        }
    }

    fn remove_stale(&self, keep: &BTreeSet<String>) {
        remove_stale_groups(&self.directory, keep);
    }
}

impl CgroupV2 {
    fn configure_leaf(&self, group: &Path, directory: &Path, limits: &LeafLimits) -> io::Result<()> {
        ensure_dir(&self.directory)?;
        self.delegate_controllers(&self.directory)?;
        ensure_dir(group)?;
        self.delegate_controllers(group)?;
        ensure_dir(directory)?;
        if self.enforces.cpu {
            write_control(&group.join("cpu.weight"), &cpu_weight(limits.weight_milli).to_string())?;
        }
        if self.enforces.memory {
            write_control(&directory.join("memory.max"), &limits.memory_bytes.to_string())?;
            write_control_if_present(&directory.join("memory.swap.max"), "0")?;
        }
        if let (true, Some(cpu_milli)) = (self.enforces.cpu, limits.cpu_milli) {
            write_control(&directory.join("cpu.max"), &format!("{} {CPU_PERIOD_MICROS}", cpu_quota_micros(cpu_milli)))?;
        }
        if self.enforces.pids {
            write_control(&directory.join("pids.max"), &limits.pids.to_string())?;
        }
        Ok(())
    }

    fn delegate_controllers(&self, directory: &Path) -> io::Result<()> {
        let CgroupEnforcement { memory, cpu, pids } = self.enforces;
        let controllers: Vec<&str> =
            [("+memory", memory), ("+cpu", cpu), ("+pids", pids), ("+cpuset", self.has_cpuset)]
                .into_iter()
                .filter(|(_, enforced)| *enforced)
                .map(|(name, _)| name)
                .collect();
        if controllers.is_empty() {
            Ok(())
        } else {
            write_control(&directory.join("cgroup.subtree_control"), &controllers.join(" "))
        }
    }

    fn describe_leaf(&self, directory: PathBuf) -> CgroupLeaf {
        let CgroupEnforcement { memory, cpu, pids } = self.enforces;
        let file = |enforced: bool, name: &str| enforced.then(|| directory.join(name));
        // `memory.peak` needs Linux 5.19.
        CgroupLeaf {
            supports_clone_into: true,
            memory: file(memory, "memory.current"),
            peak: file(memory && directory.join("memory.peak").exists(), "memory.peak"),
            oom: file(memory, "memory.events"),
            cpu: file(cpu, "cpu.stat").map(CpuTimeFile::Microseconds),
            pids: file(pids, "pids.current"),
            // `cgroup.freeze` needs Linux 5.2; sandboxes need a newer kernel anyway.
            freezer: Some(Freezer::Version2(directory.clone())),
            directories: vec![directory],
            confined: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain directory that looks like a cgroup; unlike the kernel, it creates no control files for new directories.
    fn group(path: &Path, controllers: &str, handed_down: &str) {
        fs::create_dir_all(path).unwrap();
        for (file, text) in
            [("cgroup.controllers", controllers), ("cgroup.subtree_control", handed_down), ("cgroup.procs", "")]
        {
            fs::write(path.join(file), text).unwrap();
        }
    }

    #[test]
    fn picks_the_nearest_cgroup_with_most_controllers() {
        let base = tempfile::tempdir().unwrap();
        let (mount, slice) = (base.path().to_path_buf(), base.path().join("slice"));
        let own = slice.join("scope");
        group(&mount, "memory cpu pids", "memory cpu pids");
        group(&slice, "memory cpu pids", "memory pids");
        group(&own, "memory pids", "");
        for parent in [&mount, &slice, &own] {
            group(&parent.join(format!("atoll-trial-{}", std::process::id())), "", "");
        }
        let hierarchy = hierarchy::Hierarchy { mount: mount.clone(), own_dir: own.clone() };
        // A write to the imitation replaces its text, so only the last controller written stays enabled.
        let parents = [own.clone(), slice.clone(), mount.clone()];
        let found = CgroupV2::find_best_parent(&hierarchy, "atoll-a", &parents).unwrap();
        assert_eq!(found.enforces, CgroupEnforcement { memory: true, cpu: true, pids: true });
        assert_eq!(found.directory, mount.join("atoll-a"));

        group(&slice, "memory cpu pids", "memory cpu pids");
        let found = CgroupV2::find_best_parent(&hierarchy, "atoll-a", &parents).unwrap();
        assert_eq!(found.directory, slice.join("atoll-a"));
        assert!(!found.has_cpuset, "no cgroup offers cpuset");
        assert_eq!([cpu_weight(1000), cpu_weight(9), cpu_weight(u32::MAX)], [100, 1, 10_000]);
    }

    #[test]
    fn no_delegated_controller_means_no_cgroup() {
        let base = tempfile::tempdir().unwrap();
        group(base.path(), "", "");
        group(&base.path().join(format!("atoll-trial-{}", std::process::id())), "", "");
        let hierarchy = hierarchy::Hierarchy { mount: base.path().into(), own_dir: base.path().into() };
        assert!(CgroupV2::find_best_parent(&hierarchy, "atoll-a", &[base.path().into()]).is_none());
    }

    #[test]
    fn root_uses_a_slice_of_its_own_and_changes_no_other() {
        let base = tempfile::tempdir().unwrap();
        let (mount, system) = (base.path().to_path_buf(), base.path().join("system.slice"));
        let own = system.join("atoll.service");
        group(&mount, "memory cpu pids cpuset", "memory cpu pids cpuset");
        group(&mount.join(OWN_SLICE), "memory cpu pids cpuset", "memory cpu pids cpuset");
        group(&system, "memory cpu pids cpuset", "memory pids");
        group(&own, "memory pids", "");
        for parent in [&mount.join(OWN_SLICE), &own] {
            group(&parent.join(format!("atoll-trial-{}", std::process::id())), "", "");
        }
        let hierarchy = hierarchy::Hierarchy { mount: mount.clone(), own_dir: own.clone() };
        let parents = CgroupV2::root_parents(&hierarchy);
        assert_eq!(parents, [mount.join(OWN_SLICE), own.clone()]);
        let found = CgroupV2::find_best_parent(&hierarchy, "atoll-a", &parents).unwrap();
        assert_eq!((found.directory, found.unit), (mount.join(OWN_SLICE).join("atoll-a"), None));
        assert!(found.has_cpuset);
        assert_eq!(fs::read_to_string(system.join("cgroup.subtree_control")).unwrap(), "memory pids", "unchanged");
    }

    #[test]
    fn names_the_service_whose_end_would_end_the_sandboxes() {
        let unit = |path: &str| Path::new(path).ancestors().find_map(service_name);
        assert_eq!(unit("/sys/fs/cgroup/system.slice/a.service"), Some("a.service".into()));
        let user = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service";
        assert_eq!(unit(&format!("{user}/app.slice/b.service/sub")), Some("b.service".into()));
        assert_eq!(unit(&format!("{user}/app.slice/run-1.scope")), None);
    }

    #[test]
    fn moves_only_this_process_and_its_parent() {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("atoll-server")).unwrap();
        fs::write(base.path().join("atoll-server/cgroup.procs"), "").unwrap();
        let with = |pids: &str| {
            fs::write(base.path().join("cgroup.procs"), pids).unwrap();
            move_into_subgroup(base.path())
        };
        assert!(!with(""));
        assert!(!with("1\n2\n"));
        assert!(!with(&format!("{}\n999999\n", std::process::id())));
        assert!(with(&format!("{}\n", std::process::id())));
    }

    /// Runs on the kernel's own hierarchy if it is mounted, even without controllers.
    #[test]
    fn clones_a_process_into_its_leaf_and_removes_the_leaf() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap();
        let Some(hierarchy) = hierarchy::find_v2_hierarchy(&mounts, &membership) else {
            return println!("SKIPPED: no cgroup2 is mounted");
        };
        let directory = hierarchy.own_dir.join(format!("atoll-test{}", std::process::id()));
        let groups = CgroupV2 {
            directory: directory.clone(),
            enforces: CgroupEnforcement::default(),
            has_cpuset: false,
            unit: None,
        };
        let limits =
            LeafLimits { memory_bytes: 1 << 20, cpu_milli: Some(1000), pids: 10, weight_milli: 1500, cpus: None };
        let Ok(leaf) = groups.create_leaf("a", "worker", &limits) else {
            return println!("SKIPPED: cannot create a cgroup here");
        };
        assert!(leaf.supports_clone_into);
        let opened = fs::File::open(&leaf.directories[0]).unwrap();
        let (wait, go) = rustix::pipe::pipe().unwrap();
        let process = crate::kernel::spawn(0, Some(std::os::fd::AsFd::as_fd(&opened)), || {
            crate::kernel::close_inherited(std::os::fd::AsFd::as_fd(&go));
            let mut byte = [0];
            i32::from(rustix::io::read(&wait, &mut byte).is_err())
        })
        .unwrap();
        let members = fs::read_to_string(leaf.directories[0].join("cgroup.procs")).unwrap();
        assert_eq!(members.trim(), process.pid.to_string());
        assert!(!leaf.remove(), "it has a process");
        drop(go);
        process.reap().unwrap();
        assert!(leaf.remove());
        assert!(!directory.exists());
    }
}
