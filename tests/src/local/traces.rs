//! What sandboxes are on the host: processes, known by pidfd and found by cgroup, cgroups and mounts.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A process that can't become another one: the descriptor stands for it, not the number.
pub struct Process {
    pub pid: u32,
    name: String,
    descriptor: OwnedFd,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.pid, self.name)
    }
}

impl Process {
    /// The process of this number, if `is_it` still says so once nobody else can become it.
    pub fn open(pid: u32, is_it: impl Fn() -> bool) -> Option<Self> {
        let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let descriptor = rustix::process::pidfd_open(number, PidfdFlags::empty()).ok()?;
        let name = command_line(pid);
        let process = Self { pid, name, descriptor };
        (is_it() && process.is_alive()).then_some(process)
    }

    pub fn is_alive(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    pub fn ends_within(&self, most: Duration) -> bool {
        let timeout = Timespec::try_from(most).unwrap();
        let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
        poll(&mut descriptors, Some(&timeout)).unwrap() > 0
    }

    /// Says whether there was still somebody to be killed.
    pub fn kill(&self) -> bool {
        rustix::process::pidfd_send_signal(&self.descriptor, Signal::KILL).is_ok()
    }

    /// Takes note of the end of an orphan that came to this process.
    pub fn reap(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let _ = rustix::process::waitid(WaitId::PidFd(self.descriptor.as_fd()), options);
    }

    /// A line of its `/proc/…/status`.
    pub fn status(&self, field: &str) -> Option<String> {
        field_of(&self.file("status"), field)
    }

    pub fn file(&self, name: &str) -> String {
        std::fs::read(self.path(name))
            .map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "))
            .unwrap_or_default()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    /// Its number in its own, innermost namespace.
    pub fn inner_pid(&self) -> Option<u32> {
        self.status("NSpid")?.split_whitespace().last()?.parse().ok()
    }
}

fn command_line(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_owned()
}

/// A field of a text that is made like `/proc/self/status`.
pub fn field_of(status: &str, field: &str) -> Option<String> {
    status.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned()))
}

/// Every process of this machine, by number.
fn all_pids() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn with_status(field: &str, value: &str) -> Vec<Process> {
    let fits = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        field_of(&status, field).is_some_and(|found| found.split_whitespace().next() == Some(value))
    };
    let pids = all_pids().into_iter().filter(|pid| fits(*pid));
    pids.filter_map(|pid| Process::open(pid, || fits(pid))).collect()
}

/// The processes that `parent` has started and that live.
pub fn children(parent: u32) -> Vec<Process> {
    with_status("PPid", &parent.to_string())
}

/// All processes of a user.
pub fn of_user(uid: u32) -> Vec<Process> {
    with_status("Uid", &uid.to_string())
}

fn mount_points(kinds: &[&str]) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        kinds.contains(&kind.split(' ').next()?).then(|| place.split(' ').nth(4).map(PathBuf::from))?
    };
    table.lines().filter_map(point).collect()
}

/// Mounts whose place or source is under `dir`.
pub fn mounts_under(dir: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter(|line| line.contains(dir.to_str().unwrap())).map(str::to_owned).collect()
}

/// Processes of this machine, in whatever namespace, that have something of `dir` mounted.
pub fn living_in(dir: &Path) -> Vec<String> {
    let living = all_pids().into_iter().filter(|pid| shows(*pid, dir));
    living.map(|pid| format!("{pid} {}", command_line(pid))).collect()
}

fn shows(pid: u32, dir: &Path) -> bool {
    let table = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    table.contains(dir.to_str().unwrap())
}

/// Ends those, for a test that fails.
pub fn end_all_in(dir: &Path) {
    for pid in all_pids() {
        if let Some(process) = Process::open(pid, || shows(pid, dir)) {
            process.kill();
            process.ends_within(Duration::from_secs(2));
            process.reap();
        }
    }
}

/// The directories of a sandbox in every cgroup hierarchy.
pub fn cgroups(id: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = mount_points(&["cgroup", "cgroup2"]);
    while let Some(dir) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let name = entry.file_name();
            if name == id {
                found.push(entry.path());
            } else if !name.to_string_lossy().starts_with("sbx_") {
                // One sandbox is not in another, and there may be hundreds.
                open.push(entry.path());
            }
        }
    }
    found
}

/// Whether the agent of a sandbox has a bound on its memory as a whole.
pub fn limits_memory(id: &str) -> bool {
    let limited = |file: PathBuf| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.trim().parse().is_ok_and(|bytes: u64| bytes < 1 << 40)
    };
    let agent = |dir: PathBuf| dir.join("agent");
    let named = |dir: PathBuf| ["memory.max", "memory.limit_in_bytes"].map(|name| dir.join(name));
    cgroups(id).into_iter().map(agent).flat_map(named).any(limited)
}

/// How many processes the agent of a sandbox has, as the kernel counts them.
pub fn process_count(id: &str) -> Option<usize> {
    let count = |dir: PathBuf| std::fs::read_to_string(dir.join("agent/pids.current")).ok()?.trim().parse().ok();
    cgroups(id).into_iter().find_map(count)
}

fn members(cgroup: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// The processes of one leaf of a sandbox: `worker` or `agent`.
pub fn leaf(id: &str, leaf: &str) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    for cgroup in cgroups(id).into_iter().map(|dir| dir.join(leaf)) {
        for pid in members(&cgroup) {
            if found.iter().all(|process| process.pid != pid) {
                found.extend(Process::open(pid, || members(&cgroup).contains(&pid)));
            }
        }
    }
    found
}

pub fn processes(id: &str) -> Vec<Process> {
    let mut all = leaf(id, "worker");
    all.extend(leaf(id, "agent"));
    all
}

/// Pid 1 of a sandbox.
pub fn worker(id: &str) -> Option<Process> {
    leaf(id, "worker").into_iter().find(|process| process.inner_pid() == Some(1))
}

/// Whatever is left of a sandbox goes.
pub fn wipe(id: &str) {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let (processes, cgroups) = (processes(id), cgroups(id));
        if cgroups.is_empty() || Instant::now() > deadline {
            return;
        }
        for process in &processes {
            process.kill();
            process.ends_within(Duration::from_secs(2));
            process.reap();
        }
        for dir in &cgroups {
            remove_tree(dir);
            // The one that holds all of a server's, if this was the last.
            dir.parent().map(std::fs::remove_dir);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Leaves first: a cgroup goes by `rmdir`, and takes its files along.
fn remove_tree(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    drop(std::fs::remove_dir(dir));
}
