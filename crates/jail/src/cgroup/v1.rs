//! Version 1: a directory for each controller, below this process's own.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{
    Bounds, Clock, Confined, Enforces, Freezer, Groups, Leaf, PERIOD, Trial, files, make_directory, quota,
    remove_upwards, sweep, write, write_if_there,
};
use crate::report::GroupVersion;

/// The deployment's directory in each controller that can be had.
#[derive(Debug, Default)]
pub(super) struct Version1 {
    memory: Option<PathBuf>,
    cpu: Option<PathBuf>,
    pids: Option<PathBuf>,
    accounting: Option<PathBuf>,
    freezer: Option<PathBuf>,
    cpuset: Option<PathBuf>,
}

impl Version1 {
    pub fn find(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
        let usable = |controller: &str| {
            let own = files::version_1(&mounts, &membership, controller)?.own;
            usable(&own).then(|| own.join(name))
        };
        let found = Self {
            memory: usable("memory"),
            cpu: usable("cpu"),
            pids: usable("pids"),
            accounting: usable("cpuacct"),
            freezer: usable("freezer"),
            cpuset: usable("cpuset"),
        };
        let enforces = found.enforces();
        (enforces.memory || enforces.cpu || enforces.pids).then_some(found)
    }
}

/// One processor is what a group has by itself.
fn shares(milli: u32) -> u64 {
    (u64::from(milli) * 1024 / 1000).clamp(2, 1 << 18)
}

/// Adds a leaf on some processors. Where that can't be it isn't added: nobody can enter a group without processors.
fn confine(made: &mut Leaf, deployment: &Path, directory: &Path, processors: &[u32]) {
    let above = directory.parent().unwrap_or(deployment);
    let all = || -> io::Result<()> {
        for group in [deployment, above] {
            make_directory(group)?;
            inherit(group, &["cpuset.mems", "cpuset.cpus"])?;
        }
        make_directory(directory)?;
        inherit(directory, &["cpuset.mems"])
    };
    made.confined = all().ok().and_then(|()| Confined::begin(directory.join("cpuset.cpus"), processors));
    match made.confined {
        Some(_) => made.directories.push(directory.to_path_buf()),
        None => drop(remove_upwards(directory)),
    }
}

/// What a group of this version does not have by itself, it takes from the one above.
fn inherit(group: &Path, files: &[&str]) -> io::Result<()> {
    // The kernel spreads load over all processors by the topmost group: to look at each group would only cost time.
    write_if_there(&group.join("cpuset.sched_load_balance"), "0")?;
    let Some(above) = group.parent() else { return Ok(()) };
    files.iter().try_for_each(|file| {
        let has = |group: &Path| fs::read_to_string(group.join(file));
        if has(group)?.trim().is_empty() { write(&group.join(file), has(above)?.trim()) } else { Ok(()) }
    })
}

/// Tries to make a group: whether one may, only trying tells.
fn usable(own: &Path) -> bool {
    let Ok(trial) = Trial::make(own) else { return false };
    rustix::fs::access(trial.directory.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).is_ok()
}

impl Groups for Version1 {
    fn version(&self) -> GroupVersion {
        GroupVersion::V1
    }

    fn enforces(&self) -> Enforces {
        Enforces { memory: self.memory.is_some(), cpu: self.cpu.is_some(), pids: self.pids.is_some() }
    }

    fn freezes(&self) -> bool {
        self.freezer.is_some()
    }

    fn lacks(&self) -> Option<String> {
        let controllers = [("memory", &self.memory), ("cpu", &self.cpu), ("pids", &self.pids)];
        let lacking: Vec<&str> =
            controllers.iter().filter(|(_, directory)| directory.is_none()).map(|(name, _)| *name).collect();
        (!lacking.is_empty()).then(|| format!("the cgroup controllers {} are not writable", lacking.join(", ")))
    }

    fn make(&self, sandbox: &str, leaf: &str, bounds: &Bounds) -> io::Result<Leaf> {
        let mut made = Leaf::default();
        let outcome = self.fill(&mut made, sandbox, leaf, bounds);
        if outcome.is_err() {
            made.remove();
        }
        outcome.map(|()| made)
    }

    fn sweep(&self, keep: &BTreeSet<String>) {
        let all = [&self.memory, &self.cpu, &self.pids, &self.accounting, &self.freezer, &self.cpuset];
        for directory in all.into_iter().flatten() {
            sweep(directory, keep);
        }
    }
}

