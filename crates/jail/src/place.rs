//! Sandboxes as their users see them: what is wanted, what there is, how it ended.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::setup::programs::Shown;

/// The uid and gid of `agent` inside.
pub const AGENT: u32 = 1000;

/// What a sandbox shall be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// 1 to 64 of a-z, 0-9 and `_`.
    pub name: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub limits: Limits,
    pub hostname: String,
    /// The imported root that it shall have instead of what the host shows.
    #[serde(default)]
    pub image: Option<String>,
    /// The snapshot that it shall begin with.
    #[serde(default)]
    pub snapshot: Option<String>,
    /// Paths of the workspace, relative to it, that nobody inside may change.
    #[serde(default)]
    pub protected: Vec<String>,
    /// What of the host it is shown below `/opt/atoll/agents`, read-only: its agent's program.
    #[serde(default)]
    pub programs: Vec<Shown>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Of the agent and all it starts; a one-shot has as much again.
    pub memory_bytes: u64,
    /// Thousandths of a core.
    pub cpu_milli: u32,
    pub pids: u32,
    /// Of each process.
    pub open_files: u64,
    pub worker_memory_bytes: u64,
    /// What its files may take on disk.
    #[serde(default = "disk_bytes")]
    pub disk_bytes: u64,
}

/// For records of earlier versions.
fn disk_bytes() -> u64 {
    8 << 30
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 4 << 30,
            cpu_milli: 2000,
            pids: 1024,
            open_files: 16_384,
            worker_memory_bytes: 64 << 20,
            disk_bytes: disk_bytes(),
        }
    }
}

const MAX_LABELS: usize = 32 * 1024;
const MAX_PROTECTED: usize = 64;
const MAX_PROGRAMS: usize = 16;
const MAX_PROTECTED_BYTES: usize = 512;

fn is_protectable(path: &str) -> bool {
    path.len() <= MAX_PROTECTED_BYTES
        && !path.contains('\0')
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

impl Spec {
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_name(&self.name)?;
        let refuse = |reason: &str| Err(Error::Spec { reason: reason.to_owned() });
        if self.hostname.is_empty()
            || self.hostname.len() > 64
            || !self
                .hostname
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || byte == b'.')
        {
            return refuse("the host name must be 1 to 64 letters, digits, `-`, `_` and `.`");
        }
        // As they are written down and sent: a control character takes six bytes there.
        if serde_json::to_string(&self.labels).is_ok_and(|text| text.len() > MAX_LABELS) {
            return refuse("the labels are longer than 32 KiB");
        }
        let Limits { memory_bytes, cpu_milli, pids, open_files, worker_memory_bytes, disk_bytes } = self.limits;
        if memory_bytes < 4 << 20 || worker_memory_bytes < 4 << 20 {
            return refuse("a memory limit is under 4 MiB");
        }
        if disk_bytes < 1 << 20 {
            return refuse("the disk limit is under 1 MiB");
        }
        if cpu_milli < 10 {
            return refuse("the cpu limit is under a hundredth of a core");
        }
        if pids < 2 || open_files < 32 {
            return refuse("fewer than 2 processes or 32 open files can't run anything");
        }
        if self.protected.len() > MAX_PROTECTED || !self.protected.iter().all(|path| is_protectable(path)) {
            return refuse("a protected path must be plain: relative, without `.`, `..`, or a slash at its end");
        }
        let is_shown = |shown: &Shown| shown.from.is_absolute() && is_protectable(&shown.at);
        if self.programs.len() > MAX_PROGRAMS || !self.programs.iter().all(is_shown) {
            return refuse("a program must be at an absolute path of the host, and shown at a plain one");
        }
        self.image.iter().chain(&self.snapshot).try_for_each(|name| check_label(name))
    }
}

/// The name of a snapshot or an image.
pub(crate) fn check_label(name: &str) -> Result<(), Error> {
    let letter = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = (1..=64).contains(&name.len())
        && name.as_bytes().first().is_some_and(letter)
        && name.bytes().all(|byte| letter(&byte) || matches!(byte, b'.' | b'_' | b'-'));
    if fits { Ok(()) } else { Err(Error::Label { name: name.to_owned() }) }
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if fits { Ok(()) } else { Err(Error::Name { name: name.to_owned() }) }
}

