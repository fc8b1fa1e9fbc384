//! Limits on a sandbox as a whole, by whichever cgroups this machine has.
//!
//! A sandbox has a group of its own with one leaf for its worker, one for its agent and one for each one-shot, so that
//! what the agent does never counts against the worker. Groups exist only while processes are in them.

mod files;
mod freezer;
mod none;
mod v1;
mod v2;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::place::{Bound, Limits, Usage};
use crate::processors;
use crate::report::GroupVersion;

pub(crate) use freezer::Freezer;

pub(crate) trait Groups {
    fn version(&self) -> GroupVersion;
    fn enforces(&self) -> Enforces;
    /// Whether all of a leaf can be made to stand still.
    fn freezes(&self) -> bool;
    /// Why it isn't more, in words for the owner of the machine.
    fn lacks(&self) -> Option<String>;
    /// Makes a leaf of a sandbox's group, with its limits set and nobody in it.
    fn make(&self, sandbox: &str, leaf: &str, bounds: &Bounds) -> io::Result<Leaf>;
    /// Removes what is left of groups without processes, but those of `keep`.
    fn sweep(&self, keep: &BTreeSet<String>);
}

/// The best that there is here.
pub(crate) fn find(deployment: &str) -> Box<dyn Groups> {
    let name = directory_name(deployment);
    if let Some(groups) = v2::Version2::find(&name) {
        return Box::new(groups);
    }
    if let Some(groups) = v1::Version1::find(&name) {
        return Box::new(groups);
    }
    Box::new(none::NoGroups)
}

fn directory_name(deployment: &str) -> String {
    let short = deployment.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).take(8);
    format!("atoll-{}", short.collect::<String>())
}

/// Which limits hold for a sandbox as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Enforces {
    pub memory: bool,
    pub cpu: bool,
    pub pids: bool,
}

impl Enforces {
    pub fn bound(enforced: bool, otherwise: Bound) -> Bound {
        if enforced { Bound::Enforced } else { otherwise }
    }
}

/// The limits of one leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub memory_bytes: u64,
    pub cpu_milli: Option<u32>,
    pub pids: u32,
    /// What all of the sandbox counts beside others where processors are scarce: what it may use at most. So one that
    /// may use little can't hold up one that may use much.
    pub share_milli: u32,
    /// The processors that it may run on, if not on all.
    pub processors: Option<Vec<u32>>,
}

impl Bounds {
    pub fn agent(limits: &Limits) -> Self {
        let Limits { memory_bytes, cpu_milli, pids, .. } = *limits;
        Self { memory_bytes, cpu_milli: Some(cpu_milli), pids, share_milli: cpu_milli, processors: None }
    }

    /// The worker's own processor time isn't bounded: a busy agent shall not make it late.
    pub fn worker(limits: &Limits) -> Self {
        let memory_bytes = limits.worker_memory_bytes;
        Self { memory_bytes, cpu_milli: None, pids: 64, share_milli: limits.cpu_milli, processors: None }
    }
}

/// The period over which processor time is shared out, in microseconds.
const PERIOD: u64 = 100_000;

fn quota(cpu_milli: u32) -> u64 {
    u64::from(cpu_milli) * PERIOD / 1000
}

/// A group with processes: its directories, and where to read what they use, whichever version made it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leaf {
    /// One in version 2, one for each controller in version 1.
    pub directories: Vec<PathBuf>,
    /// A process can be born into it.
    pub born_into: bool,
    memory: Option<PathBuf>,
    peak: Option<PathBuf>,
    oom: Option<PathBuf>,
    cpu: Option<Clock>,
    pids: Option<PathBuf>,
    /// What stops all of it; records of earlier versions have none.
    #[serde(default)]
    pub freezer: Option<Freezer>,
    /// If it may not run on all processors; records of earlier versions have none.
    #[serde(default)]
    pub confined: Option<Confined>,
}

/// A leaf that runs on some processors only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Confined {
    file: PathBuf,
    pub to: Vec<u32>,
}

impl Confined {
    /// Confines a leaf; where that can't be, it is not: processor time is bounded all the same.
    fn begin(file: PathBuf, to: &[u32]) -> Option<Self> {
        write(&file, &processors::list(to)).ok()?;
        Some(Self { file, to: to.to_vec() })
    }

    /// Of a leaf that was made earlier, and that may have been moved since.
    pub fn look(&mut self) {
        if let Ok(text) = fs::read_to_string(&self.file) {
            self.to = processors::of_list(&text);
        }
    }

    /// What runs in the leaf goes on elsewhere.
    pub fn move_to(&mut self, to: Vec<u32>) -> io::Result<()> {
        write(&self.file, &processors::list(&to))?;
        self.to = to;
        Ok(())
    }
}

/// A file with the processor time used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Clock {
    /// A line `usage_usec N`.
    Microseconds(PathBuf),
    /// The number alone.
    Nanoseconds(PathBuf),
}

/// What of a leaf a worker needs to hold.
pub(crate) struct Held {
    pub admissions: Vec<File>,
    pub oom: Option<File>,
    pub peak: Option<File>,
}

impl Leaf {
    /// Moves a process into the leaf.
    pub fn enter(&self, pid: i32) -> io::Result<()> {
        let text = pid.to_string();
        self.directories.iter().try_for_each(|directory| write(&directory.join("cgroup.procs"), &text))
    }

