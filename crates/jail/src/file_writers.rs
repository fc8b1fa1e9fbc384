//! Kills the processes of a sandbox that write to its files, to enforce a disk limit without quotas.
//!
//! The sandbox is frozen meanwhile, if possible, so that no process writes on or starts another.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cgroup::Freezer;
use crate::process_scan::{self, ProcessHandle};
use crate::record::WorkerRecord;

/// A process with more open files counts as a writer.
const MAX_SCANNED_FILES: usize = 4096;
/// Time-out for freezing; after that running processes are inspected.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(1);
/// Command lines of the worker's spawner; workers of earlier versions call it `hands`.
const SPAWNER_COMMAND_LINES: [&[u8]; 2] = [b"atoll-worker\0spawner\0", b"atoll-worker\0hands\0"];
/// Writes there take no disk space.
const MEMORY_PATHS: [&str; 4] = ["/dev", "/proc", "/run", "/sys"];

/// The processes to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KillScope {
    Writers,
    /// All: writers come and go faster than they can be inspected.
    All,
}

/// Kills the processes and returns their number. The worker and its spawner always stay: they are needed to clean up.
pub(crate) fn kill_writers(worker_record: &WorkerRecord, scope: KillScope) -> u32 {
    let freezer = worker_record.agent.freezer.as_ref();
    // A paused sandbox stays paused.
    let own_freeze = freezer.filter(|freezer| !freezer.is_freezing() && freezer.freeze().is_ok());
    if let Some(freezer) = own_freeze {
        wait_until_frozen(freezer);
    }
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", worker_record.process.pid)).ok();
    let mounts = mounts.as_deref().map(writable_mounts);
    let mut stopped = 0;
    for process in sandbox_processes(worker_record)
        .iter()
        .filter(|process| !is_worker_spawner(worker_record.process.pid, process.pid))
    {
        let is_selected = match scope {
            KillScope::All => true,
            KillScope::Writers => is_writer(process.pid, mounts.as_ref()),
        };
        stopped += u32::from(is_selected && process.send_signal(Signal::KILL));
    }
    if let Some(freezer) = own_freeze {
        let _ = freezer.thaw();
    }
    stopped
}

fn wait_until_frozen(freezer: &Freezer) {
    let start = Instant::now();
    while !freezer.is_frozen() && start.elapsed() < FREEZE_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Opens the sandbox's processes, from the agent's cgroup, else from all of `/proc`.
pub(crate) fn sandbox_processes(worker_record: &WorkerRecord) -> Vec<ProcessHandle> {
    let namespace = worker_record.process.namespace;
    match worker_record.agent.list_pids() {
        Some(members) => {
            members.into_iter().filter_map(|pid| process_scan::open_in_namespace(namespace, pid)).collect()
        }
        None => process_scan::processes_in_namespace(namespace, worker_record.process.pid),
    }
}

/// The mount ids where writing takes disk space, from mountinfo.
pub(crate) fn writable_mounts(list: &str) -> HashSet<u64> {
    let mounts = list.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let number = fields.next()?.parse().ok()?;
        let (target, options) = (Path::new(fields.nth(3)?), fields.next()?);
        let disk = !MEMORY_PATHS.iter().any(|other| target.starts_with(other));
        (disk && options.split(',').any(|option| option == "rw")).then_some(number)
    });
    mounts.collect()
}

/// True if a process has a file open or mapped for writing, or cannot be inspected.
///
/// Checks each thread: the first may have exited, and each may have its own descriptor table.
fn is_writer(pid: i32, mounts: Option<&HashSet<u64>>) -> bool {
    let Some(mounts) = mounts else { return true };
    let mut threads = process_scan::thread_dirs(Path::new(&format!("/proc/{pid}"))).peekable();
    threads.peek().is_none() || threads.any(|thread| thread_writes(&thread, mounts))
}

fn thread_writes(thread: &Path, mounts: &HashSet<u64>) -> bool {
    let Ok(mut descriptors) = fs::read_dir(thread.join("fd")) else { return true };
    let open = descriptors.by_ref().take(MAX_SCANNED_FILES).flatten().any(|entry| {
        let information = thread.join("fdinfo").join(entry.file_name());
        let for_writing = fs::read_to_string(information).is_ok_and(|text| is_open_for_writing(&text, mounts));
        for_writing && fs::metadata(entry.path()).is_ok_and(|file| file.is_file())
    });
    let has_more = descriptors.next().is_some();
    open || has_more || fs::read_to_string(thread.join("maps")).is_ok_and(|text| has_shared_mapping(&text))
}