impl Version1 {
    fn fill(&self, made: &mut Leaf, sandbox: &str, leaf: &str, bounds: &Bounds) -> io::Result<()> {
        if let (Some(deployment), Some(processors)) = (&self.cpuset, &bounds.processors) {
            confine(made, deployment, &deployment.join(sandbox).join(leaf), processors);
        }
        let mut open = |deployment: &Path| -> io::Result<PathBuf> {
            let group = deployment.join(sandbox);
            let directory = group.join(leaf);
            // Controllers that are mounted together share one directory.
            if !made.directories.contains(&directory) {
                make_directory(deployment)?;
                make_directory(&group)?;
                make_directory(&directory)?;
                made.directories.push(directory.clone());
            }
            Ok(directory)
        };
        let memory = self.memory.as_deref().map(&mut open).transpose()?;
        let cpu = self.cpu.as_deref().map(&mut open).transpose()?;
        let pids = self.pids.as_deref().map(&mut open).transpose()?;
        let accounting = self.accounting.as_deref().map(&mut open).transpose()?;
        // Last: who enters a frozen one stops at once, and is to have entered all others by then.
        made.freezer = self.freezer.as_deref().map(&mut open).transpose()?.map(Freezer::Version1);
        if let Some(memory) = memory {
            let limit = bounds.memory_bytes.to_string();
            write(&memory.join("memory.limit_in_bytes"), &limit)?;
            write_if_there(&memory.join("memory.memsw.limit_in_bytes"), &limit)?;
            made.memory = Some(memory.join("memory.usage_in_bytes"));
            made.peak = Some(memory.join("memory.max_usage_in_bytes"));
            made.oom = Some(memory.join("memory.oom_control"));
        }
        if let Some(group) = cpu.as_deref().and_then(Path::parent) {
            write(&group.join("cpu.shares"), &shares(bounds.share_milli).to_string())?;
        }
        if let (Some(cpu), Some(cpu_milli)) = (cpu, bounds.cpu_milli) {
            write(&cpu.join("cpu.cfs_period_us"), &PERIOD.to_string())?;
            match write(&cpu.join("cpu.cfs_quota_us"), &quota(cpu_milli).to_string()) {
                // The group above has less, and that holds.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                outcome => outcome?,
            }
        }
        if let Some(pids) = pids {
            write(&pids.join("pids.max"), &bounds.pids.to_string())?;
            made.pids = Some(pids.join("pids.current"));
        }
        made.cpu = accounting.map(|directory| Clock::Nanoseconds(directory.join("cpuacct.usage")));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On the kernel's own hierarchies, where there are such.
    #[test]
    fn a_sandbox_counts_by_what_it_may_use_and_is_kept_to_its_processors() {
        let Some(groups) = Version1::find(&format!("atoll-test{}", std::process::id())) else {
            return println!("SKIPPED a_sandbox_counts_by_what_it_may_use: no group of version 1 can be made here");
        };
        let (Some(cpu), Some(cpuset)) = (&groups.cpu, &groups.cpuset) else {
            return println!("SKIPPED a_sandbox_counts_by_what_it_may_use: cpu or cpuset is lacking");
        };
        let first = crate::processors::own()[0];
        let bounds = |processors| Bounds {
            memory_bytes: 1 << 26,
            cpu_milli: Some(500),
            pids: 10,
            share_milli: 1500,
            processors: Some(processors),
        };
        let leaf = groups.make("a", "agent", &bounds(vec![first])).unwrap();
        assert_eq!(fs::read_to_string(cpu.join("a/cpu.shares")).unwrap().trim(), "1536");
        let list = || fs::read_to_string(cpuset.join("a/agent/cpuset.cpus")).unwrap();
        assert_eq!(list().trim(), first.to_string());
        let mut confined = Confined { to: Vec::new(), ..leaf.confined.clone().unwrap() };
        confined.look();
        assert_eq!(Some(&confined), leaf.confined.as_ref());
        assert!(leaf.remove());
        // No machine has that one, and a sandbox is made all the same.
        let leaf = groups.make("a", "agent", &bounds(vec![8191])).unwrap();
        assert_eq!((leaf.confined.as_ref(), cpuset.exists()), (None, false));
        assert!(leaf.remove());
        assert_eq!([shares(1000), shares(1), shares(u32::MAX)], [1024, 2, 1 << 18]);
    }
}
