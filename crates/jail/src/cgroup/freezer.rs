//! Stops all processes of a group at once, and lets them go on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use super::{keyed, write};

/// The directory whose processes it stops, by the version of its cgroups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Freezer {
    Version1(PathBuf),
    Version2(PathBuf),
}

impl Freezer {
    /// Begins to stop them; [`Freezer::is_frozen`] tells when all have.
    pub fn freeze(&self) -> io::Result<()> {
        match self {
            Self::Version1(directory) => write(&directory.join("freezer.state"), "FROZEN"),
            Self::Version2(directory) => write(&directory.join("cgroup.freeze"), "1"),
        }
    }

    pub fn thaw(&self) -> io::Result<()> {
        match self {
            Self::Version1(directory) => write(&directory.join("freezer.state"), "THAWED"),
            Self::Version2(directory) => write(&directory.join("cgroup.freeze"), "0"),
        }
    }

    /// It was told to stop them, whether or not all have by now.
    pub fn is_freezing(&self) -> bool {
        match self {
            Self::Version1(directory) => state(directory).is_some_and(|state| state != "THAWED"),
            Self::Version2(directory) => {
                fs::read_to_string(directory.join("cgroup.freeze")).is_ok_and(|text| text.trim() == "1")
            }
        }
    }

    pub fn is_frozen(&self) -> bool {
        match self {
            Self::Version1(directory) => state(directory).is_some_and(|state| state == "FROZEN"),
            Self::Version2(directory) => {
                fs::read_to_string(directory.join("cgroup.events")).is_ok_and(|text| keyed(&text, "frozen") == Some(1))
            }
        }
    }

    /// Ends what stands still in it. Version 1 lets nobody go before it is thawed: so they are killed first, and come
    /// to no further step of theirs when they are let go.
    pub fn release_dead(&self) {
        match self {
            Self::Version1(directory) => {
                if !self.is_freezing() {
                    return;
                }
                for pid in members(directory) {
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                }
                let _ = self.thaw();
            }
            // Who is killed leaves, frozen or not.
            Self::Version2(_) => {}
        }
    }
}

fn state(directory: &Path) -> Option<String> {
    Some(fs::read_to_string(directory.join("freezer.state")).ok()?.trim().to_owned())
}

/// The processes of a group; they are its own as long as they are frozen, and can't be others of the same number.
pub(super) fn members(directory: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use super::super::{files, make_directory};
    use super::*;

    /// A group of its own of the kernel's, with a process that counts as fast as it can.
    struct Group {
        directory: PathBuf,
        child: Child,
    }

    impl Drop for Group {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            for _ in 0..100 {
                if fs::remove_dir(&self.directory).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn group(version_1: bool) -> Option<Group> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap();
        let hierarchy = if version_1 {
            files::version_1(&mounts, &membership, "freezer")
        } else {
            files::version_2(&mounts, &membership)
        };
        let directory = hierarchy?.own.join(format!("atoll-freezer-test{}", std::process::id()));
        make_directory(&directory).ok()?;
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let group = Group { directory, child };
        write(&group.directory.join("cgroup.procs"), &group.child.id().to_string()).ok()?;
        Some(group)
    }

    fn until(wanted: impl Fn() -> bool) {
        let start = Instant::now();
        while !wanted() {
            assert!(start.elapsed() < Duration::from_secs(20), "it never came to that");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn ticks(child: &Child) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(11).unwrap().parse().unwrap()
    }

    fn stops_and_goes_on(version_1: bool, make: fn(PathBuf) -> Freezer) {
        let Some(mut group) = group(version_1) else {
            return println!("SKIPPED freezing: no such group can be made here");
        };
        let freezer = make(group.directory.clone());
        assert!(!freezer.is_frozen() && !freezer.is_freezing());
        freezer.freeze().unwrap();
        until(|| freezer.is_frozen());
        assert!(freezer.is_freezing());
        let before = ticks(&group.child);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(ticks(&group.child), before, "it does nothing");
        freezer.thaw().unwrap();
        until(|| !freezer.is_frozen());
        until(|| ticks(&group.child) > before);
        freezer.freeze().unwrap();
        until(|| freezer.is_frozen());
        group.child.kill().unwrap();
        freezer.release_dead();
        group.child.wait().unwrap();
    }

    #[test]
    fn version_1_stops_and_goes_on_and_lets_the_dead_go() {
        stops_and_goes_on(true, Freezer::Version1);
    }

    #[test]
    fn version_2_stops_and_goes_on_and_lets_the_dead_go() {
        stops_and_goes_on(false, Freezer::Version2);
    }
}