/// Checks a file of `/proc/<pid>/fdinfo`; its flags are octal.
fn is_open_for_writing(information: &str, mounts: &HashSet<u64>) -> bool {
    let flags = parse_field(information, "flags:").and_then(|text| i32::from_str_radix(text, 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
        && parse_mount_id(information).is_some_and(|mount| mounts.contains(&mount))
}

/// Parses the mount id in fdinfo.
pub(crate) fn parse_mount_id(information: &str) -> Option<u64> {
    parse_field(information, "mnt_id:")?.parse().ok()
}

fn parse_field<'a>(information: &'a str, name: &str) -> Option<&'a str> {
    information.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// True if a process's maps have a shared writable file mapping.
fn has_shared_mapping(text: &str) -> bool {
    text.lines().any(|line| shared_mapping_range(line).is_some())
}

/// The address range of a shared writable file mapping. Anonymous shared memory has names too, but under paths that no
/// file can have.
pub(crate) fn shared_mapping_range(line: &str) -> Option<&str> {
    let mut fields = line.splitn(6, ' ');
    let (range, rights) = (fields.next()?, fields.next()?);
    let path = fields.nth(3).unwrap_or_default().trim_start();
    let is_memory = MEMORY_PATHS.iter().any(|other| Path::new(path).starts_with(other))
        || ["/memfd:", "/SYSV"].iter().any(|name| path.starts_with(name));
    (rights.contains('w') && rights.ends_with('s') && path.starts_with('/') && !is_memory).then_some(range)
}

/// True for the worker's spawner: a child of the worker with the same binary and its command line. An agent that runs
/// this binary has the same helper, which writes nothing itself.
fn is_worker_spawner(worker: i32, pid: i32) -> bool {
    let program = |pid: i32| fs::metadata(format!("/proc/{pid}/exe")).ok().map(|file| (file.dev(), file.ino()));
    let parent = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = parent.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<i32>().ok());
    parent == Some(worker)
        && program(pid).is_some_and(|found| Some(found) == program(worker))
        && fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| SPAWNER_COMMAND_LINES.contains(&line.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_writers_by_mounts_flags_and_mappings() {
        let list = "\
10 1 0:5 / / ro,nosuid,nodev - tmpfs tmpfs rw\n\
11 10 254:0 /data/w /workspace rw,nosuid,nodev - ext4 /dev/vda rw\n\
12 10 254:0 /usr /usr ro,nosuid - ext4 /dev/vda rw\n\
13 10 0:9 / /dev/shm rw,nosuid - tmpfs tmpfs rw\n\
14 10 0:9 / /proc rw,nosuid - proc proc rw\n\
15 10 0:30 / /tmp rw,nosuid master:1 - tmpfs tmpfs rw\n";
        let mounts = writable_mounts(list);
        assert_eq!(mounts, HashSet::from([11, 15]));
        assert!(is_open_for_writing("pos:\t0\nflags:\t0100001\nmnt_id:\t11\n", &mounts));
        assert!(is_open_for_writing("pos:\t0\nflags:\t02100002\nmnt_id:\t15\n", &mounts));
        assert!(!is_open_for_writing("pos:\t0\nflags:\t0100000\nmnt_id:\t11\n", &mounts), "it only reads");
        assert!(!is_open_for_writing("pos:\t0\nflags:\t0100001\nmnt_id:\t13\n", &mounts), "into memory");
        assert!(!is_open_for_writing("pos:\t0\n", &mounts));
        let map = |rights: &str, path: &str| format!("7f00-7f01 {rights} 00000000 fe:00 1234    {path}\n");
        assert!(has_shared_mapping(&map("rw-s", "/workspace/a file")));
        assert!(has_shared_mapping(&map("-w-s", "/tmp/x")));
        assert!(!has_shared_mapping(&map("rw-p", "/workspace/a")));
        assert!(!has_shared_mapping(&map("r--s", "/workspace/a")));
        assert!(!has_shared_mapping(&map("rw-s", "/dev/shm/a")));
        assert!(!has_shared_mapping(&map("rw-s", "/memfd:a (deleted)")));
        assert!(!has_shared_mapping("7f00-7f01 rw-p 00000000 00:00 0\n"));
    }

    #[test]
    fn a_process_with_a_file_open_for_writing_is_a_writer() {
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
        atoll_test_wait::wait_until("both programs to run", || {
            is_writer(writer, Some(&mounts)) && !is_writer(reader, Some(&mounts))
        });
        assert!(!is_writer(writer, Some(&HashSet::new())), "a file outside the sandbox's mounts does not count");
        assert!(
            is_writer(reader, None) && is_writer(i32::MAX, Some(&mounts)),
            "descriptors that cannot be inspected count as writers"
        );
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
