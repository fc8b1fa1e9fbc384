//! The launcher's view of sandboxes: specification, state, limits and usage.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::setup::programs::HostProgram;

/// The uid and gid of `agent` inside a sandbox.
pub const AGENT_UID: u32 = 1000;

/// The specification of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// 1 to 64 characters of a-z, 0-9 and `_`.
    pub name: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub limits: ResourceLimits,
    pub hostname: String,
    /// The image to use as root instead of the host's directories.
    #[serde(default)]
    pub image: Option<String>,
    /// The snapshot to start from.
    #[serde(default)]
    pub snapshot: Option<String>,
    /// The cache to start from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheStart>,
    /// Workspace paths, relative to it, that are read-only inside.
    #[serde(default)]
    pub protected: Vec<String>,
    /// Programs of the host, visible read-only below `/opt/atoll/agents`: the agent's own.
    #[serde(default)]
    pub programs: Vec<HostProgram>,
}

/// The cache that a sandbox starts from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStart {
    pub name: String,
    /// The client removes all files but the package managers' downloads.
    pub downloads_only: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// For the agent and its processes; a one-shot run has the same limit again.
    pub memory_bytes: u64,
    /// Thousandths of a CPU.
    pub cpu_milli: u32,
    pub pids: u32,
    /// Per process.
    pub open_files: u64,
    pub worker_memory_bytes: u64,
    /// Disk usage of the sandbox's files.
    #[serde(default = "default_disk_bytes")]
    pub disk_bytes: u64,
}

/// Default for records of earlier versions.
fn default_disk_bytes() -> u64 {
    8 << 30
}

impl Default for ResourceLimits {
    fn default() -> Self {
        Self {
            memory_bytes: 4 << 30,
            cpu_milli: 2000,
            pids: 1024,
            open_files: 16_384,
            worker_memory_bytes: 64 << 20,
            disk_bytes: default_disk_bytes(),
        }
    }
}

const MAX_LABEL_BYTES: usize = 32 * 1024;
const MAX_PROTECTED_PATHS: usize = 64;
const MAX_PROGRAMS: usize = 16;
const MAX_PATH_BYTES: usize = 512;

fn is_plain_relative_path(path: &str) -> bool {
    path.len() <= MAX_PATH_BYTES && !path.contains('\0') && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

impl SandboxSpec {
    pub(crate) fn validate(&self) -> Result<(), Error> {
        validate_name(&self.name)?;
        let refuse = |reason: &str| Err(Error::InvalidSpec { reason: reason.to_owned() });
        if self.hostname.is_empty()
            || self.hostname.len() > 64
            || !self
                .hostname
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || byte == b'.')
        {
            return refuse("the host name must be 1 to 64 letters, digits, `-`, `_` and `.`");
        }
        // Measure the JSON form: a control character takes six bytes there.
        if serde_json::to_string(&self.labels).is_ok_and(|text| text.len() > MAX_LABEL_BYTES) {
            return refuse("the labels are longer than 32 KiB");
        }
        let ResourceLimits { memory_bytes, cpu_milli, pids, open_files, worker_memory_bytes, disk_bytes } = self.limits;
        if memory_bytes < 4 << 20 || worker_memory_bytes < 4 << 20 {
            return refuse("a memory limit is under 4 MiB");
        }
        if disk_bytes < 1 << 20 {
            return refuse("the disk limit is under 1 MiB");
        }
        if cpu_milli < 10 {
            return refuse("the cpu limit is under a hundredth of a CPU");
        }
        if pids < 2 || open_files < 32 {
            return refuse("the limits must allow at least 2 processes and 32 open files");
        }
        if self.protected.len() > MAX_PROTECTED_PATHS || !self.protected.iter().all(|path| is_plain_relative_path(path))
        {
            return refuse("a protected path must be relative, without `.`, `..` or a trailing slash");
        }
        let is_valid_program =
            |program: &HostProgram| program.from.is_absolute() && is_plain_relative_path(&program.at);
        if self.programs.len() > MAX_PROGRAMS || !self.programs.iter().all(is_valid_program) {
            return refuse("a program needs an absolute path on the host and a plain relative path inside");
        }
        if self.snapshot.is_some() && self.cache.is_some() {
            return refuse("a sandbox starts from a snapshot or from a cache, not from both");
        }
        let cache = self.cache.as_ref().map(|cache| &cache.name);
        self.image.iter().chain(&self.snapshot).chain(cache).try_for_each(|name| validate_label(name))
    }
}

/// Validates the name of a snapshot, an image or a cache.
pub(crate) fn validate_label(name: &str) -> Result<(), Error> {
    let letter = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = (1..=64).contains(&name.len())
        && name.as_bytes().first().is_some_and(letter)
        && name.bytes().all(|byte| letter(&byte) || matches!(byte, b'.' | b'_' | b'-'));
    if fits { Ok(()) } else { Err(Error::InvalidLabel { name: name.to_owned() }) }
}

pub(crate) fn validate_name(name: &str) -> Result<(), Error> {
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if fits { Ok(()) } else { Err(Error::InvalidName { name: name.to_owned() }) }
}

