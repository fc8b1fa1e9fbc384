//! Version 2: one directory, in the nearest group above this process where limits can be set.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{
    Bounds, Clock, Confined, Enforces, Freezer, Groups, Leaf, PERIOD, Trial, files, make_directory, quota,
    remove_upwards, sweep, write, write_if_there,
};
use crate::report::GroupVersion;

const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// Good to have: without it processor time is bounded all the same.
const CONFINES: &str = "cpuset";

#[derive(Debug)]
pub(super) struct Version2 {
    /// The deployment's directory.
    directory: PathBuf,
    enforces: Enforces,
    /// Groups can be kept on some processors.
    confines: bool,
}

impl Version2 {
    pub fn find(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
        let hierarchy = files::version_2(&mounts, &membership)?;
        Self::below(&hierarchy, name)
    }

    /// The group, of this process's own and those above it, that can enforce most; of equals the nearest.
    fn below(hierarchy: &files::Hierarchy, name: &str) -> Option<Self> {
        let mut best: Option<Self> = None;
        for parent in hierarchy.own.ancestors().take_while(|path| path.starts_with(&hierarchy.mount)) {
            let Some(found) = Self::at(parent, name, parent == hierarchy.own) else { continue };
            if found.worth() > best.as_ref().map_or(0, Self::worth) {
                best = Some(found);
            }
            if best.as_ref().map_or(0, Self::worth) == CONTROLLERS.len() {
                break;
            }
        }
        best
    }

    fn at(parent: &Path, name: &str, own: bool) -> Option<Self> {
        let trial = Trial::make(parent).ok()?;
        // Who moves a process needs to write into what both its old and its new group are in.
        let movable = [trial.directory.as_path(), parent]
            .into_iter()
            .all(|group| rustix::fs::access(group.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).is_ok());
        let enabled = if movable { enable(parent, own) } else { Vec::new() };
        let has = |controller: &str| enabled.iter().any(|name| name == controller);
        let enforces = Enforces { memory: has("memory"), cpu: has("cpu"), pids: has("pids") };
        Some(Self { directory: parent.join(name), enforces, confines: has(CONFINES) })
    }

    fn worth(&self) -> usize {
        let Enforces { memory, cpu, pids } = self.enforces;
        [memory, cpu, pids].into_iter().filter(|enforced| *enforced).count()
    }
}

