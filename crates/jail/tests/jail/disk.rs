//! What sandboxes take on disk, and how those are stopped that take too much.

use std::fs;
use std::time::{Duration, Instant};

use atoll_jail::{Bound, DiskUse, Error};

use crate::harness::{Harness, skip};
use crate::isolation::wait_for;
use crate::ordinary;

/// The agent's cgroup has one that writes and one that only reads; the worker has a file open too.
const WORKER: &str = "#!/bin/bash
enter() { for n in $(seq 5 $((4 + ATOLL_CGROUP_FDS))); do echo 0 >&$n; done; }
( enter; exec >/tmp/large; while :; do sleep 0.05; head -c 100000 /dev/zero; done ) &
( enter; echo text >/tmp/text; exec </tmp/text; for i in 1 2 3; do sleep 0.1; done; echo $BASHPID >/tmp/reader.new; mv /tmp/reader.new /tmp/reader; while :; do sleep 0.1; done ) &
exec 9<>/tmp/own
while :; do sleep 0.1 9>&-; done
";

fn size(path: &std::path::Path) -> u64 {
    fs::metadata(path).map(|file| file.len()).unwrap_or(0)
}

fn stops_writers(harness: &Harness) {
    let place = harness.prepared("a");
    assert_eq!(place.enforced.disk, Bound::Watched);
    assert_eq!(harness.launcher.stop_writers("a", false), Ok(0), "nobody is there");
    harness.launcher.start_worker("a").unwrap();
    let (large, reader) = (place.dir.join("tmp/large"), place.dir.join("tmp/reader"));
    wait_for(&reader);
    let start = Instant::now();
    while size(&large) < 300_000 {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    let stopped = harness.launcher.stop_writers("a", false).unwrap();
    assert!((1..=3).contains(&stopped), "the shell that writes and what it has started: {stopped}");
    let found = harness.launcher.find("a").unwrap().unwrap();
    assert!(found.alive && !found.paused);
    let before = size(&large);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(size(&large), before, "nobody writes any more");
    let pids = harness.launcher.usage("a").unwrap().processes;
    if let Some(pids) = pids {
        assert!(pids >= 3, "the worker and the one that reads live on: {pids}");
        assert!(harness.launcher.stop_writers("a", true).unwrap() >= 1);
    }
    assert!(harness.launcher.find("a").unwrap().unwrap().alive);
    harness.launcher.destroy("a").unwrap();
}

#[test]
fn who_writes_is_stopped_and_nobody_else() {
    let Some(harness) = Harness::with_worker(WORKER) else { return };
    stops_writers(&harness);
}

#[test]
fn also_without_cgroups_and_for_an_ordinary_user() {
    if !ordinary::possible() {
        return;
    }
    let harness = Harness::with(WORKER, |options| ordinary::as_user(options, ""));
    stops_writers(&harness);
}

fn counts(harness: &Harness) {
    let place = harness.prepared("a");
    let empty = harness.launcher.disk("a").unwrap();
    harness.said(
        "a",
        "head -c 2000000 /dev/zero | tr '\\0' x >/workspace/f; ln /workspace/f /workspace/g; ln -s /usr /workspace/usr
         mkdir -p /home/agent/closed; head -c 1000000 /dev/zero | tr '\\0' x >/home/agent/closed/f; chmod 000 /home/agent/closed
         head -c 1000000 /dev/zero | tr '\\0' x >/tmp/f",
    );
    let DiskUse { bytes, files, .. } = harness.launcher.disk("a").unwrap();
    assert_eq!(files, empty.files + 5, "two of the names are one file");
    let grown = bytes - empty.bytes;
    assert!((4_000_000..4_200_000).contains(&grown), "{grown}");
    assert!(matches!(harness.launcher.disk("b"), Err(Error::Unknown { .. })));
    harness.launcher.destroy("a").unwrap();
    assert!(!place.dir.exists());
}

/// A file that is written to after its name is gone, by one who has it open.
const NAMELESS: &str = "#!/bin/bash
enter() { for n in $(seq 5 $((4 + ATOLL_CGROUP_FDS))); do echo 0 >&$n; done; }
( enter; exec 9<>/tmp/gone; rm /tmp/gone; head -c 3000000 /dev/zero | tr '\\0' x >&9; echo >/tmp/ready; exec sleep 100000 ) &
exec sleep 100000
";

fn counts_nameless(harness: &Harness) {
    let place = harness.prepared("a");
    let empty = harness.launcher.disk("a").unwrap();
    harness.launcher.start_worker("a").unwrap();
    wait_for(&place.dir.join("tmp/ready"));
    let found = harness.launcher.disk("a").unwrap();
    assert!((3_000_000..3_200_000).contains(&(found.bytes - empty.bytes)), "{found:?} after {empty:?}");
    assert!(harness.launcher.stop_writers("a", false).unwrap() >= 1);
    let start = Instant::now();
    loop {
        let left = harness.launcher.disk("a").unwrap();
        if left.bytes - empty.bytes < 100_000 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "it goes with its last user: {left:?} after {empty:?}");
    }
    harness.launcher.destroy("a").unwrap();
}

#[test]
fn a_file_without_a_name_counts_as_long_as_it_is_open() {
    let Some(harness) = Harness::with_worker(NAMELESS) else { return };
    counts_nameless(&harness);
}

#[test]
fn also_for_an_ordinary_user() {
    for harness in [ordinary::with_one_id(NAMELESS), ordinary::with_sub_ids(NAMELESS)].into_iter().flatten() {
        counts_nameless(&harness);
    }
}

#[test]
fn files_are_counted_also_where_they_are_closed() {
    let Some(harness) = Harness::new() else { return };
    counts(&harness);
    if !ordinary::possible() {
        return skip("an ordinary user");
    }
    counts(&Harness::with(WORKER, |options| ordinary::as_user(options, "")));
}

#[test]
fn clocks_of_all_that_live() {
    let Some(harness) = Harness::new() else { return };
    assert_eq!(harness.launcher.clocks(), Ok(Vec::new()));
    for name in ["a", "b", "c"] {
        harness.prepared(name);
    }
    for name in ["a", "c"] {
        harness.launcher.start_worker(name).unwrap();
    }
    let clocks = harness.launcher.clocks().unwrap();
    let names: Vec<&str> = clocks.iter().map(|clock| clock.name.as_str()).collect();
    assert_eq!(names, ["a", "c"]);
    if clocks[0].agent.is_none() {
        return skip("processor time is not counted");
    }
    assert_eq!(harness.launcher.clocks().unwrap()[0].agent, clocks[0].agent, "nothing ran in it");
}
