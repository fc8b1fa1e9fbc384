//! Cgroup limits for a whole sandbox, with cgroup v2 or v1.
//!
//! Each sandbox has a cgroup with one leaf for its worker, one for its agent and one per one-shot run, so that the
//! agent's usage never counts against the worker. Cgroups exist only while they have processes.

mod freezer;
mod hierarchy;
mod no_cgroups;
mod v1;
mod v2;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cpu_placement;
use crate::host_report::CgroupVersion;
use crate::sandbox::{Enforcement, ResourceLimits, SandboxUsage};

pub(crate) use freezer::Freezer;

pub(crate) trait CgroupBackend {
    fn version(&self) -> CgroupVersion;
    fn enforcement(&self) -> CgroupEnforcement;
    /// True if a leaf can be frozen as a whole.
    fn can_freeze(&self) -> bool;
    /// True if sandboxes can be confined to some CPUs.
    fn has_cpuset(&self) -> bool;
    /// The service whose end would end the sandboxes, because their cgroups are in its own.
    fn ending_unit(&self) -> Option<&str> {
        None
    }
    /// Explains which controllers are missing, for the host's administrator.
    fn missing_controllers(&self) -> Option<String>;
    /// Creates an empty leaf of a sandbox's cgroup, with its limits.
    fn create_leaf(&self, sandbox: &str, leaf: &str, limits: &LeafLimits) -> io::Result<CgroupLeaf>;
    /// Removes cgroups without processes, except those of the sandboxes in `keep`.
    fn remove_stale(&self, keep: &BTreeSet<String>);
}

/// Picks the best cgroup version that this process may use.
pub(crate) fn detect_backend(deployment: &str) -> Box<dyn CgroupBackend> {
    let name = directory_name(deployment);
    if let Some(groups) = v2::CgroupV2::detect(&name) {
        return Box::new(groups);
    }
    if let Some(groups) = v1::CgroupV1::detect(&name) {
        return Box::new(groups);
    }
    Box::new(no_cgroups::NoCgroups)
}

fn directory_name(deployment: &str) -> String {
    let short = deployment.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).take(8);
    format!("atoll-{}", short.collect::<String>())
}

/// The limits that cgroups enforce for a whole sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CgroupEnforcement {
    pub memory: bool,
    pub cpu: bool,
    pub pids: bool,
}

impl CgroupEnforcement {
    pub fn enforcement_or(enforced: bool, otherwise: Enforcement) -> Enforcement {
        if enforced { Enforcement::Enforced } else { otherwise }
    }
}

/// The limits of one leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeafLimits {
    pub memory_bytes: u64,
    pub cpu_milli: Option<u32>,
    pub pids: u32,
    /// CPU weight of the whole sandbox under contention: its CPU limit. A sandbox with a small limit cannot starve one
    /// with a large limit.
    pub weight_milli: u32,
    /// CPUs that the leaf may run on; `None` for all.
    pub cpus: Option<Vec<u32>>,
}

impl LeafLimits {
    pub fn for_agent(limits: &ResourceLimits) -> Self {
        let ResourceLimits { memory_bytes, cpu_milli, pids, .. } = *limits;
        Self { memory_bytes, cpu_milli: Some(cpu_milli), pids, weight_milli: cpu_milli, cpus: None }
    }

    /// The worker's CPU time has no limit, so that a busy agent cannot delay it.
    pub fn for_worker(limits: &ResourceLimits) -> Self {
        let memory_bytes = limits.worker_memory_bytes;
        Self { memory_bytes, cpu_milli: None, pids: 64, weight_milli: limits.cpu_milli, cpus: None }
    }
}

/// Period of the CPU quota, in microseconds.
const CPU_PERIOD_MICROS: u64 = 100_000;

fn cpu_quota_micros(cpu_milli: u32) -> u64 {
    u64::from(cpu_milli) * CPU_PERIOD_MICROS / 1000
}

