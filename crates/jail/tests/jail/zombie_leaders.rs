//! A process whose first thread has exited looks like a zombie but still runs.

use std::fs;
use std::path::Path;

use atoll_jail::Exit;
use atoll_test_wait::wait_until;

use crate::harness::{
    Harness, assert_unchanged, exec_shell, require_root, run_program, skip_test, spec, wait_for_file,
};
use crate::unprivileged;

const WORKER: &str = "#!/bin/sh\nexec sleep 1000000\n";

/// The first thread exits; one of the others counts, another records what appears in shared directories.
const ZOMBIE_LEADER: &str = r#"
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

fn can_run_python() -> bool {
    let found = Path::new("/usr/bin/python3").exists() && cfg!(target_arch = "x86_64");
    if !found {
        skip_test("needs /usr/bin/python3 on x86_64");
    }
    found
}

/// Starts a sandbox with such a process and returns the path of its counter.
fn start_zombie_leader(harness: &Harness, threads: u32) -> std::path::PathBuf {
    let sandbox = harness.prepare_sandbox("a");
    // With subordinate ids, only the sandbox can write to its workspace.
    let write = ["/bin/sh", "-c", "printf %s \"$1\" >zombie.py", "sh", ZOMBIE_LEADER];
    assert_eq!(run_program(&harness.launcher, "a", &write).exit, Exit::Exited(0));
    harness.launcher.start_worker("a").unwrap();
    let script = format!("/usr/bin/python3 /workspace/zombie.py {threads} </dev/null >/dev/null 2>&1 &");
    assert_eq!(exec_shell(&harness.launcher, "a", false, &script).unwrap().exit, Exit::Exited(0));
    let count = sandbox.dir.join("tmp/count");
    wait_for_file(&count);
    // Its first thread has exited: the process is listed as a zombie.
    let state = "for p in /proc/[0-9]*; do read -r line <$p/stat; echo \"$line $(ls $p/task | wc -l)\"; done";
    wait_until("the first thread to exit", || {
        let list = exec_shell(&harness.launcher, "a", false, state).unwrap().stdout;
        list.lines().any(|line| line.contains("(python3) Z") && line.ends_with(&format!(" {}", threads + 1)))
    });
    count
}

fn wait_until_counting(path: &Path) {
    let before = fs::read(path).unwrap();
    wait_until("the counter", || fs::read(path).unwrap() != before);
}

fn check_killed_by_fork(harness: &Harness) {
    let count = start_zombie_leader(harness, 2);
    wait_until_counting(&count);
    harness.launcher.fork_sandbox("a", &spec("b")).unwrap();
    assert_unchanged(&harness.launcher, "a", || fs::read(&count).unwrap());
    let seen = fs::read_to_string(count.with_file_name("seen"));
    assert!(seen.is_err(), "the process sees a mount of the layer store: {seen:?}");
    assert_eq!(harness.shell_output("b", "ls"), "zombie.py");
}

#[test]
fn a_fork_kills_a_zombie_leader_and_hides_the_layer_store() {
    if !can_run_python() || !require_root() {
        return;
    }
    let Some(harness) = Harness::new() else { return };
    check_killed_by_fork(&harness);
}

#[test]
fn a_fork_kills_a_zombie_leader_with_a_single_id() {
    if !can_run_python() {
        return;
    }
    let Some(harness) = unprivileged::with_one_id(WORKER) else { return };
    check_killed_by_fork(&harness);
}

#[test]
fn signals_pause_a_zombie_leader() {
    if !can_run_python() {
        return;
    }
    let Some(harness) = unprivileged::with_one_id(WORKER) else { return };
    let count = start_zombie_leader(&harness, 2);
    harness.launcher.pause_sandbox("a").unwrap();
    assert_unchanged(&harness.launcher, "a", || fs::read(&count).unwrap());
    harness.launcher.resume_sandbox("a").unwrap();
    wait_until_counting(&count);
}

#[test]
fn open_files_of_threads_make_a_zombie_leader_a_writer() {
    if !can_run_python() {
        return;
    }
    let Some(harness) = Harness::new() else { return };
    let count = start_zombie_leader(&harness, 3);
    assert_eq!(harness.launcher.kill_writers("a", false).unwrap(), 1);
    assert_unchanged(&harness.launcher, "a", || fs::read(&count).unwrap());
}
