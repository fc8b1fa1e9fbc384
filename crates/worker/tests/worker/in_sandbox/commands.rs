//! Exec: one command per connection.

use super::{WorkerSandbox, exec_start, path_exists};
use atoll_protocol::exec::{ExecClientFrame, ExecExit, ExecStart};
use atoll_test_wait::wait_until;
use serde_json::json;
use std::time::{Duration, Instant};

#[test]
fn returns_output_and_exit_status() {
    let mut sandbox = WorkerSandbox::start();
    let mut exec = sandbox.start_shell("echo out; echo err >&2; exit 3");
    assert_eq!(exec.wait_for_end(), ExecExit::Exited { code: 3 });
    assert_eq!((&exec.stdout[..], &exec.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(sandbox.start_shell("kill -TERM $$").wait_for_end(), ExecExit::Signalled { signal: 15 });
    assert_eq!(sandbox.start_exec(exec_start(&["true"])).wait_for_end(), ExecExit::Exited { code: 0 });
    assert!(sandbox.complete_and_wait().success(), "{}", sandbox.worker_log());
}

#[test]
fn a_command_gets_the_default_and_its_own_environment() {
    let sandbox = WorkerSandbox::start();
    wait_until("the settings", || sandbox.run_shell("env").contains("FROM_SETTINGS=yes"));
    let env = sandbox.run_shell("env; pwd; umask; grep SigBlk /proc/self/status; ls -l /proc/self/fd");
    let workspace = sandbox.path("workspace");
    let home = format!("HOME={}", sandbox.path("home").display());
    for line in [&*home, "USER=agent", "IS_SANDBOX=1", "PAGER=cat", "GIT_TERMINAL_PROMPT=0", "TERM=dumb"] {
        assert!(env.lines().any(|it| it == line), "{line}: {env}");
    }
    for line in [workspace.to_str().unwrap(), "0022", "SigBlk:\t0000000000000000"] {
        assert!(env.lines().any(|it| it == line), "{line}: {env}");
    }
    // The exec number, by which the worker finds the command's processes.
    let variables: Vec<_> = env.lines().filter(|line| line.starts_with("ATOLL_")).collect();
    assert!(
        variables.len() == 1 && variables[0].strip_prefix("ATOLL_EXEC=").unwrap().parse::<u64>().is_ok(),
        "{variables:?}"
    );
    assert!(!env.contains("CI="), "{env}");
    // The command inherits none of the worker's descriptors: neither the server's socket nor the spool.
    assert!(!env.contains("socket:") && !env.contains("spool") && !env.contains("anon_inode"), "{env}");
    let start = ExecStart {
        env: [("MINE".to_owned(), "x".repeat(100_000))].into(),
        cwd: Some("/".to_owned()),
        ..exec_start(&["sh", "-c", "pwd; echo ${#MINE}"])
    };
    let mut exec = sandbox.start_exec(start);
    assert_eq!(exec.wait_for_end(), ExecExit::Exited { code: 0 });
    assert_eq!(String::from_utf8(exec.stdout).unwrap(), "/\n100000\n");
}

#[test]
fn reports_why_a_command_cannot_start() {
    let sandbox = WorkerSandbox::start();
    let nowhere = ExecStart { cwd: Some("/nowhere".to_owned()), ..exec_start(&["true"]) };
    for (start, why) in [
        (exec_start(&["no-such-program"]), "no such program"),
        (exec_start(&["/etc/passwd"]), "Permission denied"),
        (exec_start(&[]), "the command is empty"),
        (nowhere, "working directory /nowhere does not exist"),
    ] {
        let ExecExit::NotStarted { error } = sandbox.start_exec(start).wait_for_end() else {
            panic!("the command started")
        };
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn forwards_input_and_large_output() {
    let sandbox = WorkerSandbox::start();
    let mut exec = sandbox.start_exec(ExecStart { stdin: true, ..exec_start(&["cat"]) });
    let mut writer = exec.stream.try_clone().unwrap();
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let pieces = sent.clone();
    let writing = std::thread::spawn(move || {
        use std::io::Write;
        for piece in pieces.chunks(50_000) {
            writer.write_all(&ExecClientFrame::Stdin(piece.to_vec()).encode()).unwrap();
        }
        writer.write_all(&ExecClientFrame::CloseStdin.encode()).unwrap();
    });
    assert_eq!(exec.wait_for_end(), ExecExit::Exited { code: 0 });
    writing.join().unwrap();
    assert!(exec.stdout == sent, "{} of {} bytes came back", exec.stdout.len(), sent.len());
    assert_eq!(exec.stdin_bytes_consumed, sent.len(), "the worker did not report all input as consumed");
}

#[test]
fn a_closed_connection_and_a_signal_end_the_command_and_its_children() {
    let sandbox = WorkerSandbox::start();
    let began = Instant::now();
    let command = "echo begun; sleep 100 & sleep 100";
    let mut exec = sandbox.start_shell(command);
    assert_eq!(exec.read_frame(), None);
    exec.close_write_half();
    assert_eq!(exec.wait_for_end(), ExecExit::Signalled { signal: 9 });
    assert_eq!(exec.stdout, b"begun\n");
    // Unread input does not hide the closed connection.
    let mut unread = sandbox.start_exec(ExecStart { stdin: true, ..exec_start(&["sh", "-c", command]) });
    for _ in 0..13 {
        unread.send(&ExecClientFrame::Stdin(vec![0; 30_000]));
    }
    unread.close_write_half();
    assert_eq!(unread.wait_for_end(), ExecExit::Signalled { signal: 9 });
    assert!(began.elapsed() < Duration::from_secs(50));
    let mut exec = sandbox.start_shell(command);
    assert_eq!(exec.read_frame(), None);
    exec.send(&ExecClientFrame::Signal(15));
    assert_eq!(exec.wait_for_end(), ExecExit::Signalled { signal: 15 });
    // Nor does unread input hide a signal.
    let mut unread = sandbox.start_exec(ExecStart { stdin: true, ..exec_start(&["sh", "-c", command]) });
    for _ in 0..40 {
        unread.send(&ExecClientFrame::Stdin(vec![0; 30_000]));
    }
    unread.send(&ExecClientFrame::Signal(15));
    assert_eq!(unread.wait_for_end(), ExecExit::Signalled { signal: 15 });
    wait_until("the end of all processes", || {
        !sandbox.run_shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep 100")
    });
}

#[test]
fn a_lost_connection_kills_the_command() {
    let sandbox = WorkerSandbox::start();
    let mut exec = sandbox.start_shell("echo $$ > pid; echo begun; sleep 100; echo no > survived");
    assert_eq!(exec.read_frame(), None);
    // Unread input does not hide the lost connection.
    let mut unread = sandbox.start_exec(ExecStart { stdin: true, ..exec_start(&["sleep", "200"]) });
    for _ in 0..13 {
        unread.send(&ExecClientFrame::Stdin(vec![0; 30_000]));
    }
    drop(exec);
    drop(unread);
    wait_until("the end of both commands", || {
        !sandbox.run_shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep ")
    });
    assert!(path_exists(&sandbox.workspace_path("pid")) && !path_exists(&sandbox.workspace_path("survived")));
}

#[test]
fn a_background_child_does_not_delay_the_exit() {
    let sandbox = WorkerSandbox::start();
    let began = Instant::now();
    assert_eq!(sandbox.run_shell("sleep 300 & echo started"), "started\n");
    assert!(began.elapsed() < Duration::from_secs(50));
    assert!(sandbox.run_shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep 300"), "the child was killed");
}

#[test]
fn runs_many_commands_concurrently() {
    let sandbox = WorkerSandbox::start();
    // Each command ends only when all have started.
    let command = |n| format!("touch started{n}; until [ $(ls started* | wc -l) = 40 ]; do sleep 0.1; done; echo {n}");
    let mut all: Vec<_> = (0..40).map(|n| sandbox.start_shell(&command(n))).collect();
    for (n, exec) in all.iter_mut().enumerate() {
        assert_eq!(exec.wait_for_end(), ExecExit::Exited { code: 0 });
        assert_eq!(exec.stdout, format!("{n}\n").as_bytes());
    }
}

#[test]
fn rejects_invalid_frames() {
    use std::io::{Read, Write};
    let sandbox = WorkerSandbox::start();
    let mut stream = sandbox.connect_exec();
    stream.write_all(&[255; 64]).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    assert!(String::from_utf8_lossy(&reply).contains("exceeds the maximum size"));
    let mut stream = std::os::unix::net::UnixStream::connect(sandbox.path("sock")).unwrap();
    stream.write_all(b"?").unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_sandbox_without_an_agent_runs_commands() {
    let mut sandbox = WorkerSandbox::start_with(|fake| {
        fake.with_state(|state| state.agent = None);
        fake.queue_message("do something");
    });
    wait_until("the answer", || sandbox.server.message_answers("nack").len() == 1);
    let nack = &sandbox.server.message_answers("nack")[0];
    assert_eq!((&nack["handed"], &nack["retry"], &nack["reason"]), (&json!(false), &json!(false), &json!("no agent")));
    assert_eq!(sandbox.run_shell("echo hello"), "hello\n");
    assert!(sandbox.complete_and_wait().success());
    assert_eq!(sandbox.server.event_types(), ["agent.shutdown"]);
}
