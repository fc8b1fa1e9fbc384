//! Ending a command ends all its processes.

use super::{WorkerSandbox, exec_start};
use atoll_protocol::exec::{ExecClientFrame, ExecExit};
use atoll_test_wait::wait_until;
use std::time::{Duration, Instant};

/// Commands whose children leave the process group.
const ESCAPING_COMMANDS: &[&str] = &[
    "setsid sleep 1001 & sleep 1001",
    "setsid sh -c 'sleep 1001 & sleep 1001' & sleep 1001",
    "(setsid sh -c 'sleep 1001 &' &) ; sleep 1001",
    "setsid setsid sh -c '(sleep 1001 &) ; exec sleep 1001' & sleep 1001",
    "env -i /bin/sh -c 'sleep 1001' & sleep 1001",
    "setsid env -i /bin/sh -c 'exec sleep 1001' & sleep 1001",
    "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM HUP; sleep 1001 & wait' & wait",
];

fn count_sleep_processes(sandbox: &WorkerSandbox) -> usize {
    // The pattern does not match the query itself.
    let count = sandbox.run_shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 100[1]' | wc -l");
    count.trim().parse().unwrap()
}

#[test]
fn a_closed_connection_kills_all_processes() {
    let sandbox = WorkerSandbox::start();
    for escape in ESCAPING_COMMANDS {
        let command = format!("{escape} & echo begun; wait");
        let mut exec = sandbox.start_exec(exec_start(&["sh", "-c", &command]));
        wait_until("the children", || count_sleep_processes(&sandbox) > 0);
        exec.close_write_half();
        assert_eq!(exec.wait_for_end(), ExecExit::Signalled { signal: 9 }, "{escape}");
        assert_eq!(exec.stdout, b"begun\n");
        wait_until("the end of all processes", || count_sleep_processes(&sandbox) == 0);
    }
}

#[test]
fn a_kill_ends_one_command_and_no_other() {
    let sandbox = WorkerSandbox::start();
    assert_eq!(sandbox.run_shell("setsid sleep 1001 > /dev/null 2>&1 & echo stays"), "stays\n");
    let mut other = sandbox.start_shell("echo begun; sleep 1001");
    assert_eq!(other.read_frame(), None);
    let mut exec = sandbox.start_shell("setsid sleep 1001 & (setsid sh -c 'sleep 1001 &' &) ; echo begun; sleep 1001");
    assert_eq!(exec.read_frame(), None);
    wait_until("all processes", || count_sleep_processes(&sandbox) >= 5);
    exec.send(&ExecClientFrame::Signal(9));
    assert_eq!(exec.wait_for_end(), ExecExit::Signalled { signal: 9 });
    wait_until("the end of one command", || (2..=3).contains(&count_sleep_processes(&sandbox)));
    assert!(count_sleep_processes(&sandbox) >= 2, "a process of another command was killed");
    other.send(&ExecClientFrame::Signal(15));
    assert_eq!(other.wait_for_end(), ExecExit::Signalled { signal: 15 });
}

#[test]
fn kills_processes_that_keep_forking() {
    let sandbox = WorkerSandbox::start();
    // Each process starts its successor in a new session and exits.
    let script = "#!/bin/sh\nsleep 0.01\nsetsid \"$0\" 1001 < /dev/null > /dev/null 2>&1 &\n";
    std::fs::write(sandbox.workspace_path("next"), script).unwrap();
    let mut exec = sandbox.start_exec(exec_start(&["sh", "-c", "chmod +x next; ./next; ./next; sleep 100"]));
    let is_running = || sandbox.run_shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("next 1001");
    wait_until("the first successor", is_running);
    let began = Instant::now();
    exec.close_write_half();
    assert_eq!(exec.wait_for_end(), ExecExit::Signalled { signal: 9 });
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    // Several samples in a row: a survivor would start another.
    wait_until("the end of all processes", || (0..10).all(|_| !is_running()));
}
