//! Cgroup v1: one directory per controller, below this process's own.

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

/// The deployment's directory in each usable controller.
#[derive(Debug, Default)]
pub(super) struct CgroupV1 {
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    pids: Option<PathBuf>,
    cpuacct: Option<PathBuf>,
    freezer: Option<PathBuf>,
    cpuset: Option<PathBuf>,
}

impl CgroupV1 {
    pub fn detect(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
        let usable = |controller: &str| {
            let own = hierarchy::find_v1_hierarchy(&mounts, &membership, controller)?.own_dir;
            is_usable(&own).then(|| own.join(name))
        };
        let found = Self {
            memory: usable("memory"),
            cpu: usable("cpu"),
            pids: usable("pids"),
            cpuacct: usable("cpuacct"),
            freezer: usable("freezer"),
            cpuset: usable("cpuset"),
        };
        let enforces = found.enforcement();
        (enforces.memory || enforces.cpu || enforces.pids).then_some(found)
    }
}

/// TCP buffers may take an eighth of the memory limit, in addition to it.
const TCP_BUFFER_SHARE: u64 = 8;

/// A limit of one CPU gives the kernel's default of 1024 shares.
fn cpu_shares(milli: u32) -> u64 {
    (u64::from(milli) * 1024 / 1000).clamp(2, 1 << 18)
}

/// Adds a cpuset directory to a leaf. If the kernel refuses, the leaf goes without: no process can enter a cpuset
/// without CPUs.
fn confine_to_cpus(leaf: &mut CgroupLeaf, deployment: &Path, directory: &Path, cpus: &[u32]) {
    let above = directory.parent().unwrap_or(deployment);
    let all = || -> io::Result<()> {
        for group in [deployment, above] {
            ensure_dir(group)?;
            inherit_from_parent(group, &["cpuset.mems", "cpuset.cpus"])?;
        }
        ensure_dir(directory)?;
        inherit_from_parent(directory, &["cpuset.mems"])
    };
    leaf.confined = all().ok().and_then(|()| CpuConfinement::apply(directory.join("cpuset.cpus"), cpus));
    match leaf.confined {
        Some(_) => leaf.directories.push(directory.to_path_buf()),
        None => drop(remove_upwards(directory)),
    }
}

/// Copies settings that v1 does not inherit from the parent cgroup.
fn inherit_from_parent(group: &Path, files: &[&str]) -> io::Result<()> {
    // The root cpuset already balances load over all CPUs; balancing each cpuset would only cost time.
    write_control_if_present(&group.join("cpuset.sched_load_balance"), "0")?;
    let Some(above) = group.parent() else { return Ok(()) };
    files.iter().try_for_each(|file| {
        let has = |group: &Path| fs::read_to_string(group.join(file));
        if has(group)?.trim().is_empty() { write_control(&group.join(file), has(above)?.trim()) } else { Ok(()) }
    })
}

/// True if this process can create a cgroup there; only an attempt tells.
fn is_usable(own: &Path) -> bool {
    let Ok(trial) = TrialGroup::create(own) else { return false };
    rustix::fs::access(trial.directory.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).is_ok()
}

impl CgroupBackend for CgroupV1 {
    fn version(&self) -> CgroupVersion {
        CgroupVersion::V1
    }

    fn enforcement(&self) -> CgroupEnforcement {
        CgroupEnforcement { memory: self.memory.is_some(), cpu: self.cpu.is_some(), pids: self.pids.is_some() }
    }

    fn can_freeze(&self) -> bool {
        self.freezer.is_some()
    }

    fn has_cpuset(&self) -> bool {
        self.cpuset.is_some()
    }

    fn missing_controllers(&self) -> Option<String> {
        let controllers = [("memory", &self.memory), ("cpu", &self.cpu), ("pids", &self.pids)];
        let missing: Vec<&str> =
            controllers.iter().filter(|(_, directory)| directory.is_none()).map(|(name, _)| *name).collect();
        (!missing.is_empty()).then(|| format!("the cgroup controllers {} are not writable", missing.join(", ")))
    }

    fn create_leaf(&self, sandbox: &str, leaf: &str, limits: &LeafLimits) -> io::Result<CgroupLeaf> {
        let mut created = CgroupLeaf::default();
        let outcome = self.configure_leaf(&mut created, sandbox, leaf, limits);
        if outcome.is_err() {
            created.remove();
        }
        outcome.map(|()| created)
    }

    fn remove_stale(&self, keep: &BTreeSet<String>) {
        let all = [&self.memory, &self.cpu, &self.pids, &self.cpuacct, &self.freezer, &self.cpuset];
        for directory in all.into_iter().flatten() {
            remove_stale_groups(directory, keep);
        }
    }
}

