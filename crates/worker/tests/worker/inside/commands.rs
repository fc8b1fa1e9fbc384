//! Exec: one command for each connection.

use super::{Sandbox, exists, start};
use crate::until;
use atoll_protocol::exec::{Ask, End, Start};
use serde_json::json;
use std::time::{Duration, Instant};

#[test]
fn a_command_says_what_it_has_to_say_and_how_it_ended() {
    let mut sandbox = Sandbox::start();
    let mut exec = sandbox.shell("echo out; echo err >&2; exit 3");
    assert_eq!(exec.end(), End::Exited { code: 3 });
    assert_eq!((&exec.stdout[..], &exec.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(sandbox.shell("kill -TERM $$").end(), End::Signalled { signal: 15 });
    assert_eq!(sandbox.exec(start(&["true"])).end(), End::Exited { code: 0 });
    assert!(sandbox.end().success(), "{}", sandbox.log());
}

#[test]
fn a_command_has_a_plain_environment_and_the_one_it_was_given() {
    let sandbox = Sandbox::start();
    until("the settings", || sandbox.ask("env").contains("FROM_SETTINGS=yes"));
    let env = sandbox.ask("env; pwd; umask; grep SigBlk /proc/self/status; ls -l /proc/self/fd");
    let workspace = sandbox.path("workspace");
    let home = format!("HOME={}", sandbox.path("home").display());
    for line in [&*home, "USER=agent", "IS_SANDBOX=1", "PAGER=cat", "GIT_TERMINAL_PROMPT=0", "TERM=dumb"] {
        assert!(env.lines().any(|it| it == line), "{line}: {env}");
    }
    for line in [workspace.to_str().unwrap(), "0022", "SigBlk:\t0000000000000000"] {
        assert!(env.lines().any(|it| it == line), "{line}: {env}");
    }
    // A number, by which what it starts is found again.
    let own: Vec<_> = env.lines().filter(|line| line.starts_with("ATOLL_")).collect();
    assert!(own.len() == 1 && own[0].strip_prefix("ATOLL_EXEC=").unwrap().parse::<u64>().is_ok(), "{own:?}");
    assert!(!env.contains("CI="), "{env}");
    // Nothing of what the worker inherited or opened: neither the server's socket nor the spool.
    assert!(!env.contains("socket:") && !env.contains("spool") && !env.contains("anon_inode"), "{env}");
    let given = Start {
        env: [("MINE".to_owned(), "x".repeat(100_000))].into(),
        cwd: Some("/".to_owned()),
        ..start(&["sh", "-c", "pwd; echo ${#MINE}"])
    };
    let mut exec = sandbox.exec(given);
    assert_eq!(exec.end(), End::Exited { code: 0 });
    assert_eq!(String::from_utf8(exec.stdout).unwrap(), "/\n100000\n");
}

#[test]
fn what_can_t_be_started_says_why() {
    let sandbox = Sandbox::start();
    let nowhere = Start { cwd: Some("/nowhere".to_owned()), ..start(&["true"]) };
    for (start, why) in [
        (start(&["no-such-program"]), "there is no such program"),
        (start(&["/etc/passwd"]), "Permission denied"),
        (start(&[]), "nothing to run"),
        (nowhere, "working directory /nowhere is not there"),
    ] {
        let End::NotStarted { error } = sandbox.exec(start).end() else { panic!("it was started") };
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn input_comes_through_and_much_output_too() {
    let sandbox = Sandbox::start();
    let mut exec = sandbox.exec(Start { stdin: true, ..start(&["cat"]) });
    let mut writer = exec.stream.try_clone().unwrap();
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let pieces = sent.clone();
    let writing = std::thread::spawn(move || {
        use std::io::Write;
        for piece in pieces.chunks(50_000) {
            writer.write_all(&Ask::Stdin(piece.to_vec()).encode()).unwrap();
        }
        writer.write_all(&Ask::CloseStdin.encode()).unwrap();
    });
    assert_eq!(exec.end(), End::Exited { code: 0 });
    writing.join().unwrap();
    assert!(exec.stdout == sent, "{} of {} bytes came back", exec.stdout.len(), sent.len());
    assert_eq!(exec.taken, sent.len(), "and all is said to be taken");
}

#[test]
fn leaving_and_signals_end_a_command_with_all_that_it_started() {
    let sandbox = Sandbox::start();
    let beginning = Instant::now();
    let command = "echo begun; sleep 100 & sleep 100";
    let mut exec = sandbox.shell(command);
    assert_eq!(exec.hear(), None);
    exec.leave();
    assert_eq!(exec.end(), End::Signalled { signal: 9 });
    assert_eq!(exec.stdout, b"begun\n");
    // Input that it does not read does not hide it.
    let mut deaf = sandbox.exec(Start { stdin: true, ..start(&["sh", "-c", command]) });
    for _ in 0..13 {
        deaf.send(&Ask::Stdin(vec![0; 30_000]));
    }
    deaf.leave();
    assert_eq!(deaf.end(), End::Signalled { signal: 9 });
    assert!(beginning.elapsed() < Duration::from_secs(10));
    let mut exec = sandbox.shell(command);
    assert_eq!(exec.hear(), None);
    exec.send(&Ask::Signal(15));
    assert_eq!(exec.end(), End::Signalled { signal: 15 });
    // Nor does it a signal.
    let mut deaf = sandbox.exec(Start { stdin: true, ..start(&["sh", "-c", command]) });
    for _ in 0..40 {
        deaf.send(&Ask::Stdin(vec![0; 30_000]));
    }
    deaf.send(&Ask::Signal(15));
    assert_eq!(deaf.end(), End::Signalled { signal: 15 });
    until("everybody's end", || !sandbox.ask("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep 100"));
}

#[test]
fn a_lost_connection_kills_what_it_started() {
    let sandbox = Sandbox::start();
    let mut exec = sandbox.shell("echo $$ > pid; echo begun; sleep 100; echo no > survived");
    assert_eq!(exec.hear(), None);
    // Input that it does not read must not hide that nobody is there any more.
    let mut deaf = sandbox.exec(Start { stdin: true, ..start(&["sleep", "200"]) });
    for _ in 0..13 {
        deaf.send(&Ask::Stdin(vec![0; 30_000]));
    }
    drop(exec);
    drop(deaf);
    until("their end", || !sandbox.ask("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep "));
    assert!(exists(&sandbox.file("pid")) && !exists(&sandbox.file("survived")));
}

#[test]
fn who_is_left_behind_does_not_hold_up_the_end() {
    let sandbox = Sandbox::start();
    let beginning = Instant::now();
    assert_eq!(sandbox.ask("sleep 30 & echo started"), "started\n");
    assert!(beginning.elapsed() < Duration::from_secs(10));
    assert!(sandbox.ask("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep 30"), "it lives on");
}

#[test]
fn many_commands_run_beside_each_other() {
    let sandbox = Sandbox::start();
    let mut all: Vec<_> = (0..40).map(|n| sandbox.shell(&format!("sleep 0.5; echo {n}"))).collect();
    let beginning = Instant::now();
    for (n, exec) in all.iter_mut().enumerate() {
        assert_eq!(exec.end(), End::Exited { code: 0 });
        assert_eq!(exec.stdout, format!("{n}\n").as_bytes());
    }
    assert!(beginning.elapsed() < Duration::from_secs(8), "{:?}", beginning.elapsed());
}

#[test]
fn nonsense_on_a_connection_is_refused() {
    use std::io::{Read, Write};
    let sandbox = Sandbox::start();
    let mut stream = sandbox.connect();
    stream.write_all(&[255; 64]).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("longer than any may be"));
    let mut stream = std::os::unix::net::UnixStream::connect(sandbox.path("sock")).unwrap();
    stream.write_all(b"?").unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_sandbox_without_an_agent_is_there_for_commands() {
    let mut sandbox = Sandbox::with(|fake| {
        fake.with(|state| state.agent = None);
        fake.queue("do something");
    });
    until("the answer", || sandbox.fake.answers("nack").len() == 1);
    let nack = &sandbox.fake.answers("nack")[0];
    assert_eq!((&nack["handed"], &nack["retry"], &nack["reason"]), (&json!(false), &json!(false), &json!("no agent")));
    assert_eq!(sandbox.ask("echo hello"), "hello\n");
    assert!(sandbox.end().success());
    assert_eq!(sandbox.fake.types(), ["agent.shutdown"]);
}
