//! The processes, cgroups and mounts that sandboxes have on the host.

use atoll_test_wait::{WAIT_TIMEOUT, try_wait_for};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A process identified by its pidfd, so that a reused pid cannot be mistaken for it.
pub struct HostProcess {
    pub pid: u32,
    name: String,
    descriptor: OwnedFd,
}

impl std::fmt::Debug for HostProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.pid, self.name)
    }
}

impl HostProcess {
    /// Opens a process by its pid, if `is_match` still holds once the pidfd pins the process.
    pub fn open(pid: u32, is_match: impl Fn() -> bool) -> Option<Self> {
        let raw_pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let descriptor = rustix::process::pidfd_open(raw_pid, PidfdFlags::empty()).ok()?;
        let name = command_line(pid);
        let process = Self { pid, name, descriptor };
        (is_match() && process.is_alive()).then_some(process)
    }

    pub fn is_alive(&self) -> bool {
        !self.ends_within(Duration::ZERO)
    }

    /// Waits for the end of the process. False at the time-out, which is generous enough for a slow machine.
    pub fn ends_in_time(&self) -> bool {
        self.ends_within(WAIT_TIMEOUT)
    }

    fn ends_within(&self, most: Duration) -> bool {
        let timeout = Timespec::try_from(most).unwrap();
        let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut descriptors, Some(&timeout))).unwrap() > 0
    }

    /// Sends SIGKILL. Returns whether the process still existed.
    pub fn kill(&self) -> bool {
        self.send_signal(Signal::KILL)
    }

    /// Sends a signal. Returns whether the process still existed.
    pub fn send_signal(&self, signal: Signal) -> bool {
        rustix::process::pidfd_send_signal(&self.descriptor, signal).is_ok()
    }

    /// Reaps an orphan that was reparented to this process.
    pub fn reap(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let _ = rustix::process::waitid(WaitId::PidFd(self.descriptor.as_fd()), options);
    }

    /// Reads a field of its `/proc/…/status`.
    pub fn status_field(&self, field: &str) -> Option<String> {
        parse_status_field(&self.read_proc_file("status"), field)
    }

    pub fn read_proc_file(&self, name: &str) -> String {
        std::fs::read(self.proc_path(name))
            .map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "))
            .unwrap_or_default()
    }

    pub fn proc_path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    /// The pid in its own, innermost namespace.
    pub fn inner_pid(&self) -> Option<u32> {
        self.status_field("NSpid")?.split_whitespace().last()?.parse().ok()
    }
}

fn command_line(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_owned()
}

/// Finds a field in a text with the format of `/proc/self/status`.
pub fn parse_status_field(status: &str, field: &str) -> Option<String> {
    status.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned()))
}

/// The pids of all processes of this machine.
fn all_pids() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn find_processes_by_status(field: &str, value: &str) -> Vec<HostProcess> {
    let matches = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        parse_status_field(&status, field).is_some_and(|found| found.split_whitespace().next() == Some(value))
    };
    let pids = all_pids().into_iter().filter(|pid| matches(*pid));
    pids.filter_map(|pid| HostProcess::open(pid, || matches(pid))).collect()
}

/// Lists the living children of a process.
pub fn list_children(parent: u32) -> Vec<HostProcess> {
    find_processes_by_status("PPid", &parent.to_string())
}

/// Lists the processes of a user.
pub fn list_user_processes(uid: u32) -> Vec<HostProcess> {
    find_processes_by_status("Uid", &uid.to_string())
}

fn mount_points(kinds: &[&str]) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        kinds.contains(&kind.split(' ').next()?).then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    };
    table.lines().filter_map(point).collect()
}

/// Lists the mounts whose mount point or source is under `dir`.
pub fn mounts_under(dir: &Path) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter(|line| line.contains(dir.to_str().unwrap())).map(str::to_owned).collect()
}

/// Lists the processes of this machine, in any namespace, that have a mount from `dir`.
pub fn list_processes_with_mounts(dir: &Path) -> Vec<String> {
    let pids = all_pids().into_iter().filter(|pid| has_mount_of(*pid, dir));
    pids.map(|pid| format!("{pid} {}", command_line(pid))).collect()
}

fn has_mount_of(pid: u32, dir: &Path) -> bool {
    let table = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    table.contains(dir.to_str().unwrap())
}

