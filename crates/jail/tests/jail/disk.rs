//! Disk usage of sandboxes, and killing those that use too much.

use std::fs;
use std::os::unix::fs::MetadataExt;

use atoll_jail::{DiskUsage, Enforcement, Error};
use atoll_test_wait::wait_until;

use crate::harness::{Harness, assert_unchanged, skip_test, wait_for_file};
use crate::unprivileged;

/// In the agent's cgroup one process writes and one only reads; the worker has a file open too.
const WORKER: &str = "#!/bin/bash
enter() { for n in $(seq 5 $((4 + ATOLL_CGROUP_FDS))); do echo 0 >&$n; done; }
( enter; exec >/tmp/large; while :; do sleep 0.05; head -c 100000 /dev/zero; done ) &
( enter; echo text >/tmp/text; exec </tmp/text; echo $BASHPID >/tmp/reader.new; mv /tmp/reader.new /tmp/reader; exec sleep 100000 ) &
exec 9<>/tmp/own
while :; do sleep 0.1 9>&-; done
";

fn file_size(path: &std::path::Path) -> u64 {
    fs::metadata(path).map(|file| file.len()).unwrap_or(0)
}

/// True if a process of this host has the file open.
fn is_open(path: &std::path::Path) -> bool {
    let identity = |file: fs::Metadata| (file.dev(), file.ino());
    let expected = identity(fs::metadata(path).unwrap());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let descriptors = processes.flat_map(|process| fs::read_dir(process.path().join("fd"))).flatten().flatten();
    descriptors.filter_map(|entry| fs::metadata(entry.path()).ok()).any(|file| identity(file) == expected)
}

fn check_kill_writers(harness: &Harness) {
    let sandbox = harness.prepare_sandbox("a");
    assert_eq!(sandbox.enforced.disk, Enforcement::Monitored);
    assert_eq!(harness.launcher.kill_writers("a", false), Ok(0), "no worker runs");
    harness.launcher.start_worker("a").unwrap();
    let [large, text, own] = ["tmp/large", "tmp/text", "tmp/own"].map(|name| sandbox.dir.join(name));
    wait_for_file(&sandbox.dir.join("tmp/reader"));
    wait_until("the writer", || file_size(&large) >= 300_000);
    assert!(harness.launcher.kill_writers("a", false).unwrap() >= 1);
    // Without a freezer, the writer's last child may outlive it for a moment.
    wait_until("the writer to end", || !is_open(&large));
    let found = harness.launcher.find_sandbox("a").unwrap().unwrap();
    assert!(found.is_alive && !found.is_paused);
    assert_unchanged(&harness.launcher, "a", || file_size(&large));
    assert!(is_open(&text) && is_open(&own), "the reader and the worker survive");
    assert!(harness.launcher.kill_writers("a", true).unwrap() >= 1);
    wait_until("the reader to end", || !is_open(&text));
    assert!(harness.launcher.find_sandbox("a").unwrap().unwrap().is_alive);
    harness.launcher.destroy_sandbox("a").unwrap();
}

#[test]
fn kills_writers_and_no_other_process() {
    let Some(harness) = Harness::with_worker(WORKER) else { return };
    check_kill_writers(&harness);
}

#[test]
fn kills_writers_without_cgroups_as_unprivileged_user() {
    if !unprivileged::can_switch_user() {
        return;
    }
    let harness = Harness::with(WORKER, |options| unprivileged::run_as_user(options, ""));
    check_kill_writers(&harness);
}

fn check_disk_usage(harness: &Harness) {
    let sandbox = harness.prepare_sandbox("a");
    let empty = harness.launcher.measure_disk("a").unwrap();
    harness.shell_output(
        "a",
        "head -c 2000000 /dev/zero | tr '\\0' x >/workspace/f; ln /workspace/f /workspace/g; ln -s /usr /workspace/usr
         mkdir -p /home/agent/closed; head -c 1000000 /dev/zero | tr '\\0' x >/home/agent/closed/f; chmod 000 /home/agent/closed
         head -c 1000000 /dev/zero | tr '\\0' x >/tmp/f",
    );
    let DiskUsage { bytes, files, .. } = harness.launcher.measure_disk("a").unwrap();
    assert_eq!(files, empty.files + 5, "two of the names are hard links");
    let grown = bytes - empty.bytes;
    assert!((4_000_000..4_200_000).contains(&grown), "{grown}");
    assert!(matches!(harness.launcher.measure_disk("b"), Err(Error::UnknownSandbox { .. })));
    harness.launcher.destroy_sandbox("a").unwrap();
    assert!(!sandbox.dir.exists());
}

/// Writes to an unlinked file that it keeps open.
const NAMELESS: &str = "#!/bin/bash
enter() { for n in $(seq 5 $((4 + ATOLL_CGROUP_FDS))); do echo 0 >&$n; done; }
( enter; exec 9<>/tmp/gone; rm /tmp/gone; head -c 3000000 /dev/zero | tr '\\0' x >&9; echo >/tmp/ready; exec sleep 100000 ) &
exec sleep 100000
";

fn check_unlinked_files(harness: &Harness) {
    let sandbox = harness.prepare_sandbox("a");
    let empty = harness.launcher.measure_disk("a").unwrap();
    harness.launcher.start_worker("a").unwrap();
    wait_for_file(&sandbox.dir.join("tmp/ready"));
    let found = harness.launcher.measure_disk("a").unwrap();
    assert!((3_000_000..3_200_000).contains(&(found.bytes - empty.bytes)), "{found:?} after {empty:?}");
    assert!(harness.launcher.kill_writers("a", false).unwrap() >= 1);
    wait_until("the unlinked file to be freed", || {
        harness.launcher.measure_disk("a").unwrap().bytes - empty.bytes < 100_000
    });
    harness.launcher.destroy_sandbox("a").unwrap();
}

#[test]
fn an_unlinked_file_counts_while_it_is_open() {
    let Some(harness) = Harness::with_worker(NAMELESS) else { return };
    check_unlinked_files(&harness);
}

#[test]
fn an_unlinked_file_counts_for_unprivileged_users() {
    for harness in [unprivileged::with_one_id(NAMELESS), unprivileged::with_sub_ids(NAMELESS)].into_iter().flatten() {
        check_unlinked_files(&harness);
    }
}

#[test]
fn counts_files_in_unreadable_directories() {
    let Some(harness) = Harness::new() else { return };
    check_disk_usage(&harness);
    if !unprivileged::can_switch_user() {
        return skip_test("an ordinary user");
    }
    check_disk_usage(&Harness::with(WORKER, |options| unprivileged::run_as_user(options, "")));
}

#[test]
fn reads_cpu_times_of_running_sandboxes() {
    let Some(harness) = Harness::new() else { return };
    assert_eq!(harness.launcher.read_cpu_times(), Ok(Vec::new()));
    for name in ["a", "b", "c"] {
        harness.prepare_sandbox(name);
    }
    for name in ["a", "c"] {
        harness.launcher.start_worker(name).unwrap();
    }
    let cpu_times = harness.launcher.read_cpu_times().unwrap();
    let names: Vec<&str> = cpu_times.iter().map(|cpu_time| cpu_time.name.as_str()).collect();
    assert_eq!(names, ["a", "c"]);
    if cpu_times[0].agent.is_none() {
        return skip_test("processor time is not counted");
    }
    assert_eq!(harness.launcher.read_cpu_times().unwrap()[0].agent, cpu_times[0].agent, "no process ran in it");
}