/// Hands the controllers down to the groups below `parent`, and says which it has handed down now.
fn enable(parent: &Path, own: bool) -> Vec<String> {
    let control = parent.join("cgroup.subtree_control");
    let words = |path: &Path| -> Vec<String> {
        fs::read_to_string(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    let available = words(&parent.join("cgroup.controllers"));
    let enabled = words(&control);
    for controller in CONTROLLERS.into_iter().chain([CONFINES]) {
        if enabled.iter().any(|name| name == controller) || !available.iter().any(|name| name == controller) {
            continue;
        }
        let text = format!("+{controller}");
        match write(&control, &text) {
            // A group with processes can't hand down. Where the only ones are this launcher and the server that
            // started it, they can step into a group of their own.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && own && step_aside(parent) => {
                let _ = write(&control, &text);
            }
            Ok(()) | Err(_) => {}
        }
    }
    words(&control)
}

fn step_aside(own: &Path) -> bool {
    let here: Vec<u32> = fs::read_to_string(own.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect();
    let ours = [std::process::id(), std::os::unix::process::parent_id()];
    if here.is_empty() || !here.iter().all(|pid| ours.contains(pid)) {
        return false;
    }
    let aside = own.join("atoll-server");
    make_directory(&aside).is_ok()
        && here.iter().all(|pid| write(&aside.join("cgroup.procs"), &pid.to_string()).is_ok())
}

/// One processor is what a group has by itself.
fn weight(milli: u32) -> u32 {
    (milli / 10).clamp(1, 10_000)
}

impl Groups for Version2 {
    fn version(&self) -> GroupVersion {
        GroupVersion::V2
    }

    fn enforces(&self) -> Enforces {
        self.enforces
    }

    fn freezes(&self) -> bool {
        true
    }

    fn lacks(&self) -> Option<String> {
        let Enforces { memory, cpu, pids } = self.enforces;
        let lacking: Vec<&str> = [("memory", memory), ("cpu", cpu), ("pids", pids)]
            .into_iter()
            .filter(|(_, enforced)| !enforced)
            .map(|(name, _)| name)
            .collect();
        (!lacking.is_empty()).then(|| format!("the cgroup controllers {} are not delegated", lacking.join(", ")))
    }

    fn make(&self, sandbox: &str, leaf: &str, bounds: &Bounds) -> io::Result<Leaf> {
        let group = self.directory.join(sandbox);
        let directory = group.join(leaf);
        match self.fill(&group, &directory, bounds) {
            Ok(()) => {
                let processors = bounds.processors.as_deref().filter(|_| self.confines);
                let confined =
                    processors.and_then(|processors| Confined::begin(directory.join("cpuset.cpus"), processors));
                Ok(Leaf { confined, ..self.describe(directory) })
            }
            Err(error) => {
                remove_upwards(&directory);
                Err(error)
            }
        }
    }

    fn sweep(&self, keep: &BTreeSet<String>) {
        sweep(&self.directory, keep);
    }
}

impl Version2 {
    fn fill(&self, group: &Path, directory: &Path, bounds: &Bounds) -> io::Result<()> {
        make_directory(&self.directory)?;
        self.hand_down(&self.directory)?;
        make_directory(group)?;
        self.hand_down(group)?;
        make_directory(directory)?;
        if self.enforces.cpu {
            write(&group.join("cpu.weight"), &weight(bounds.share_milli).to_string())?;
        }
        if self.enforces.memory {
            write(&directory.join("memory.max"), &bounds.memory_bytes.to_string())?;
            write_if_there(&directory.join("memory.swap.max"), "0")?;
        }
        if let (true, Some(cpu_milli)) = (self.enforces.cpu, bounds.cpu_milli) {
            write(&directory.join("cpu.max"), &format!("{} {PERIOD}", quota(cpu_milli)))?;
        }
        if self.enforces.pids {
            write(&directory.join("pids.max"), &bounds.pids.to_string())?;
        }
        Ok(())
    }

    fn hand_down(&self, directory: &Path) -> io::Result<()> {
        let Enforces { memory, cpu, pids } = self.enforces;
        let wanted: Vec<&str> = [("+memory", memory), ("+cpu", cpu), ("+pids", pids), ("+cpuset", self.confines)]
            .into_iter()
            .filter(|(_, enforced)| *enforced)
            .map(|(name, _)| name)
            .collect();
        if wanted.is_empty() { Ok(()) } else { write(&directory.join("cgroup.subtree_control"), &wanted.join(" ")) }
    }

    fn describe(&self, directory: PathBuf) -> Leaf {
        let Enforces { memory, cpu, pids } = self.enforces;
        let file = |enforced: bool, name: &str| enforced.then(|| directory.join(name));
        // The peak came with kernel 5.19.
        Leaf {
            born_into: true,
            memory: file(memory, "memory.current"),
            peak: file(memory && directory.join("memory.peak").exists(), "memory.peak"),
            oom: file(memory, "memory.events"),
            cpu: file(cpu, "cpu.stat").map(Clock::Microseconds),
            pids: file(pids, "pids.current"),
            // Of kernel 5.2; the sandbox needs a newer one anyway.
            freezer: Some(Freezer::Version2(directory.clone())),
            directories: vec![directory],
            confined: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that looks like a hierarchy; unlike the kernel's it makes no files by itself.
    fn group(path: &Path, controllers: &str, handed_down: &str) {
        fs::create_dir_all(path).unwrap();
        for (file, text) in
            [("cgroup.controllers", controllers), ("cgroup.subtree_control", handed_down), ("cgroup.procs", "")]
        {
            fs::write(path.join(file), text).unwrap();
        }
    }

    #[test]
    fn takes_the_nearest_group_that_hands_down_most() {
        let base = tempfile::tempdir().unwrap();
        let (mount, slice) = (base.path().to_path_buf(), base.path().join("slice"));
        let own = slice.join("scope");
        group(&mount, "memory cpu pids", "memory cpu pids");
        group(&slice, "memory cpu pids", "memory pids");
        group(&own, "memory pids", "");
        for parent in [&mount, &slice, &own] {
            group(&parent.join(format!("atoll-trial-{}", std::process::id())), "", "");
        }
        let hierarchy = files::Hierarchy { mount: mount.clone(), own: own.clone() };
        // Writing to the imitation replaces its text, so each group hands down what was written last.
        let found = Version2::below(&hierarchy, "atoll-a").unwrap();
        assert_eq!(found.enforces, Enforces { memory: true, cpu: true, pids: true });
        assert_eq!(found.directory, mount.join("atoll-a"));

        group(&slice, "memory cpu pids", "memory cpu pids");
        let found = Version2::below(&hierarchy, "atoll-a").unwrap();
        assert_eq!(found.directory, slice.join("atoll-a"));
        assert!(!found.confines, "nobody has that to hand down");
        assert_eq!([weight(1000), weight(9), weight(u32::MAX)], [100, 1, 10_000]);
    }

    #[test]
    fn nothing_handed_down_is_no_group_at_all() {
        let base = tempfile::tempdir().unwrap();
        group(base.path(), "", "");
        group(&base.path().join(format!("atoll-trial-{}", std::process::id())), "", "");
        let hierarchy = files::Hierarchy { mount: base.path().into(), own: base.path().into() };
        assert!(Version2::below(&hierarchy, "atoll-a").is_none());
    }

    #[test]
    fn only_this_process_and_its_parent_step_aside() {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("atoll-server")).unwrap();
        fs::write(base.path().join("atoll-server/cgroup.procs"), "").unwrap();
        let with = |pids: &str| {
            fs::write(base.path().join("cgroup.procs"), pids).unwrap();
            step_aside(base.path())
        };
        assert!(!with(""));
        assert!(!with("1\n2\n"));
        assert!(!with(&format!("{}\n999999\n", std::process::id())));
        assert!(with(&format!("{}\n", std::process::id())));
    }

    /// On the kernel's own hierarchy, if it is there, also where it has no controllers to give.
    #[test]
    fn a_process_is_born_into_its_leaf_and_the_leaf_goes_after_it() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap();
        let Some(hierarchy) = files::version_2(&mounts, &membership) else {
            return println!("SKIPPED a_process_is_born_into_its_leaf: no cgroup2 is mounted");
        };
        let directory = hierarchy.own.join(format!("atoll-test{}", std::process::id()));
        let groups = Version2 { directory: directory.clone(), enforces: Enforces::default(), confines: false };
        let bounds =
            Bounds { memory_bytes: 1 << 20, cpu_milli: Some(1000), pids: 10, share_milli: 1500, processors: None };
        let Ok(leaf) = groups.make("a", "worker", &bounds) else {
            return println!("SKIPPED a_process_is_born_into_its_leaf: no group can be made here");
        };
        assert!(leaf.born_into);
        let opened = fs::File::open(&leaf.directories[0]).unwrap();
        let (wait, go) = rustix::pipe::pipe().unwrap();
        let process = crate::kernel::spawn(0, Some(std::os::fd::AsFd::as_fd(&opened)), || {
            crate::kernel::close_copy(std::os::fd::AsFd::as_fd(&go));
            let mut byte = [0];
            i32::from(rustix::io::read(&wait, &mut byte).is_err())
        })
        .unwrap();
        let members = fs::read_to_string(leaf.directories[0].join("cgroup.procs")).unwrap();
        assert_eq!(members.trim(), process.pid.to_string());
        assert!(!leaf.remove(), "somebody is in it");
        drop(go);
        process.wait().unwrap();
        assert!(leaf.remove());
        assert!(!directory.exists());
    }
}
