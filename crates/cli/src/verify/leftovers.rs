//! Tracks the processes, cgroups, mounts and directories of sandboxes, to check that none remain.

use super::promise::PromiseVerdict;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A process id and its start time, which distinguishes it from a later process with the same id.
type Process = (i32, u64);

/// The processes and cgroups that existed during the verification.
#[derive(Debug, Default)]
pub struct Leftovers {
    processes: BTreeSet<Process>,
    cgroups: BTreeSet<PathBuf>,
}

impl Leftovers {
    /// Records all current descendants of this process.
    pub fn record_descendants(&mut self) {
        let all = list_processes();
        for process in descendants(&all, i32::try_from(std::process::id()).unwrap_or(0)) {
            if self.processes.insert(process) {
                self.cgroups.extend(cgroups_of(process.0));
            }
        }
    }

    /// Waits until everything is gone, or the timeout expires.
    pub fn wait_until_gone(&self, fixture_dir: &Path, sandboxes: &Path) -> PromiseVerdict {
        let deadline = Instant::now() + CLEANUP_TIMEOUT;
        loop {
            let remaining = self.list_remaining(fixture_dir, sandboxes);
            if remaining.is_empty() {
                let (processes, cgroups) = (self.processes.len(), self.cgroups.difference(&own_cgroups()).count());
                return PromiseVerdict::Held(format!(
                    "{processes} processes and {cgroups} cgroups existed; all are gone"
                ));
            }
            if Instant::now() > deadline {
                return PromiseVerdict::Broken(remaining.join("; "));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn list_remaining(&self, fixture_dir: &Path, sandboxes: &Path) -> Vec<String> {
        let now = list_processes();
        let alive =
            self.processes.iter().filter(|(pid, start)| now.get(pid).is_some_and(|found| found.start == *start));
        let alive = alive.map(|(pid, _)| format!("process {pid} is alive"));
        // A process that has not moved to its cgroup yet is in ours.
        let own = own_cgroups();
        let cgroups = self.cgroups.difference(&own).filter(|path| path.exists());
        let cgroups = cgroups.map(|path| format!("the cgroup {} remains", path.display()));
        let mounts = mounts_below(fixture_dir).into_iter().map(|path| format!("{path} is mounted"));
        let entries = std::fs::read_dir(sandboxes).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let directories = directories.map(|entry| format!("{} remains", entry.path().display()));
        alive.chain(cgroups).chain(mounts).chain(directories).collect()
    }
}

#[derive(Debug, Clone, Copy)]
struct ProcessStat {
    parent: i32,
    start: u64,
}

fn list_processes() -> BTreeMap<i32, ProcessStat> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok();
        found.extend(stat.as_deref().and_then(parse_stat).map(|process| (pid, process)));
    }
    found
}

/// Parses `/proc/PID/stat`. The process name may contain brackets. A zombie counts as gone.
fn parse_stat(stat: &str) -> Option<ProcessStat> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.first() == Some(&"Z") {
        return None;
    }
    Some(ProcessStat { parent: fields.get(1)?.parse().ok()?, start: fields.get(19)?.parse().ok()? })
}

fn descendants(all: &BTreeMap<i32, ProcessStat>, of: i32) -> Vec<Process> {
    let mut found = Vec::new();
    let mut above = vec![of];
    while let Some(parent) = above.pop() {
        for (pid, process) in all.iter().filter(|(_, process)| process.parent == parent) {
            found.push((*pid, process.start));
            above.push(*pid);
        }
    }
    found
}

fn own_cgroups() -> BTreeSet<PathBuf> {
    cgroups_of(i32::try_from(std::process::id()).unwrap_or(0))
}

/// The directories of the cgroups that a process is in.
fn cgroups_of(pid: i32) -> BTreeSet<PathBuf> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(|line| cgroup_dir(line, &mounts)).collect()
}

/// The directory of a cgroup such as `4:memory:/atoll/x` or `0::/atoll/x`.
fn cgroup_dir(line: &str, mounts: &str) -> Option<PathBuf> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let mount = mounts.lines().find_map(|mount| {
        let (place, kind) = mount.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (kind, options) = (kind.next()?, kind.nth(1)?);
        let fits = match controllers {
            "" => kind == "cgroup2",
            names => kind == "cgroup" && names.split(',').all(|name| options.split(',').any(|option| option == name)),
        };
        fits.then(|| place.split(' ').nth(4)).flatten()
    })?;
    // A process in the root cgroup has no cgroup to check.
    let path = path.trim_start_matches('/');
    (!path.is_empty() && !path.starts_with("..")).then(|| Path::new(mount).join(path))
}

fn mounts_below(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = text.lines().filter_map(|line| line.split(' ').nth(4).map(str::to_owned));
    places.filter(|place| Path::new(place).starts_with(dir)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_may_contain_brackets() {
        let stat = "7 (a) R (b) S 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0 18446744073709551615";
        let found = parse_stat(stat).unwrap();
        assert_eq!((found.parent, found.start), (3, 4711));
        assert!(parse_stat("7 (x) Z 3 7").is_none());
    }

    #[test]
    fn finds_descendants_at_any_depth() {
        let of = |parent| ProcessStat { parent, start: 1 };
        let all = BTreeMap::from([(2, of(1)), (3, of(2)), (4, of(3)), (5, of(1)), (6, of(9))]);
        let found: BTreeSet<i32> = descendants(&all, 2).into_iter().map(|(pid, _)| pid).collect();
        assert_eq!(found, BTreeSet::from([3, 4]));
    }

    #[test]
    fn maps_cgroups_to_their_mounts() {
        let mounts = "30 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 20 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      32 20 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup rw\n";
        let at = |line| cgroup_dir(line, mounts).map(|path| path.display().to_string());
        assert_eq!(at("4:memory:/a/b").as_deref(), Some("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(at("3:cpu,cpuacct:/a").as_deref(), Some("/sys/fs/cgroup/cpu/a"));
        assert_eq!(at("0::/a").as_deref(), Some("/sys/fs/cgroup/unified/a"));
        assert_eq!((at("0::/"), at("9:devices:/a"), at("0::/../x")), (None, None, None));
    }

    #[test]
    fn tracks_children_until_they_exit() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut leftovers = Leftovers::default();
        leftovers.record_descendants();
        let nowhere = Path::new("/nowhere");
        let pid = format!("process {} is alive", child.id());
        assert!(leftovers.list_remaining(nowhere, nowhere).contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!leftovers.list_remaining(nowhere, nowhere).contains(&pid));
    }
}
