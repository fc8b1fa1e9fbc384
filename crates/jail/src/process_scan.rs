//! Finds a sandbox's processes in the host's `/proc`.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal};

/// Limits the search for descendants: a tree that grows faster than it can be stopped is not followed further.
const MAX_SCAN_ROUNDS: usize = 200;

/// A process with its pidfd, which keeps the pid from being reused unnoticed.
pub(crate) struct ProcessHandle {
    pub pid: i32,
    pidfd: OwnedFd,
}

impl ProcessHandle {
    pub fn send_signal(&self, signal: Signal) -> bool {
        rustix::process::pidfd_send_signal(&self.pidfd, signal).is_ok()
    }

    /// True if every thread is stopped or dead. The state of the process itself is only that of its first thread, which
    /// may have exited while others run.
    pub fn is_stopped(&self) -> bool {
        thread_states(Path::new(&format!("/proc/{}", self.pid))).all(|state| matches!(state, 'T' | 't' | 'Z' | 'X'))
    }
}

/// True if a thread of the process, given by its `/proc` directory, can still run. A zombie holds no resources.
pub(crate) fn is_process_alive(process: &Path) -> bool {
    thread_states(process).any(|state| !matches!(state, 'Z' | 'X'))
}

/// Lists the `/proc` directories of a process's threads.
pub(crate) fn thread_dirs(process: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(process.join("task")).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Reads the state of each thread, without threads that exit meanwhile.
fn thread_states(process: &Path) -> impl Iterator<Item = char> + use<> {
    thread_dirs(process).filter_map(|thread| parse_state(&fs::read_to_string(thread.join("stat")).ok()?))
}

/// Parses the state in `/proc/<pid>/stat`. The process name before it may contain anything.
fn parse_state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Opens all processes of a pid namespace except its init, whose pid on the host is `init`.
pub(crate) fn processes_in_namespace(namespace: u64, init: i32) -> Vec<ProcessHandle> {
    list_pids().filter(|pid| *pid != init).filter_map(|pid| open_in_namespace(namespace, pid)).collect()
}

/// Opens a process if it is in this pid namespace. The pidfd comes first, so the later check is about the same process.
pub(crate) fn open_in_namespace(namespace: u64, pid: i32) -> Option<ProcessHandle> {
    let pidfd = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let found = fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?.ino();
    (found == namespace).then_some(ProcessHandle { pid, pidfd })
}

/// Kills all descendants of a process, as far as the parent links reach: an orphan is not found. The process itself is
/// stopped and stays stopped.
pub(crate) fn kill_descendants(pid: i32) {
    let Some(top) = open_process(pid) else { return };
    top.send_signal(Signal::STOP);
    // Stop each process before listing its children, so that none is missed.
    let mut found: Vec<ProcessHandle> = vec![top];
    for _ in 0..MAX_SCAN_ROUNDS {
        let known: HashSet<i32> = found.iter().map(|process| process.pid).collect();
        let is_child =
            |pid: &i32| !known.contains(pid) && parent_pid(*pid).is_some_and(|parent| known.contains(&parent));
        // Open the pidfd first, then check the parent again: the pid may belong to a new process.
        let fresh: Vec<ProcessHandle> =
            list_pids().filter(is_child).filter_map(open_process).filter(|process| is_child(&process.pid)).collect();
        if fresh.is_empty() {
            break;
        }
        for process in &fresh {
            process.send_signal(Signal::STOP);
        }
        found.extend(fresh);
    }
    for process in found.iter().skip(1) {
        process.send_signal(Signal::KILL);
    }
}

fn open_process(pid: i32) -> Option<ProcessHandle> {
    let pidfd = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    Some(ProcessHandle { pid, pidfd })
}

fn parent_pid(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn list_pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use atoll_test_wait::wait_until;

    use super::*;

    #[test]
    fn finds_processes_by_namespace_and_stops_them() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let namespace = fs::metadata("/proc/self/ns/pid").unwrap().ino();
        assert!(open_in_namespace(namespace + 1, pid).is_none());
        assert!(processes_in_namespace(namespace, 1).iter().any(|found| found.pid == pid));
        assert!(!processes_in_namespace(namespace, pid).iter().any(|found| found.pid == pid));
        let found = open_in_namespace(namespace, pid).unwrap();
        assert!(!found.is_stopped());
        assert!(found.send_signal(Signal::STOP));
        wait_until("the process to stop", || found.is_stopped());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.is_stopped() && !found.send_signal(Signal::CONT), "the pid was not reused");
    }

    #[test]
    fn kills_all_descendants_and_no_other_process() {
        let start = |script: &str| std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        // Grandchildren, one of them in its own session.
        let mut family = start("sh -c 'sleep 61 & setsid sleep 61 & wait' & wait");
        let mut other = start("exec sleep 61");
        let pid = family.id().cast_signed();
        let descendants = || {
            let mut all = vec![pid];
            for _ in 0..4 {
                all.extend(
                    list_pids()
                        .filter(|pid| parent_pid(*pid).is_some_and(|above| all.contains(&above)))
                        .collect::<Vec<_>>(),
                );
                all.sort_unstable();
                all.dedup();
            }
            all.retain(|found| *found != pid && is_process_alive(Path::new(&format!("/proc/{found}"))));
            all
        };
        wait_until("the descendants to start", || descendants().len() >= 3);
        let all = descendants();
        kill_descendants(pid);
        wait_until("the descendants to die", || {
            !all.iter().any(|pid| is_process_alive(Path::new(&format!("/proc/{pid}"))))
        });
        assert!(
            is_process_alive(Path::new(&format!("/proc/{pid}")))
                && is_process_alive(Path::new(&format!("/proc/{}", other.id())))
        );
        for child in [&mut family, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn parses_the_state_after_a_name_with_brackets() {
        assert_eq!(parse_state("7 (a) T (b) R 1 1"), Some('R'));
        assert_eq!(parse_state("7 (a) R) T 1 1"), Some('T'));
        assert_eq!(parse_state("7"), None);
    }
}
