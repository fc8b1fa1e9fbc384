//! Ends those processes of a sandbox that write to its files, to keep a bound that nothing else keeps.
//!
//! They stand still while they are looked at, where there is a freezer, so that none writes on or starts another.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::census::{self, Inhabitant};
use crate::cgroup::Freezer;
use crate::record::Life;

/// A process with more open files than this is not looked through any further: it counts as one that writes.
const MOST_FILES: usize = 4096;
/// How long they may take to stand still; after that they are looked at as they move.
const PATIENCE: Duration = Duration::from_secs(1);
/// What is written there takes memory, or nothing.
const NO_DISK: [&str; 4] = ["/dev", "/proc", "/run", "/sys"];

/// Whom to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    Writers,
    /// Everybody: writers come and go faster than they can be looked at.
    Everybody,
}

/// Ends them, and says how many. The worker and its hands stay in any case: without them nobody could clean up.
pub(crate) fn stop(life: &Life, whom: Whom) -> u32 {
    let freezer = life.agent.freezer.as_ref();
    // One that is paused stays so.
    let ours = freezer.filter(|freezer| !freezer.is_freezing() && freezer.freeze().is_ok());
    if let Some(freezer) = ours {
        wait_for(freezer);
    }
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", life.process.pid)).ok();
    let mounts = mounts.as_deref().map(writable_mounts);
    let mut stopped = 0;
    for process in inhabitants(life).iter().filter(|process| !is_hands(life.process.pid, process.pid)) {
        let wanted = match whom {
            Whom::Everybody => true,
            Whom::Writers => writes(process.pid, mounts.as_ref()),
        };
        stopped += u32::from(wanted && process.signal(Signal::KILL));
    }
    if let Some(freezer) = ours {
        let _ = freezer.thaw();
    }
    stopped
}

fn wait_for(freezer: &Freezer) {
    let start = Instant::now();
    while !freezer.is_frozen() && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// By the agent's cgroup, which is short to read, or by this machine's whole list.
pub(crate) fn inhabitants(life: &Life) -> Vec<Inhabitant> {
    let namespace = life.process.namespace;
    match life.agent.members() {
        Some(members) => members.into_iter().filter_map(|pid| census::member(namespace, pid)).collect(),
        None => census::of_namespace(namespace, life.process.pid),
    }
}

/// The mounts of a sandbox where writing takes disk, by their numbers, out of its list of mounts.
pub(crate) fn writable_mounts(list: &str) -> HashSet<u64> {
    let mounts = list.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let number = fields.next()?.parse().ok()?;
        let (target, options) = (Path::new(fields.nth(3)?), fields.next()?);
        let disk = !NO_DISK.iter().any(|other| target.starts_with(other));
        (disk && options.split(',').any(|option| option == "rw")).then_some(number)
    });
    mounts.collect()
}

/// Whether a process has a file open for writing, or mapped so. What can't be looked at counts as one that has.
///
/// Its threads are looked at one by one: the first may have ended, and others may have open files of their own.
fn writes(pid: i32, mounts: Option<&HashSet<u64>>) -> bool {
    let Some(mounts) = mounts else { return true };
    let mut threads = census::threads(Path::new(&format!("/proc/{pid}"))).peekable();
    threads.peek().is_none() || threads.any(|thread| writes_by(&thread, mounts))
}

fn writes_by(thread: &Path, mounts: &HashSet<u64>) -> bool {
    let Ok(mut descriptors) = fs::read_dir(thread.join("fd")) else { return true };
    let open = descriptors.by_ref().take(MOST_FILES).flatten().any(|entry| {
        let information = thread.join("fdinfo").join(entry.file_name());
        let for_writing = fs::read_to_string(information).is_ok_and(|text| is_for_writing(&text, mounts));
        for_writing && fs::metadata(entry.path()).is_ok_and(|file| file.is_file())
    });
    let left = descriptors.next().is_some();
    open || left || fs::read_to_string(thread.join("maps")).is_ok_and(|text| maps(&text))
}