    pub fn hold(&self) -> io::Result<Held> {
        let admissions = self
            .directories
            .iter()
            .map(|directory| OpenOptions::new().write(true).open(directory.join("cgroup.procs")))
            .collect::<io::Result<_>>()?;
        let open = |path: &Option<PathBuf>| path.as_ref().map(File::open).transpose();
        Ok(Held { admissions, oom: open(&self.oom)?, peak: open(&self.peak)? })
    }

    pub fn oom_kills(&self) -> Option<u64> {
        keyed(&fs::read_to_string(self.oom.as_ref()?).ok()?, "oom_kill")
    }

    pub fn usage(&self) -> Usage {
        let number = |path: &Option<PathBuf>| fs::read_to_string(path.as_ref()?).ok()?.trim().parse().ok();
        Usage {
            memory: number(&self.memory),
            memory_peak: number(&self.peak),
            oom_kills: self.oom_kills(),
            cpu_microseconds: self.clock(),
            processes: number(&self.pids),
        }
    }

    /// The processor time used, in microseconds.
    pub fn clock(&self) -> Option<u64> {
        match self.cpu.as_ref()? {
            Clock::Microseconds(path) => keyed(&fs::read_to_string(path).ok()?, "usage_usec"),
            Clock::Nanoseconds(path) => Some(fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()? / 1000),
        }
    }

    /// The processes in it, if it is a cgroup at all.
    pub fn members(&self) -> Option<Vec<i32>> {
        let text = fs::read_to_string(self.directories.first()?.join("cgroup.procs")).ok()?;
        Some(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
    }

    /// Removes the leaf, and the groups above it when it was their last. `false` is: not yet, somebody is still on
    /// the way out of it.
    pub fn remove(&self) -> bool {
        self.directories.iter().filter(|directory| !remove_upwards(directory)).count() == 0
    }
}

fn remove_upwards(directory: &Path) -> bool {
    match fs::remove_dir(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(_) => return false,
    }
    // The sandbox's group, then the deployment's: they have other leaves, or go too.
    if let Some(sandbox) = directory.parent() {
        remove_one_shots(sandbox);
    }
    for above in directory.ancestors().skip(1).take(2) {
        if fs::remove_dir(above).is_err() {
            break;
        }
    }
    true
}

/// How the leaves of one-shots are called, before their number.
pub(crate) const ONE_SHOT: &str = "job";

/// Removes leaves of one-shots that ended with an earlier launcher. One with processes isn't empty and stays, and none
/// is ever seen empty by its own launcher, which makes and fills it in one go.
fn remove_one_shots(sandbox: &Path) {
    for leaf in directories(sandbox) {
        if leaf.file_name().is_some_and(|name| name.to_string_lossy().starts_with(ONE_SHOT)) {
            let _ = fs::remove_dir(leaf);
        }
    }
}

/// Removes all groups below a deployment's directory but those of `keep`, and itself when it is empty then.
fn sweep(deployment: &Path, keep: &BTreeSet<String>) {
    for sandbox in directories(deployment) {
        let name = sandbox.file_name().map(|name| name.to_string_lossy().into_owned());
        if name.is_some_and(|name| keep.contains(&name)) {
            remove_one_shots(&sandbox);
            continue;
        }
        for leaf in directories(&sandbox) {
            // One that has processes stays: it isn't empty.
            let _ = fs::remove_dir(leaf);
        }
        let _ = fs::remove_dir(sandbox);
    }
    let _ = fs::remove_dir(deployment);
}

fn directories(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path)
        .map(|entries| {
            entries
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path())
                .collect()
        })
        .unwrap_or_default()
}

/// Writes without creating: a control file that isn't there is an ability that isn't there.
fn write(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// As [`write`], for what older kernels or other settings don't have.
fn write_if_there(path: &Path, text: &str) -> io::Result<()> {
    match write(path, text) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// A group that is made to see whether one can be, under a name that nobody else uses.
struct Trial {
    directory: PathBuf,
}

impl Trial {
    fn make(parent: &Path) -> io::Result<Self> {
        let directory = parent.join(format!("atoll-trial-{}", std::process::id()));
        make_directory(&directory)?;
        Ok(Self { directory })
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

/// The number after `key` in a file of lines "key number".
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_counters() {
        let events = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n";
        assert_eq!(keyed(events, "oom_kill"), Some(2));
        assert_eq!(keyed("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "oom_kill"), Some(1));
        assert_eq!(keyed("usage_usec 77\n", "usage_usec"), Some(77));
        assert_eq!(keyed("", "oom_kill"), None);
        assert_eq!(quota(1500), 150_000);
        assert_eq!(directory_name("dep_0190abcdef"), "atoll-dep_0190");
        assert_eq!(directory_name("../x"), "atoll-___x");
    }

    #[test]
    fn sweeping_leaves_what_lives() {
        let base = tempfile::tempdir().unwrap();
        let deployment = base.path().join("atoll-a");
        for path in ["gone/worker", "gone/agent", "kept/worker", "kept/job7"] {
            fs::create_dir_all(deployment.join(path)).unwrap();
        }
        sweep(&deployment, &BTreeSet::from(["kept".to_owned()]));
        assert!(deployment.join("kept/worker").exists() && !deployment.join("kept/job7").exists());
        assert!(!deployment.join("gone").exists());
        sweep(&deployment, &BTreeSet::new());
        assert!(!deployment.exists());
    }
}