/// A sandbox that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub limits: Limits,
    pub dir: PathBuf,
    /// Where the worker listens while it lives.
    pub socket: PathBuf,
    /// Where on the host its workspace is written to: all of it, or what has changed since it was forked or snapshotted.
    pub workspace: PathBuf,
    /// The imported root that it has.
    pub image: Option<String>,
    pub spool: PathBuf,
    /// What the worker writes to its standard error.
    pub log: PathBuf,
    pub alive: bool,
    /// Its processes stand still; only the worker goes on.
    #[serde(default)]
    pub paused: bool,
    /// What was to be protected and was not there when the worker started.
    #[serde(default)]
    pub unprotected: Vec<String>,
    /// A worker was started in it, now or before.
    pub started: bool,
    /// It left something in its spool.
    #[serde(default)]
    pub spooled: bool,
    /// How the worker ended, if it did under this launcher.
    pub exit: Option<Exit>,
    /// The host's ids that are its own, if it has such.
    pub range: Option<Range>,
    pub enforced: Enforced,
}

impl Place {
    /// Connects to the worker, also where the socket's path is longer than an address can hold.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let directory = File::open(self.socket.parent().unwrap_or(&self.dir))?;
        UnixStream::connect(format!("/proc/self/fd/{}/sock", directory.as_raw_fd()))
    }
}

/// What shall run in a sandbox that lives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub argv: Vec<String>,
    /// Besides what every program there has.
    pub environment: BTreeMap<String, String>,
    /// Where it starts; by default the workspace.
    pub directory: Option<String>,
    pub as_root: bool,
}

/// Neighbouring ids of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
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
    /// It ended, and nobody who could know how was there.
    Unknown,
}

/// How each limit is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforced {
    pub memory: Bound,
    pub cpu: Bound,
    pub pids: Bound,
    pub open_files: Bound,
    pub disk: Bound,
    pub ids: Ids,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// For the sandbox as a whole, by the kernel.
    Enforced,
    /// For each process of it alone.
    PerProcess,
    /// Looked at now and then; who goes over it is stopped.
    Watched,
    No,
}

/// Whose ids the sandbox's processes have on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ids {
    /// A range of its own, which nobody else has.
    Own,
    /// A range that all sandboxes have: ids of mounts can't be mapped here.
    Common,
    /// The launching user's sub-ids, the same for each of their sandboxes.
    Shared,
    /// The launching user's own id and no other.
    Single,
}

/// What a sandbox uses; `None` is what isn't counted here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub memory: Option<u64>,
    pub memory_peak: Option<u64>,
    pub oom_kills: Option<u64>,
    pub cpu_microseconds: Option<u64>,
    pub processes: Option<u64>,
}

/// What a sandbox's files take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUse {
    /// On disk: a hole in a file takes none, a file with several names counts once, and the least that one takes is
    /// 4 KiB.
    pub bytes: u64,
    /// Not counted, and 0, where the kernel itself counts what they take.
    pub files: u64,
    /// What is left for all sandboxes together, where the kernel bounds each.
    #[serde(default)]
    pub room: Option<u64>,
}

/// The processor time that a living sandbox has used, in microseconds, where it is counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    pub name: String,
    pub worker: Option<u64>,
    pub agent: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec {
            name: "sbx_1".into(),
            labels: BTreeMap::new(),
            limits: Limits::default(),
            hostname: "atoll".into(),
            image: None,
            snapshot: None,
            protected: Vec::new(),
            programs: Vec::new(),
        }
    }

    #[test]
    fn refuses_names_of_snapshots_that_could_leave_their_directory() {
        for name in ["", ".", "..", "a/b", "A", ".a", "-a", "ä", &"a".repeat(65)] {
            assert!(check_label(name).is_err(), "{name}");
        }
        for name in ["a", "0", "debian-12.1_x", &"a".repeat(64)] {
            assert!(check_label(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn refuses_names_that_could_leave_their_directory() {
        for name in ["", ".", "..", "a/b", "A", "a-b", "ä", &"a".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        for name in ["a", "sbx_0190", &"a".repeat(64)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn refuses_limits_that_nothing_can_run_under() {
        assert!(spec().check().is_ok());
        let with = |change: fn(&mut Spec)| {
            let mut spec = spec();
            change(&mut spec);
            spec.check()
        };
        assert!(with(|spec| spec.limits.memory_bytes = 0).is_err());
        assert!(with(|spec| spec.limits.cpu_milli = 9).is_err());
        assert!(with(|spec| spec.limits.pids = 1).is_err());
        for path in ["", "/a", "a/", "a//b", "../a", "a/./b", "a\0b"] {
            assert!(Spec { protected: vec![path.into()], ..spec() }.check().is_err(), "{path:?}");
        }
        assert!(Spec { protected: vec![".github/workflows".into()], ..spec() }.check().is_ok());
        assert!(with(|spec| spec.hostname = "a b".into()).is_err());
        assert!(with(|spec| drop(spec.labels.insert("k".into(), "v".repeat(MAX_LABELS)))).is_err());
    }
}
