//! A process whose first thread has ended looks dead in lists, and is not.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use atoll_jail::Exit;

use crate::harness::{Harness, as_root, enter, skip, spec};
use crate::isolation::wait_for;
use crate::ordinary;

const WORKER: &str = "#!/bin/sh\nexec sleep 1000000\n";

/// Its first thread ends; the others count, and one of them keeps whatever shows up where memory is shared.
const STRAGGLER: &str = r#"
import ctypes, os, sys, threading
def count():
    number = 0
    while True:
        number += 1
        with open("/tmp/count.new", "w") as file:
            file.write(str(number))
        os.rename("/tmp/count.new", "/tmp/count")
def look():
    while True:
        for place in ("/dev/shm", "/run"):
            found = os.listdir(place)
            if found:
                with open("/tmp/seen", "w") as file:
                    file.write(place + ": " + " ".join(found))
def write():
    with open("/workspace/large", "w") as file:
        threading.Event().wait()
for what in (count, look, write)[:int(sys.argv[1])]:
    threading.Thread(target=what).start()
ctypes.CDLL(None).syscall(60, 0)
"#;

fn possible() -> bool {
    let found = Path::new("/usr/bin/python3").exists() && cfg!(target_arch = "x86_64");
    if !found {
        skip("needs /usr/bin/python3 on x86_64");
    }
    found
}

/// A living sandbox with such a process of so many threads besides; where it counts.
fn start(harness: &Harness, threads: u32) -> std::path::PathBuf {
    let place = harness.prepared("a");
    fs::write(place.workspace.join("straggler.py"), STRAGGLER).unwrap();
    harness.launcher.start_worker("a").unwrap();
    let script = format!("/usr/bin/python3 /workspace/straggler.py {threads} </dev/null >/dev/null 2>&1 &");
    assert_eq!(enter(&harness.launcher, "a", false, &script).unwrap().exit, Exit::Exited(0));
    let count = place.dir.join("tmp/count");
    wait_for(&count);
    // Its first thread has ended: it is a zombie by the list.
    let state = "for p in /proc/[0-9]*; do read -r line <$p/stat; echo \"$line $(ls $p/task | wc -l)\"; done";
    let begun = Instant::now();
    loop {
        let list = enter(&harness.launcher, "a", false, state).unwrap().stdout;
        if list.lines().any(|line| line.contains("(python3) Z") && line.ends_with(&format!(" {}", threads + 1))) {
            return count;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{list}");
    }
}

/// Whether a counter moves within a while that is long for it.
fn moves(path: &Path) -> bool {
    let before = fs::read(path).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(500) {
        if fs::read(path).unwrap() != before {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn ends_with_a_fork(harness: &Harness) {
    let count = start(harness, 2);
    assert!(moves(&count));
    harness.launcher.fork("a", &spec("b")).unwrap();
    assert!(!moves(&count), "it is ended before the files are exchanged");
    let seen = fs::read_to_string(count.with_file_name("seen"));
    assert!(seen.is_err(), "nothing is hung where it looks: {seen:?}");
    assert_eq!(harness.said("b", "ls"), "straggler.py");
}

#[test]
fn it_ends_with_a_fork_and_sees_nothing_of_the_store() {
    if !possible() || !as_root() {
        return;
    }
    let Some(harness) = Harness::new() else { return };
    ends_with_a_fork(&harness);
}

#[test]
fn it_ends_with_a_fork_where_all_have_one_id() {
    if !possible() {
        return;
    }
    let Some(harness) = ordinary::with_one_id(WORKER) else { return };
    ends_with_a_fork(&harness);
}

#[test]
fn it_is_paused_by_signals_like_any_other() {
    if !possible() {
        return;
    }
    let Some(harness) = ordinary::with_one_id(WORKER) else { return };
    let count = start(&harness, 2);
    harness.launcher.pause("a").unwrap();
    assert!(!moves(&count));
    harness.launcher.resume("a").unwrap();
    assert!(moves(&count));
}

#[test]
fn it_is_a_writer_by_what_its_threads_have_open() {
    if !possible() {
        return;
    }
    let Some(harness) = Harness::new() else { return };
    let count = start(&harness, 3);
    assert_eq!(harness.launcher.stop_writers("a", false).unwrap(), 1);
    assert!(!moves(&count));
}
