//! Attempts against the worker in the same sandbox, processes of the host, and another sandbox.

use super::attempt_table::{AttemptTable, EscapeAttempt, SuccessProof, new_attempt};
use atoll_tests::local::LocalServer;
use serde_json::json;

const ERRORS_DENIED: &[&str] = &["EPERM", "EACCES"];
/// The other sandbox listens on this port and abstract socket in its own network namespace.
const NEIGHBOUR_PORT: u16 = 4711;
const NEIGHBOUR_NAME: &str = "atoll-neighbour";

/// `pid` is the worker's or its spawner's pid in the sandbox.
pub fn worker_attempts(target: &str, pid: &str) -> Vec<EscapeAttempt> {
    let calls = [
        ("ptrace", "ptrace"),
        ("process_vm_readv", "vm-read"),
        ("process_vm_writev", "vm-write"),
        ("/proc/…/mem", "proc-mem"),
        ("pidfd_getfd", "pidfd-getfd"),
    ];
    let call = |(name, call): (&str, &str)| {
        let attempt =
            new_attempt(format!("{target}: {name}"), format!("calls {call} {pid}"), ERRORS_DENIED, SuccessProof::Host);
        attempt.with_proof_script(format!("calls {call}"))
    };
    let mut rows: Vec<EscapeAttempt> = calls.into_iter().map(call).collect();
    for file in ["environ", "maps", "auxv"] {
        let attempt = new_attempt(
            format!("{target}: /proc/…/{file}"),
            format!("calls read-byte /proc/{pid}/{file}"),
            &["EACCES", "EPERM", "ENODATA"],
            SuccessProof::Host,
        );
        rows.push(attempt.with_proof_script(format!("calls read-byte /proc/self/{file}")));
    }
    for link in ["root", "cwd", "exe", "fd/3"] {
        let attempt = new_attempt(
            format!("{target}: /proc/…/{link}"),
            format!("try readlink -v /proc/{pid}/{link}"),
            &["Permission denied"],
            SuccessProof::Host,
        );
        rows.push(attempt.with_proof_script(format!("exec 3</dev/null; try readlink /proc/self/{link}")));
    }
    rows
}

/// The worker (pid 1) has another uid than the agent, so the kernel denies its signals.
pub fn signal_attempts() -> Vec<EscapeAttempt> {
    let signal = |number: u32| {
        let attempt = new_attempt(
            format!("the worker: signal {number}"),
            format!("calls signal 1 {number}"),
            ERRORS_DENIED,
            SuccessProof::Host,
        );
        attempt.with_proof_script("calls signal")
    };
    let mut rows: Vec<EscapeAttempt> = [9, 19, 15, 11].into_iter().map(signal).collect();
    rows.push(
        new_attempt("the worker: prlimit", "calls prlimit 1", ERRORS_DENIED, SuccessProof::Host)
            .with_proof_script("calls prlimit"),
    );
    rows
}

/// With a single id in the sandbox, the agent may signal its worker, but the kernel drops fatal signals to pid 1.
pub async fn check_ignored_signals(server: &LocalServer, table: &mut AttemptTable, id: &str) {
    const GROUP: &str = "the worker";
    for number in [9, 19, 15, 11] {
        server.run_shell(id, &format!("/tmp/calls signal 1 {number}; sleep 0.2")).await.expect_success();
        assert_eq!(
            server.run_shell(id, "echo alive").await.expect_success(),
            "alive\n",
            "the worker stopped after signal {number}"
        );
        assert_eq!(server.get_sandbox(id).await["state"], "running");
        table.record_refused(
            GROUP,
            &format!("the worker: signal {number}"),
            "ignored".into(),
            "on the host, on a child process",
        );
    }
    table.record_skipped(
        GROUP,
        "the worker: prlimit",
        "allowed: the worker has the agent's uid here, so only this sandbox is affected",
    );
}

/// The worker's spool and link, by their paths on the host.
pub fn worker_file_attempts(home: &str) -> Vec<EscapeAttempt> {
    vec![
        new_attempt("the worker's spool", format!("try ls {home}/spool"), &["No such file"], SuccessProof::Host),
        new_attempt(
            "the worker's link",
            format!("calls connect-path {home}/link/sock"),
            &["ENOENT"],
            SuccessProof::Host,
        ),
    ]
}

/// `server` and `neighbour` are pids of the host.
pub fn host_pid_attempts(server: u32, neighbour: Option<u32>) -> Vec<EscapeAttempt> {
    let mut rows = vec![
        new_attempt("signal the server", format!("calls signal {server} 0"), &["ESRCH"], SuccessProof::Host),
        new_attempt("pidfd_open of the server", format!("calls pidfd-open {server}"), &["ESRCH"], SuccessProof::Host),
        new_attempt(
            "find the server in /proc",
            format!("try ls /proc/{server}/stat"),
            &["No such file"],
            SuccessProof::Host,
        ),
    ];
    if let Some(pid) = neighbour {
        let script = format!("calls signal {pid} 0");
        rows.push(new_attempt("signal a process of another sandbox", script, &["ESRCH"], SuccessProof::Host));
    }
    rows
}

/// Creates files and listeners in the other sandbox for the attempts to reach.
pub async fn start_neighbour(server: &LocalServer, other: &str) {
    let serve = format!("setsid nohup /tmp/calls serve {NEIGHBOUR_PORT} {NEIGHBOUR_NAME} >/dev/null 2>&1 &");
    let files = "for d in /workspace /tmp $HOME /dev/shm; do echo canary > $d/neighbour-file; done";
    server.run_exec(other, json!({ "shell": format!("{serve}\n{files}") })).await.expect_success();
}

pub fn neighbour_attempts(other: &str, home: &str) -> Vec<EscapeAttempt> {
    let in_neighbour = || SuccessProof::InSandbox(other.to_owned());
    let mut rows = Vec::new();
    for dir in ["/workspace", "/tmp", "/home/agent", "/dev/shm"] {
        let script = format!("calls read-byte {dir}/neighbour-file");
        rows.push(new_attempt(format!("a file in its {dir}"), script, &["ENOENT"], in_neighbour()));
    }
    let by_path = format!("calls read-byte {home}/tmp/neighbour-file");
    let find_process =
        "for p in /proc/[0-9]*; do grep -qa 'atoll-neighbou[r]' $p/cmdline && echo $p; done 2>/dev/null | grep .";
    rows.extend([
        new_attempt("a file by its path on the host", by_path, &["ENOENT"], SuccessProof::Host),
        new_attempt("its port", format!("calls connect 127.0.0.1 {NEIGHBOUR_PORT}"), &["ECONNREFUSED"], in_neighbour()),
        new_attempt(
            "its abstract socket",
            format!("calls connect-abstract {NEIGHBOUR_NAME}"),
            &["ECONNREFUSED"],
            in_neighbour(),
        ),
        new_attempt(
            "its processes in /proc",
            format!("find_process() {{ {find_process}; }}; try find_process"),
            &["REFUSED"],
            in_neighbour(),
        ),
    ]);
    rows
}
