//! The worker in the same sandbox, other processes of the machine, and another sandbox.

use super::table::{Proof, Row, Table, row};
use atoll_tests::local::Ground;
use serde_json::json;

const CLOSED: &[&str] = &["EPERM", "EACCES"];
/// A port and a name, each in the network of the sandbox that serves them.
const PORT: u16 = 4711;
const NAME: &str = "atoll-neighbour";

/// `pid` is the worker's or its hands', inside.
pub fn worker(whose: &str, pid: &str) -> Vec<Row> {
    let calls = [
        ("ptrace", "trace"),
        ("process_vm_readv", "vm-read"),
        ("process_vm_writev", "vm-write"),
        ("/proc/…/mem", "memory-file"),
        ("pidfd_getfd", "take-descriptor"),
    ];
    let call = |(name, call): (&str, &str)| {
        let attempt = row(format!("{whose}: {name}"), format!("calls {call} {pid}"), CLOSED, Proof::Host);
        attempt.elsewhere(format!("calls {call}"))
    };
    let mut rows: Vec<Row> = calls.into_iter().map(call).collect();
    for file in ["environ", "maps", "auxv"] {
        let attempt = row(
            format!("{whose}: /proc/…/{file}"),
            format!("calls read-byte /proc/{pid}/{file}"),
            &["EACCES", "EPERM", "ENODATA"],
            Proof::Host,
        );
        rows.push(attempt.elsewhere(format!("calls read-byte /proc/self/{file}")));
    }
    for link in ["root", "cwd", "exe", "fd/3"] {
        let attempt = row(
            format!("{whose}: /proc/…/{link}"),
            format!("try readlink -v /proc/{pid}/{link}"),
            &["Permission denied"],
            Proof::Host,
        );
        rows.push(attempt.elsewhere(format!("exec 3</dev/null; try readlink /proc/self/{link}")));
    }
    rows
}

/// What has the agent's id could be signalled by it; pid 1 has another, or is deaf to it.
pub fn signals() -> Vec<Row> {
    let signal = |number: u32| {
        let attempt =
            row(format!("the worker: signal {number}"), format!("calls signal 1 {number}"), CLOSED, Proof::Host);
        attempt.elsewhere("calls signal")
    };
    let mut rows: Vec<Row> = [9, 19, 15, 11].into_iter().map(signal).collect();
    rows.push(
        row("the worker: prlimit", "calls limit-process 1", CLOSED, Proof::Host).elsewhere("calls limit-process"),
    );
    rows
}

/// Where a sandbox has one id only the agent may signal its worker, which as pid 1 is deaf to what would end it.
pub async fn deaf(ground: &Ground, table: &mut Table, id: &str) {
    const GROUP: &str = "the worker";
    for number in [9, 19, 15, 11] {
        ground.shell(id, &format!("/tmp/calls signal 1 {number}; sleep 0.2")).await.well();
        assert_eq!(ground.shell(id, "echo well").await.well(), "well\n", "it goes on after signal {number}");
        assert_eq!(ground.row(id).await["state"], "running");
        table.held(GROUP, &format!("the worker: signal {number}"), "deaf to it".into(), "on the host, for a child");
    }
    table.skipped(GROUP, "the worker: prlimit", "it has the agent's id here, which can so harm its own sandbox only");
}

/// The worker's spool and link, by their places on the host.
pub fn held_by_the_worker(home: &str) -> Vec<Row> {
    vec![
        row("the worker's spool", format!("try ls {home}/spool"), &["No such file"], Proof::Host),
        row("the worker's link", format!("calls connect-path {home}/link/sock"), &["ENOENT"], Proof::Host),
    ]
}

/// `server` and `neighbour` are numbers of processes of the host.
pub fn pids(server: u32, neighbour: Option<u32>) -> Vec<Row> {
    let mut rows = vec![
        row("signal the server", format!("calls signal {server} 0"), &["ESRCH"], Proof::Host),
        row("pidfd_open of the server", format!("calls descriptor-of {server}"), &["ESRCH"], Proof::Host),
        row("see the server in /proc", format!("try ls /proc/{server}/stat"), &["No such file"], Proof::Host),
    ];
    if let Some(pid) = neighbour {
        let script = format!("calls signal {pid} 0");
        rows.push(row("signal a process of another sandbox", script, &["ESRCH"], Proof::Host));
    }
    rows
}

/// Something of the other sandbox to reach for.
pub async fn settle(ground: &Ground, other: &str) {
    let serve = format!("setsid nohup /tmp/calls serve {PORT} {NAME} >/dev/null 2>&1 &");
    let files = "for d in /workspace /tmp $HOME /dev/shm; do echo mine > $d/of-the-neighbour; done";
    ground.exec(other, json!({ "shell": format!("{serve}\n{files}") })).await.well();
}

pub fn neighbour(other: &str, home: &str) -> Vec<Row> {
    let there = || Proof::In(other.to_owned());
    let mut rows = Vec::new();
    for place in ["/workspace", "/tmp", "/home/agent", "/dev/shm"] {
        let script = format!("calls read-byte {place}/of-the-neighbour");
        rows.push(row(format!("a file in its {place}"), script, &["ENOENT"], there()));
    }
    let by_path = format!("calls read-byte {home}/tmp/of-the-neighbour");
    let look =
        "for p in /proc/[0-9]*; do grep -qa 'atoll-neighbou[r]' $p/cmdline && echo $p; done 2>/dev/null | grep .";
    rows.extend([
        row("a file by its place on the host", by_path, &["ENOENT"], Proof::Host),
        row("its port", format!("calls connect 127.0.0.1 {PORT}"), &["ECONNREFUSED"], there()),
        row("its abstract socket", format!("calls connect-abstract {NAME}"), &["ECONNREFUSED"], there()),
        row("its processes in /proc", format!("look() {{ {look}; }}; try look"), &["REFUSED"], there()),
    ]);
    rows
}