/// An existing sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxInfo {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub limits: ResourceLimits,
    pub dir: PathBuf,
    /// The socket that the worker listens on.
    pub worker_socket: PathBuf,
    /// The host directory of the workspace's top layer: all files, or the changes since the last fork or snapshot.
    pub workspace: PathBuf,
    /// The image that it uses as root.
    pub image: Option<String>,
    /// The cache that it started from.
    #[serde(default)]
    pub cache: Option<CacheStart>,
    pub spool: PathBuf,
    /// The worker's stderr.
    pub log: PathBuf,
    pub is_alive: bool,
    /// All processes except the worker are stopped.
    #[serde(default)]
    pub is_paused: bool,
    /// Protected paths that did not exist when the worker started.
    #[serde(default)]
    pub unprotected: Vec<String>,
    /// True if renaming a directory from before the last fork or snapshot fails with `EXDEV`.
    #[serde(default)]
    pub has_fixed_dirs: bool,
    /// True if a seal would make renames of the present directories fail with `EXDEV`.
    #[serde(default)]
    pub seals_fix_dirs: bool,
    /// True if a worker was ever started in it.
    pub was_started: bool,
    /// True if the spool is not empty.
    #[serde(default)]
    pub has_spool: bool,
    /// The worker's exit, if it happened under this launcher.
    pub exit: Option<Exit>,
    /// The id range on the host that only this sandbox has.
    pub id_range: Option<IdRange>,
    pub enforced: EnforcedLimits,
}

impl SandboxInfo {
    /// Connects to the worker, even if the socket's path is too long for an address.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let directory = File::open(self.worker_socket.parent().unwrap_or(&self.dir))?;
        UnixStream::connect(format!("/proc/self/fd/{}/sock", directory.as_raw_fd()))
    }
}

/// A program to run in a running sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramSpec {
    pub argv: Vec<String>,
    /// Added to the default environment.
    pub env: BTreeMap<String, String>,
    /// By default the workspace.
    pub working_dir: Option<String>,
    pub as_root: bool,
}

/// A range of ids of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    pub first: u32,
    pub count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    Exited(i32),
    Signalled(i32),
    OutOfMemory,
    TimedOut,
    /// The exit happened under another launcher.
    Unknown,
}

/// The enforcement of each limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcedLimits {
    pub memory: Enforcement,
    pub cpu: Enforcement,
    pub pids: Enforcement,
    pub open_files: Enforcement,
    pub disk: Enforcement,
    pub ids: IdMapKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// By the kernel, for the whole sandbox.
    Enforced,
    /// By the kernel, for each process alone.
    PerProcess,
    /// Only monitored; the server stops a sandbox that exceeds it.
    #[serde(rename = "watched")]
    Monitored,
    #[serde(rename = "no")]
    None,
}

/// The mapping of a sandbox's ids to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdMapKind {
    /// A range that no other sandbox has.
    #[serde(rename = "own")]
    OwnRange,
    /// A range that all sandboxes share: idmapped mounts are not supported here.
    #[serde(rename = "common")]
    CommonRange,
    /// The launching user's sub-ids, shared by all of that user's sandboxes.
    #[serde(rename = "shared")]
    SubIds,
    /// The launching user's own id only.
    #[serde(rename = "single")]
    SingleId,
}

/// Resource usage; `None` is not measured on this host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxUsage {
    pub memory: Option<u64>,
    pub memory_peak: Option<u64>,
    pub oom_kills: Option<u64>,
    pub cpu_microseconds: Option<u64>,
    pub processes: Option<u64>,
}

/// Disk usage of a sandbox's files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUsage {
    /// Holes are free, a file with several hard links counts once, and each file counts at least 4 KiB.
    pub bytes: u64,
    /// Not counted, and 0, where quotas are enforced.
    pub files: u64,
    /// Free space in the file system that all sandboxes share, where quotas are enforced.
    #[serde(default)]
    pub free_pool_bytes: Option<u64>,
}

/// CPU time that a running sandbox has used, in microseconds, if measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTimes {
    pub name: String,
    pub worker: Option<u64>,
    pub agent: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> SandboxSpec {
        SandboxSpec {
            name: "sbx_1".into(),
            labels: BTreeMap::new(),
            limits: ResourceLimits::default(),
            hostname: "atoll".into(),
            image: None,
            snapshot: None,
            cache: None,
            protected: Vec::new(),
            programs: Vec::new(),
        }
    }

    #[test]
    fn rejects_snapshot_names_that_could_leave_their_directory() {
        for name in ["", ".", "..", "a/b", "A", ".a", "-a", "ä", &"a".repeat(65)] {
            assert!(validate_label(name).is_err(), "{name}");
        }
        for name in ["a", "0", "debian-12.1_x", &"a".repeat(64)] {
            assert!(validate_label(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn rejects_names_that_could_leave_their_directory() {
        for name in ["", ".", "..", "a/b", "A", "a-b", "ä", &"a".repeat(65)] {
            assert!(validate_name(name).is_err(), "{name}");
        }
        for name in ["a", "sbx_0190", &"a".repeat(64)] {
            assert!(validate_name(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn rejects_limits_that_are_too_low() {
        assert!(spec().validate().is_ok());
        let with = |change: fn(&mut SandboxSpec)| {
            let mut spec = spec();
            change(&mut spec);
            spec.validate()
        };
        assert!(with(|spec| spec.limits.memory_bytes = 0).is_err());
        assert!(with(|spec| spec.limits.cpu_milli = 9).is_err());
        assert!(with(|spec| spec.limits.pids = 1).is_err());
        for path in ["", "/a", "a/", "a//b", "../a", "a/./b", "a\0b"] {
            assert!(SandboxSpec { protected: vec![path.into()], ..spec() }.validate().is_err(), "{path:?}");
        }
        assert!(SandboxSpec { protected: vec![".github/workflows".into()], ..spec() }.validate().is_ok());
        assert!(with(|spec| spec.hostname = "a b".into()).is_err());
        assert!(with(|spec| drop(spec.labels.insert("k".into(), "v".repeat(MAX_LABEL_BYTES)))).is_err());
    }
}