/// By a file of `/proc/<pid>/fdinfo`: the flags are in octal.
fn is_for_writing(information: &str, mounts: &HashSet<u64>) -> bool {
    let flags = field(information, "flags:").and_then(|text| i32::from_str_radix(text, 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
        && mount_of(information).is_some_and(|mount| mounts.contains(&mount))
}

/// The mount that an open file is in, by the same.
pub(crate) fn mount_of(information: &str) -> Option<u64> {
    field(information, "mnt_id:")?.parse().ok()
}

fn field<'a>(information: &'a str, name: &str) -> Option<&'a str> {
    information.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Whether a list of mappings has a file that is written to through memory.
fn maps(text: &str) -> bool {
    text.lines().any(|line| shared_file(line).is_some())
}

/// The range of such a mapping. Memory that is shared without a file has names too, in a root where nobody can make one.
pub(crate) fn shared_file(line: &str) -> Option<&str> {
    let mut fields = line.splitn(6, ' ');
    let (range, rights) = (fields.next()?, fields.next()?);
    let path = fields.nth(3).unwrap_or_default().trim_start();
    let is_memory = NO_DISK.iter().any(|other| Path::new(path).starts_with(other))
        || ["/memfd:", "/SYSV"].iter().any(|name| path.starts_with(name));
    (rights.contains('w') && rights.ends_with('s') && path.starts_with('/') && !is_memory).then_some(range)
}

/// The worker's own helper that starts commands: a child of it, of the same program, under its name. An agent that runs
/// this program has the same helper, which writes nothing by itself.
fn is_hands(worker: i32, pid: i32) -> bool {
    let program = |pid: i32| fs::metadata(format!("/proc/{pid}/exe")).ok().map(|file| (file.dev(), file.ino()));
    let parent = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = parent.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<i32>().ok());
    parent == Some(worker)
        && program(pid).is_some_and(|found| Some(found) == program(worker))
        && fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == b"atoll-worker\0hands\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_flags_and_mappings_tell_who_writes() {
        let list = "\
10 1 0:5 / / ro,nosuid,nodev - tmpfs tmpfs rw\n\
11 10 254:0 /data/w /workspace rw,nosuid,nodev - ext4 /dev/vda rw\n\
12 10 254:0 /usr /usr ro,nosuid - ext4 /dev/vda rw\n\
13 10 0:9 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n\
14 10 0:9 / /proc rw,nosuid - proc proc rw\n\
15 10 0:30 / /tmp rw,nosuid master:1 - tmpfs tmpfs rw\n";
        let mounts = writable_mounts(list);
        assert_eq!(mounts, HashSet::from([11, 15]));
        assert!(is_for_writing("pos:\t0\nflags:\t0100001\nmnt_id:\t11\n", &mounts));
        assert!(is_for_writing("pos:\t0\nflags:\t02100002\nmnt_id:\t15\n", &mounts));
        assert!(!is_for_writing("pos:\t0\nflags:\t0100000\nmnt_id:\t11\n", &mounts), "it only reads");
        assert!(!is_for_writing("pos:\t0\nflags:\t0100001\nmnt_id:\t13\n", &mounts), "into memory");
        assert!(!is_for_writing("pos:\t0\n", &mounts));
        let map = |rights: &str, path: &str| format!("7f00-7f01 {rights} 00000000 fe:00 1234    {path}\n");
        assert!(maps(&map("rw-s", "/workspace/a file")));
        assert!(maps(&map("-w-s", "/tmp/x")));
        assert!(!maps(&map("rw-p", "/workspace/a")));
        assert!(!maps(&map("r--s", "/workspace/a")));
        assert!(!maps(&map("rw-s", "/dev/shm/a")));
        assert!(!maps(&map("rw-s", "/memfd:a (deleted)")));
        assert!(!maps("7f00-7f01 rw-p 00000000 00:00 0\n"));
    }

    #[test]
    fn an_open_file_makes_a_writer_of_its_process() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let mounts = writable_mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap());
        let start = |script: &str| {
            let child = std::process::Command::new("sh").args(["-c", script]).current_dir(directory.path()).spawn();
            child.unwrap()
        };
        fs::write(directory.path().join("read"), "").unwrap();
        let closed = "exec sleep 60 1>/dev/null 2>/dev/null";
        let mut children = [start(&format!("exec 9>written; {closed}")), start(&format!("exec 9<read; {closed}"))];
        let [writer, reader] = [0, 1].map(|index| children[index].id().cast_signed());
        let begun = Instant::now();
        while !writes(writer, Some(&mounts)) || writes(reader, Some(&mounts)) {
            assert!(begun.elapsed() < Duration::from_secs(10));
        }
        assert!(!writes(writer, Some(&HashSet::new())), "elsewhere is none of ours");
        assert!(writes(reader, None) && writes(i32::MAX, Some(&mounts)), "what can't be looked at");
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
