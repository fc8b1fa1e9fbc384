//! Freezes and thaws all processes of a cgroup.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use super::{parse_keyed_value, write_control};

/// The cgroup directory to freeze, by cgroup version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Freezer {
    Version1(PathBuf),
    Version2(PathBuf),
}

impl Freezer {
    /// Starts to freeze the processes; [`Freezer::is_frozen`] is true when all are frozen.
    pub fn freeze(&self) -> io::Result<()> {
        match self {
            Self::Version1(directory) => write_control(&directory.join("freezer.state"), "FROZEN"),
            Self::Version2(directory) => write_control(&directory.join("cgroup.freeze"), "1"),
        }
    }

    pub fn thaw(&self) -> io::Result<()> {
        match self {
            Self::Version1(directory) => write_control(&directory.join("freezer.state"), "THAWED"),
            Self::Version2(directory) => write_control(&directory.join("cgroup.freeze"), "0"),
        }
    }

    /// True once [`Freezer::freeze`] was called, whether or not all processes are frozen yet.
    pub fn is_freezing(&self) -> bool {
        match self {
            Self::Version1(directory) => read_v1_state(directory).is_some_and(|state| state != "THAWED"),
            Self::Version2(directory) => {
                fs::read_to_string(directory.join("cgroup.freeze")).is_ok_and(|text| text.trim() == "1")
            }
        }
    }

    pub fn is_frozen(&self) -> bool {
        match self {
            Self::Version1(directory) => read_v1_state(directory).is_some_and(|state| state == "FROZEN"),
            Self::Version2(directory) => fs::read_to_string(directory.join("cgroup.events"))
                .is_ok_and(|text| parse_keyed_value(&text, "frozen") == Some(1)),
        }
    }

    /// Kills the frozen processes. In v1 a killed process exits only after the thaw, so kill first and thaw then: none
    /// runs another instruction.
    pub fn kill_frozen(&self) {
        match self {
            Self::Version1(directory) => {
                if !self.is_freezing() {
                    return;
                }
                for pid in read_pids(directory) {
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                }
                let _ = self.thaw();
            }
            // In v2 a killed process exits even while frozen.
            Self::Version2(_) => {}
        }
    }
}

fn read_v1_state(directory: &Path) -> Option<String> {
    Some(fs::read_to_string(directory.join("freezer.state")).ok()?.trim().to_owned())
}

/// Reads the pids of a cgroup. While the cgroup is frozen, none of them can be reused.
pub(super) fn read_pids(directory: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| Pid::from_raw(line.trim().parse().ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use atoll_test_wait::{try_wait_for, wait_until};

    use super::super::{ensure_dir, hierarchy};
    use super::*;

    /// A real cgroup with a process in a busy loop.
    struct Group {
        directory: PathBuf,
        child: Child,
    }

    impl Drop for Group {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = try_wait_for(|| fs::remove_dir(&self.directory));
        }
    }

    fn create_group(version_1: bool) -> Option<Group> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap();
        let hierarchy = if version_1 {
            hierarchy::find_v1_hierarchy(&mounts, &membership, "freezer")
        } else {
            hierarchy::find_v2_hierarchy(&mounts, &membership)
        };
        let directory = hierarchy?.own_dir.join(format!("atoll-freezer-test{}", std::process::id()));
        ensure_dir(&directory).ok()?;
        let child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let group = Group { directory, child };
        write_control(&group.directory.join("cgroup.procs"), &group.child.id().to_string()).ok()?;
        Some(group)
    }

    fn cpu_ticks(pid: u32) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(11).unwrap().parse().unwrap()
    }

    fn stops_and_goes_on(version_1: bool, make: fn(PathBuf) -> Freezer) {
        let Some(mut group) = create_group(version_1) else {
            return println!("SKIPPED: cannot create such a cgroup here");
        };
        let freezer = make(group.directory.clone());
        assert!(!freezer.is_frozen() && !freezer.is_freezing());
        freezer.freeze().unwrap();
        wait_until("the group to freeze", || freezer.is_frozen());
        assert!(freezer.is_freezing());
        let before = cpu_ticks(group.child.id());
        let own = cpu_ticks(std::process::id());
        // Spin until this process has used several ticks.
        while cpu_ticks(std::process::id()) < own + 5 {}
        assert_eq!(cpu_ticks(group.child.id()), before, "a frozen process uses no CPU");
        freezer.thaw().unwrap();
        wait_until("the group to thaw", || !freezer.is_frozen());
        wait_until("the process to run", || cpu_ticks(group.child.id()) > before);
        freezer.freeze().unwrap();
        wait_until("the group to freeze", || freezer.is_frozen());
        group.child.kill().unwrap();
        freezer.kill_frozen();
        group.child.wait().unwrap();
    }

    #[test]
    fn v1_freezes_thaws_and_kills_frozen_processes() {
        stops_and_goes_on(true, Freezer::Version1);
    }

    #[test]
    fn v2_freezes_thaws_and_kills_frozen_processes() {
        stops_and_goes_on(false, Freezer::Version2);
    }
}