/// A cgroup with processes: its directories and its usage files, for either version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CgroupLeaf {
    /// One in v2, one per controller in v1.
    pub directories: Vec<PathBuf>,
    /// True if `clone3` can start a process in it (`CLONE_INTO_CGROUP`).
    #[serde(rename = "born_into")]
    pub supports_clone_into: bool,
    memory: Option<PathBuf>,
    peak: Option<PathBuf>,
    oom: Option<PathBuf>,
    cpu: Option<CpuTimeFile>,
    pids: Option<PathBuf>,
    /// Records of earlier versions have none.
    #[serde(default)]
    pub freezer: Option<Freezer>,
    /// Set if the leaf is confined to some CPUs; records of earlier versions have none.
    #[serde(default)]
    pub confined: Option<CpuConfinement>,
}

/// A leaf's cpuset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CpuConfinement {
    file: PathBuf,
    #[serde(rename = "to")]
    pub cpus: Vec<u32>,
}

impl CpuConfinement {
    /// Confines a leaf; returns `None` if the kernel refuses. The CPU quota still applies then.
    fn apply(file: PathBuf, to: &[u32]) -> Option<Self> {
        write_control(&file, &cpu_placement::format_cpu_list(to)).ok()?;
        Some(Self { file, cpus: to.to_vec() })
    }

    /// Reads the current CPUs of an adopted leaf, which an earlier launcher may have moved.
    pub fn refresh(&mut self) {
        if let Ok(text) = fs::read_to_string(&self.file) {
            self.cpus = cpu_placement::parse_cpu_list(&text);
        }
    }

    /// Moves the leaf's processes to other CPUs.
    pub fn move_to(&mut self, to: Vec<u32>) -> io::Result<()> {
        write_control(&self.file, &cpu_placement::format_cpu_list(&to))?;
        self.cpus = to;
        Ok(())
    }
}

/// The file that reports the CPU time used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum CpuTimeFile {
    /// A line `usage_usec N`.
    Microseconds(PathBuf),
    /// The number alone.
    Nanoseconds(PathBuf),
}

/// The open files of the agent's leaf that a worker inherits.
pub(crate) struct LeafFiles {
    pub procs_files: Vec<File>,
    pub oom: Option<File>,
    pub peak: Option<File>,
}

impl CgroupLeaf {
    /// Moves a process into the leaf.
    pub fn add_process(&self, pid: i32) -> io::Result<()> {
        let text = pid.to_string();
        self.directories.iter().try_for_each(|directory| write_control(&directory.join("cgroup.procs"), &text))
    }

    pub fn open_files(&self) -> io::Result<LeafFiles> {
        let admissions = self
            .directories
            .iter()
            .map(|directory| OpenOptions::new().write(true).open(directory.join("cgroup.procs")))
            .collect::<io::Result<_>>()?;
        let open = |path: &Option<PathBuf>| path.as_ref().map(File::open).transpose();
        Ok(LeafFiles { procs_files: admissions, oom: open(&self.oom)?, peak: open(&self.peak)? })
    }

    pub fn oom_kills(&self) -> Option<u64> {
        parse_keyed_value(&fs::read_to_string(self.oom.as_ref()?).ok()?, "oom_kill")
    }

    pub fn usage(&self) -> SandboxUsage {
        let number = |path: &Option<PathBuf>| fs::read_to_string(path.as_ref()?).ok()?.trim().parse().ok();
        SandboxUsage {
            memory: number(&self.memory),
            memory_peak: number(&self.peak),
            oom_kills: self.oom_kills(),
            cpu_microseconds: self.cpu_micros(),
            processes: number(&self.pids),
        }
    }

    /// Reads the CPU time used, in microseconds.
    pub fn cpu_micros(&self) -> Option<u64> {
        match self.cpu.as_ref()? {
            CpuTimeFile::Microseconds(path) => parse_keyed_value(&fs::read_to_string(path).ok()?, "usage_usec"),
            CpuTimeFile::Nanoseconds(path) => Some(fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()? / 1000),
        }
    }

    /// Lists the pids in the leaf; `None` without cgroups.
    pub fn list_pids(&self) -> Option<Vec<i32>> {
        let text = fs::read_to_string(self.directories.first()?.join("cgroup.procs")).ok()?;
        Some(text.lines().filter_map(|line| line.trim().parse().ok()).collect())
    }