/// Kills the processes of [`list_processes_with_mounts`], to clean up after a failed test.
pub fn kill_processes_with_mounts(dir: &Path) {
    for pid in all_pids() {
        if let Some(process) = HostProcess::open(pid, || has_mount_of(pid, dir)) {
            process.kill();
            process.ends_within(Duration::from_secs(2));
            process.reap();
        }
    }
}

/// Finds the directories of a sandbox in every cgroup hierarchy.
pub fn find_cgroups(id: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = mount_points(&["cgroup", "cgroup2"]);
    while let Some(dir) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let name = entry.file_name();
            if name == id {
                found.push(entry.path());
            } else if !name.to_string_lossy().starts_with("sbx_") {
                // Sandboxes are not nested, and there may be hundreds: skip the others.
                open.push(entry.path());
            }
        }
    }
    found
}

/// Returns true if the agent's cgroup has a memory limit.
pub fn has_memory_limit(id: &str) -> bool {
    let limited = |file: PathBuf| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.trim().parse().is_ok_and(|bytes: u64| bytes < 1 << 40)
    };
    let limit_files = |dir: PathBuf| ["agent/memory.max", "agent/memory.limit_in_bytes"].map(|name| dir.join(name));
    find_cgroups(id).into_iter().flat_map(limit_files).any(limited)
}

/// Reads the kernel's count of the agent's processes.
pub fn count_agent_processes(id: &str) -> Option<usize> {
    let count = |dir: PathBuf| std::fs::read_to_string(dir.join("agent/pids.current")).ok()?.trim().parse().ok();
    find_cgroups(id).into_iter().find_map(count)
}

fn read_cgroup_pids(cgroup: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Lists the processes in one leaf cgroup of a sandbox: `worker` or `agent`.
pub fn list_leaf_processes(id: &str, leaf: &str) -> Vec<HostProcess> {
    let mut found: Vec<HostProcess> = Vec::new();
    for cgroup in find_cgroups(id).into_iter().map(|dir| dir.join(leaf)) {
        for pid in read_cgroup_pids(&cgroup) {
            if found.iter().all(|process| process.pid != pid) {
                found.extend(HostProcess::open(pid, || read_cgroup_pids(&cgroup).contains(&pid)));
            }
        }
    }
    found
}

pub fn list_sandbox_processes(id: &str) -> Vec<HostProcess> {
    let mut all = list_leaf_processes(id, "worker");
    all.extend(list_leaf_processes(id, "agent"));
    all
}

/// Finds the worker, which is pid 1 of a sandbox.
pub fn find_worker_process(id: &str) -> Option<HostProcess> {
    list_leaf_processes(id, "worker").into_iter().find(|process| process.inner_pid() == Some(1))
}

/// Limits the worker's memory to what it needs now and `more` bytes. False if no cgroup limits it.
pub fn limit_worker_memory(id: &str, more: u64) -> bool {
    // Version 1 and version 2 of cgroups: the limit, and what cannot be reclaimed.
    let forms = [("memory.limit_in_bytes", "rss "), ("memory.max", "anon ")];
    find_cgroups(id).into_iter().map(|dir| dir.join("worker")).any(|leaf| {
        forms.iter().any(|(limit, used)| {
            let stat = std::fs::read_to_string(leaf.join("memory.stat")).unwrap_or_default();
            let used = stat.lines().find_map(|line| line.strip_prefix(used)?.parse::<u64>().ok());
            let file = leaf.join(limit);
            used.is_some_and(|used| file.exists() && std::fs::write(file, (used + more).to_string()).is_ok())
        })
    })
}

/// Kills the processes and removes the cgroups that a sandbox left behind.
pub fn remove_leftovers(id: &str) {
    let _ = try_wait_for(|| {
        for process in list_sandbox_processes(id) {
            process.kill();
            process.ends_within(Duration::from_secs(2));
            process.reap();
        }
        for dir in find_cgroups(id) {
            remove_cgroup_tree(&dir);
            // The server's own cgroup, if this was its last sandbox.
            dir.parent().map(std::fs::remove_dir);
        }
        if find_cgroups(id).is_empty() { Ok(()) } else { Err(()) }
    });
}

/// Removes the leaves first: `rmdir` removes only a cgroup without children.
fn remove_cgroup_tree(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup_tree(&entry.path());
        }
    }
    drop(std::fs::remove_dir(dir));
}

/// Every file below a directory that contains a text.
pub fn files_with(directory: &Path, text: &str) -> Vec<String> {
    let found = std::process::Command::new("grep").args(["-rlaF", "--", text]).arg(directory).output().unwrap();
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}
