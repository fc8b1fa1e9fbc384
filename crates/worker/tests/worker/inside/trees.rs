//! What ends a command ends what it started, wherever that went.

use super::{Sandbox, start};
use crate::until;
use atoll_protocol::exec::{Ask, End};
use std::time::{Duration, Instant};

/// Each leaves behind something that its process group does not hold.
const WAYS: &[&str] = &[
    "setsid sleep 1001 & sleep 1001",
    "setsid sh -c 'sleep 1001 & sleep 1001' & sleep 1001",
    "(setsid sh -c 'sleep 1001 &' &) ; sleep 1001",
    "setsid setsid sh -c '(sleep 1001 &) ; exec sleep 1001' & sleep 1001",
    "env -i /bin/sh -c 'sleep 1001' & sleep 1001",
    "setsid env -i /bin/sh -c 'exec sleep 1001' & sleep 1001",
    "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM HUP; sleep 1001 & wait' & wait",
];

fn sleepers(sandbox: &Sandbox) -> usize {
    // Not by the word itself, which stands in the command that asks.
    let said = sandbox.ask("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 100[1]' | wc -l");
    said.trim().parse().unwrap()
}

#[test]
fn whoever_leaves_ends_everything_by_every_way() {
    let sandbox = Sandbox::start();
    for way in WAYS {
        let command = format!("{way} & echo begun; wait");
        let mut exec = sandbox.exec(start(&["sh", "-c", &command]));
        std::thread::sleep(Duration::from_millis(400));
        exec.leave();
        assert_eq!(exec.end(), End::Signalled { signal: 9 }, "{way}");
        assert_eq!(exec.stdout, b"begun\n");
        until("everybody's end", || sleepers(&sandbox) == 0);
    }
}

#[test]
fn a_kill_ends_everything_and_only_that() {
    let sandbox = Sandbox::start();
    assert_eq!(sandbox.ask("setsid sleep 1001 > /dev/null 2>&1 & echo stays"), "stays\n");
    let mut beside = sandbox.shell("echo begun; sleep 1001");
    assert_eq!(beside.hear(), None);
    let mut exec = sandbox.shell("setsid sleep 1001 & (setsid sh -c 'sleep 1001 &' &) ; echo begun; sleep 1001");
    assert_eq!(exec.hear(), None);
    until("all of them", || sleepers(&sandbox) >= 5);
    exec.send(&Ask::Signal(9));
    assert_eq!(exec.end(), End::Signalled { signal: 9 });
    until("the end of one command", || sleepers(&sandbox) == 2 || sleepers(&sandbox) == 3);
    std::thread::sleep(Duration::from_millis(100));
    assert!((2..=3).contains(&sleepers(&sandbox)), "what another command left and what runs beside it live on");
    beside.send(&Ask::Signal(15));
    assert_eq!(beside.end(), End::Signalled { signal: 15 });
}

#[test]
fn what_starts_others_without_end_is_ended_too() {
    let sandbox = Sandbox::start();
    // Each starts its successor in a session of its own and ends: nobody's parent lives long.
    let script = "#!/bin/sh\nsleep 0.01\nsetsid \"$0\" 1001 < /dev/null > /dev/null 2>&1 &\n";
    std::fs::write(sandbox.file("next"), script).unwrap();
    let mut exec = sandbox.exec(start(&["sh", "-c", "chmod +x next; ./next; ./next; sleep 100"]));
    std::thread::sleep(Duration::from_millis(500));
    let beginning = Instant::now();
    exec.leave();
    assert_eq!(exec.end(), End::Signalled { signal: 9 });
    assert!(beginning.elapsed() < Duration::from_secs(10), "{:?}", beginning.elapsed());
    until("their end", || !sandbox.ask("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("next 1001"));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!sandbox.ask("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("next 1001"), "nobody came back");
}
