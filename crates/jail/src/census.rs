//! Who is in a sandbox, looked up in this machine's list of processes.

use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal};

/// How deep a family of processes is looked through: one that grows faster than it is stopped is not waited for.
const ROUNDS: usize = 200;

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
    numbers().filter(|pid| *pid != init).filter_map(|pid| member(namespace, pid)).collect()
}

/// The process of a number, if it is of this pid namespace. The hold comes first: what is looked up afterwards is of
/// the process that is held, or of nobody.
pub(crate) fn member(namespace: u64, pid: i32) -> Option<Inhabitant> {
    let hold = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let found = fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?.ino();
    (found == namespace).then_some(Inhabitant { pid, hold })
}

/// Ends all that a process has started and that what it started has, as far as it hangs together: what has lost its parent
/// belongs to nobody any more. The process itself stands still meanwhile and stays so.
pub(crate) fn end_below(pid: i32) {
    let Some(top) = hold(pid) else { return };
    top.signal(Signal::STOP);
    // Each stands still before its children are looked up, so that none is missed.
    let mut found: Vec<Inhabitant> = vec![top];
    for _ in 0..ROUNDS {
        let known: HashSet<i32> = found.iter().map(|process| process.pid).collect();
        let is_child = |pid: &i32| !known.contains(pid) && parent(*pid).is_some_and(|parent| known.contains(&parent));
        // The hold comes first: what is looked up afterwards is of the process that is held, or of nobody.
        let fresh: Vec<Inhabitant> =
            numbers().filter(is_child).filter_map(hold).filter(|process| is_child(&process.pid)).collect();
        if fresh.is_empty() {
            break;
        }
        for process in &fresh {
            process.signal(Signal::STOP);
        }
        found.extend(fresh);
    }
    for process in found.iter().skip(1) {
        process.signal(Signal::KILL);
    }
}

fn hold(pid: i32) -> Option<Inhabitant> {
    let hold = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    Some(Inhabitant { pid, hold })
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn numbers() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
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
    fn a_family_ends_as_a_whole_and_nobody_else() {
        let start = |script: &str| std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        // Grandchildren, one of them in a session of its own.
        let mut family = start("sh -c 'sleep 61 & setsid sleep 61 & wait' & wait");
        let mut other = start("exec sleep 61");
        let pid = family.id().cast_signed();
        let descendants = || {
            let mut all = vec![pid];
            for _ in 0..4 {
                all.extend(
                    numbers().filter(|pid| parent(*pid).is_some_and(|above| all.contains(&above))).collect::<Vec<_>>(),
                );
                all.sort_unstable();
                all.dedup();
            }
            all.retain(|found| *found != pid && lives(Path::new(&format!("/proc/{found}"))));
            all
        };
        let begun = std::time::Instant::now();
        while descendants().len() < 3 {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:?}", descendants());
        }
        let all = descendants();
        end_below(pid);
        while all.iter().any(|pid| lives(Path::new(&format!("/proc/{pid}")))) {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{all:?}");
        }
        assert!(lives(Path::new(&format!("/proc/{pid}"))) && lives(Path::new(&format!("/proc/{}", other.id()))));
        for child in [&mut family, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_name_does_not_pass_for_a_state() {
        assert_eq!(state("7 (a) T (b) R 1 1"), Some('R'));
        assert_eq!(state("7 (a) R) T 1 1"), Some('T'));
        assert_eq!(state("7"), None);
    }
}