    /// Removes the leaf, and its parents if it was their last child. Returns `false` while a process is still exiting.
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
    // The sandbox's cgroup, then the deployment's; each stays while it has children.
    if let Some(sandbox) = directory.parent() {
        remove_empty_one_shots(sandbox);
    }
    for above in directory.ancestors().skip(1).take(2) {
        if fs::remove_dir(above).is_err() {
            break;
        }
    }
    true
}

/// Name prefix of the leaves of one-shot runs; a number follows.
pub(crate) const ONE_SHOT_PREFIX: &str = "job";

/// Removes the leaves of one-shot runs that ended under an earlier launcher.
///
/// `rmdir` fails on a leaf with processes. This launcher's own leaves are never empty here: it creates and fills each
/// in one step.
fn remove_empty_one_shots(sandbox: &Path) {
    for leaf in subdirectories(sandbox) {
        if leaf.file_name().is_some_and(|name| name.to_string_lossy().starts_with(ONE_SHOT_PREFIX)) {
            let _ = fs::remove_dir(leaf);
        }
    }
}

/// Removes all cgroups below a deployment's directory except those in `keep`, then the directory itself if it is empty.
fn remove_stale_groups(deployment: &Path, keep: &BTreeSet<String>) {
    for sandbox in subdirectories(deployment) {
        let name = sandbox.file_name().map(|name| name.to_string_lossy().into_owned());
        if name.is_some_and(|name| keep.contains(&name)) {
            remove_empty_one_shots(&sandbox);
            continue;
        }
        for leaf in subdirectories(&sandbox) {
            // `rmdir` fails on a leaf with processes.
            let _ = fs::remove_dir(leaf);
        }
        let _ = fs::remove_dir(sandbox);
    }
    let _ = fs::remove_dir(deployment);
}

fn subdirectories(path: &Path) -> Vec<PathBuf> {
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

/// Writes a control file without creating it: a missing file means a missing feature.
fn write_control(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// Like [`write_control`], but ignores a file that this kernel does not have.
fn write_control_if_present(path: &Path, text: &str) -> io::Result<()> {
    match write_control(path, text) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// A temporary cgroup that shows whether this process may create one.
struct TrialGroup {
    directory: PathBuf,
}

impl TrialGroup {
    fn create(parent: &Path) -> io::Result<Self> {
        let directory = parent.join(format!("atoll-trial-{}", std::process::id()));
        ensure_dir(&directory)?;
        Ok(Self { directory })
    }
}

impl Drop for TrialGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

fn ensure_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        outcome => outcome,
    }
}

/// Parses the number after `key` in lines of the form "key number".
fn parse_keyed_value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_counters() {
        let events = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n";
        assert_eq!(parse_keyed_value(events, "oom_kill"), Some(2));
        assert_eq!(parse_keyed_value("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n", "oom_kill"), Some(1));
        assert_eq!(parse_keyed_value("usage_usec 77\n", "usage_usec"), Some(77));
        assert_eq!(parse_keyed_value("", "oom_kill"), None);
        assert_eq!(cpu_quota_micros(1500), 150_000);
        assert_eq!(directory_name("dep_0190abcdef"), "atoll-dep_0190");
        assert_eq!(directory_name("../x"), "atoll-___x");
    }

    #[test]
    fn removes_stale_cgroups_only() {
        let base = tempfile::tempdir().unwrap();
        let deployment = base.path().join("atoll-a");
        for path in ["gone/worker", "gone/agent", "kept/worker", "kept/job7"] {
            fs::create_dir_all(deployment.join(path)).unwrap();
        }
        remove_stale_groups(&deployment, &BTreeSet::from(["kept".to_owned()]));
        assert!(deployment.join("kept/worker").exists() && !deployment.join("kept/job7").exists());
        assert!(!deployment.join("gone").exists());
        remove_stale_groups(&deployment, &BTreeSet::new());
        assert!(!deployment.exists());
    }
}
