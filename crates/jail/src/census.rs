//! Who is in a sandbox, looked up in this machine's list of processes.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal};

/// A process, held so that its number can't become another's.
pub(crate) struct Inhabitant {
    pub pid: i32,
    hold: OwnedFd,
}

impl Inhabitant {
    pub fn signal(&self, signal: Signal) -> bool {
        rustix::process::pidfd_send_signal(&self.hold, signal).is_ok()
    }

    /// It does nothing and will not before it is told to: none of its threads does. The process's own state is that of
    /// its first thread, which may have ended while others go on.
    pub fn stands_still(&self) -> bool {
        states(Path::new(&format!("/proc/{}", self.pid))).all(|state| matches!(state, 'T' | 't' | 'Z' | 'X'))
    }
}

/// Whether anything of a process still runs or could, by its directory in `/proc`. One that has ended and isn't yet taken
/// note of holds nothing any more.
pub(crate) fn lives(process: &Path) -> bool {
    states(process).any(|state| !matches!(state, 'Z' | 'X'))
}

/// The threads of a process that are there, by their directories.
pub(crate) fn threads(process: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(process.join("task")).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// What each of its threads does. One that ends meanwhile is left out.
fn states(process: &Path) -> impl Iterator<Item = char> + use<> {
    threads(process).filter_map(|thread| state(&fs::read_to_string(thread.join("stat")).ok()?))
}

/// The state in a line of `/proc/<pid>/stat`, behind a name that may hold anything.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// All of a pid namespace but its first process, which is `init` on the host.
pub(crate) fn of_namespace(namespace: u64, init: i32) -> Vec<Inhabitant> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != init)
        .filter_map(|pid| member(namespace, pid))
        .collect()
}

/// The process of a number, if it is of this pid namespace. The hold comes first: what is looked up afterwards is of
/// the process that is held, or of nobody.
pub(crate) fn member(namespace: u64, pid: i32) -> Option<Inhabitant> {
    let hold = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let found = fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?.ino();
    (found == namespace).then_some(Inhabitant { pid, hold })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_its_namespace_and_stopped() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id().cast_signed();
        let namespace = fs::metadata("/proc/self/ns/pid").unwrap().ino();
        assert!(member(namespace + 1, pid).is_none());
        assert!(of_namespace(namespace, 1).iter().any(|found| found.pid == pid));
        assert!(!of_namespace(namespace, pid).iter().any(|found| found.pid == pid));
        let found = member(namespace, pid).unwrap();
        assert!(!found.stands_still());
        assert!(found.signal(Signal::STOP));
        for _ in 0..1000 {
            if found.stands_still() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(found.stands_still());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.stands_still() && !found.signal(Signal::CONT), "nobody else has its place");
    }

    #[test]
    fn a_name_does_not_pass_for_a_state() {
        assert_eq!(state("7 (a) T (b) R 1 1"), Some('R'));
        assert_eq!(state("7 (a) R) T 1 1"), Some('T'));
        assert_eq!(state("7"), None);
    }
}