impl CgroupV1 {
    fn configure_leaf(
        &self,
        created: &mut CgroupLeaf,
        sandbox: &str,
        leaf: &str,
        limits: &LeafLimits,
    ) -> io::Result<()> {
        if let (Some(deployment), Some(cpus)) = (&self.cpuset, &limits.cpus) {
            confine_to_cpus(created, deployment, &deployment.join(sandbox).join(leaf), cpus);
        }
        let mut open = |deployment: &Path| -> io::Result<PathBuf> {
            let group = deployment.join(sandbox);
            let directory = group.join(leaf);
            // Controllers that are mounted together share one directory.
            if !created.directories.contains(&directory) {
                ensure_dir(deployment)?;
                ensure_dir(&group)?;
                ensure_dir(&directory)?;
                created.directories.push(directory.clone());
            }
            Ok(directory)
        };
        let memory = self.memory.as_deref().map(&mut open).transpose()?;
        let cpu = self.cpu.as_deref().map(&mut open).transpose()?;
        let pids = self.pids.as_deref().map(&mut open).transpose()?;
        let accounting = self.cpuacct.as_deref().map(&mut open).transpose()?;
        // Last: a process that enters a frozen cgroup stops at once, so it must have entered all others before.
        created.freezer = self.freezer.as_deref().map(&mut open).transpose()?.map(Freezer::Version1);
        if let Some(memory) = memory {
            let limit = limits.memory_bytes.to_string();
            write_control(&memory.join("memory.limit_in_bytes"), &limit)?;
            write_control_if_present(&memory.join("memory.memsw.limit_in_bytes"), &limit)?;
            // Unlike v2, v1 does not count the buffers of sockets as memory of the cgroup.
            let buffers = (limits.memory_bytes / TCP_BUFFER_SHARE).to_string();
            write_control_if_present(&memory.join("memory.kmem.tcp.limit_in_bytes"), &buffers)?;
            created.memory = Some(memory.join("memory.usage_in_bytes"));
            created.peak = Some(memory.join("memory.max_usage_in_bytes"));
            created.oom = Some(memory.join("memory.oom_control"));
        }
        if let Some(group) = cpu.as_deref().and_then(Path::parent) {
            write_control(&group.join("cpu.shares"), &cpu_shares(limits.weight_milli).to_string())?;
        }
        if let (Some(cpu), Some(cpu_milli)) = (cpu, limits.cpu_milli) {
            write_control(&cpu.join("cpu.cfs_period_us"), &CPU_PERIOD_MICROS.to_string())?;
            match write_control(&cpu.join("cpu.cfs_quota_us"), &cpu_quota_micros(cpu_milli).to_string()) {
                // The parent has a lower quota, which applies.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                outcome => outcome?,
            }
        }
        if let Some(pids) = pids {
            write_control(&pids.join("pids.max"), &limits.pids.to_string())?;
            created.pids = Some(pids.join("pids.current"));
        }
        created.cpu = accounting.map(|directory| CpuTimeFile::Nanoseconds(directory.join("cpuacct.usage")));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs on the kernel's hierarchies, if v1 is mounted.
    #[test]
    fn sets_cpu_shares_and_cpuset() {
        let Some(groups) = CgroupV1::detect(&format!("atoll-test{}", std::process::id())) else {
            return println!("SKIPPED: cannot create a v1 cgroup here");
        };
        let (Some(cpu), Some(cpuset)) = (&groups.cpu, &groups.cpuset) else {
            return println!("SKIPPED: no cpu or cpuset controller");
        };
        let first = crate::cpu_placement::available_cpus()[0];
        let limits = |cpus| LeafLimits {
            memory_bytes: 1 << 26,
            cpu_milli: Some(500),
            pids: 10,
            weight_milli: 1500,
            cpus: Some(cpus),
        };
        let leaf = groups.create_leaf("a", "agent", &limits(vec![first])).unwrap();
        assert_eq!(fs::read_to_string(cpu.join("a/cpu.shares")).unwrap().trim(), "1536");
        let list = || fs::read_to_string(cpuset.join("a/agent/cpuset.cpus")).unwrap();
        assert_eq!(list().trim(), first.to_string());
        let mut confined = CpuConfinement { cpus: Vec::new(), ..leaf.confined.clone().unwrap() };
        confined.refresh();
        assert_eq!(Some(&confined), leaf.confined.as_ref());
        assert!(leaf.remove());
        // No host has this CPU; the sandbox starts without a cpuset.
        let leaf = groups.create_leaf("a", "agent", &limits(vec![8191])).unwrap();
        assert_eq!((leaf.confined.as_ref(), cpuset.exists()), (None, false));
        assert!(leaf.remove());
        assert_eq!([cpu_shares(1000), cpu_shares(1), cpu_shares(u32::MAX)], [1024, 2, 1 << 18]);
    }
}
