//! Tests the worker's binary against a fake server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fake_server;
mod in_sandbox;

use atoll_test_wait::{wait_for, wait_until};
use fake_server::FakeServer;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

const SANDBOX_ID: &str = "sbx_01jcqz4v8yfxa9s9w5c3m2k7d1";

struct WorkerProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

fn start_worker(fake: &FakeServer, dir: &Path, extra_args: &[&str]) -> WorkerProcess {
    std::fs::write(dir.join("token"), "good\n").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_atoll-worker"))
        .args(["--server", &fake.base_url(), "--sandbox", SANDBOX_ID, "--stdin"])
        .arg("--token-file")
        .arg(dir.join("token"))
        .arg("--spool")
        .arg(dir.join("spool"))
        .args(extra_args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::options().create(true).append(true).open(dir.join("stderr")).unwrap())
        .spawn()
        .unwrap();
    let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
    WorkerProcess { child, stdin, stdout }
}

impl WorkerProcess {
    fn send_line(&mut self, line: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn send_event(&mut self, n: i64) {
        self.send_line(&json!({"type": "agent.message", "data": {"n": n}}));
    }

    fn next_line(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("not a line of JSON: {line:?}"))
    }

    fn close_and_wait(&mut self) -> ExitStatus {
        drop(self.stdin.take());
        self.wait_for_exit()
    }

    fn wait_for_exit(&mut self) -> ExitStatus {
        wait_for("the worker's exit", || self.child.try_wait().unwrap())
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn read_stderr(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("stderr")).unwrap()
}

#[test]
fn events_arrive_once_and_in_order() {
    let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
    let mut worker = start_worker(&fake, dir.path(), &[]);
    for n in 1..=3 {
        worker.send_event(n);
        assert_eq!(worker.next_line(), json!({"key": n}));
    }
    writeln!(worker.stdin.as_mut().unwrap(), "\n  \nnot json").unwrap();
    assert_eq!(worker.next_line(), json!({"key": 4}));
    worker.send_line(&json!({"ack": {"id": "msg_01jcqz4v8yfxa9s9w5c3m2k7d1", "how": "injected"}}));
    assert!(worker.next_line()["error"].as_str().unwrap().contains("was not handed over"));
    assert!(worker.close_and_wait().success());
    let types = fake.event_types();
    assert_eq!(types, ["agent.message", "agent.message", "agent.message", "agent.unparsed", "agent.shutdown"]);
    assert_eq!(fake.events().last().unwrap()["data"], json!({"reason": "input_ended"}));
    assert!(
        !fake.with_state(|state| state.final_batches > 0),
        "the worker sent a final batch although it may start again"
    );
    assert_eq!(fake.heartbeats()[0]["activity"], "starting");
}

#[test]
fn printed_keys_survive_kills_and_outages() {
    let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
    let mut printed = Vec::new();
    for boot in 1..=4 {
        fake.with_state(|state| state.event_failures_left = if boot == 4 { 0 } else { boot * 3 });
        let mut worker = start_worker(&fake, dir.path(), &[]);
        let count = 150 * boot;
        for n in 0..count {
            worker.send_event(i64::from(boot * 10_000 + n));
        }
        // At the kill, some events are in the pipe or between disk and pipe.
        for n in 1..=count - if boot == 4 { 0 } else { 20 } {
            assert_eq!(worker.next_line(), json!({"key": n}));
            printed.push(i64::from(boot * 10_000 + n - 1));
        }
        if boot == 4 {
            assert!(worker.close_and_wait().success(), "{}", read_stderr(dir.path()));
        } else {
            worker.kill();
        }
    }
    let stored: Vec<_> = fake.events().iter().filter_map(|event| event["data"]["n"].as_i64()).collect();
    assert!(stored.is_sorted_by(|a, b| a < b), "events are duplicated or out of order");
    assert!(printed.iter().all(|n| stored.binary_search(n).is_ok()), "a printed key is not stored");
    let entries = std::fs::read_dir(dir.path().join("spool")).unwrap();
    let logs = entries.filter(|entry| entry.as_ref().unwrap().path().to_string_lossy().contains("-0")).count();
    assert!(logs <= 2, "earlier streams are still in the spool");
}

#[test]
fn repairs_a_key_gap_and_splits_large_batches() {
    let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
    fake.with_state(|state| state.max_batch_events = 7);
    let mut worker = start_worker(&fake, dir.path(), &[]);
    for n in 1..=60 {
        worker.send_event(n);
    }
    wait_until("some events", || fake.events().len() >= 30);
    fake.with_state(|state| state.drop_last_events(20));
    assert!(worker.close_and_wait().success(), "{}", read_stderr(dir.path()));
    let stored: Vec<_> = fake.events().iter().filter_map(|event| event["data"]["n"].as_i64()).collect();
    assert_eq!(stored, (1..=60).collect::<Vec<_>>());
}

#[test]
fn rejections_have_their_own_exit_codes() {
    for (code, status) in [("stream_fenced", 4), ("unauthorized", 5)] {
        let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
        let mut worker = start_worker(&fake, dir.path(), &[]);
        worker.send_event(1);
        wait_until("the event", || !fake.events().is_empty());
        fake.with_state(|state| state.refusal_code = Some(code));
        worker.send_event(2);
        assert_eq!(worker.wait_for_exit().code(), Some(status), "{}", read_stderr(dir.path()));
        assert!(read_stderr(dir.path()).contains("in the spool"));
    }
}

#[test]
fn reports_a_failed_set_up_at_once() {
    let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
    let mut first = start_worker(&fake, dir.path(), &[]);
    first.send_event(1);
    first.next_line();
    let mut second = start_worker(&fake, dir.path(), &[]);
    assert_eq!(second.wait_for_exit().code(), Some(2));
    assert!(
        read_stderr(dir.path()).contains(&format!("process id {}", first.child.id())),
        "{}",
        read_stderr(dir.path())
    );
    assert!(read_stderr(dir.path()).contains("other users can read the token file"));
}

#[test]
fn a_flush_can_time_out() {
    let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
    fake.with_state(|state| state.event_failures_left = u32::MAX);
    let mut worker = start_worker(&fake, dir.path(), &["--flush-timeout", "1"]);
    worker.send_event(1);
    worker.next_line();
    assert_eq!(worker.close_and_wait().code(), Some(3));
    assert!(read_stderr(dir.path()).contains("2 events"), "{}", read_stderr(dir.path()));
    fake.with_state(|state| state.event_failures_left = 0);
    assert!(start_worker(&fake, dir.path(), &[]).close_and_wait().success());
    assert_eq!(fake.event_types(), ["agent.message", "agent.shutdown", "agent.shutdown"]);
}

#[test]
fn a_terminated_worker_sends_its_events() {
    let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
    let mut worker = start_worker(&fake, dir.path(), &[]);
    worker.send_event(1);
    worker.next_line();
    let pid = rustix::process::Pid::from_child(&worker.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(worker.wait_for_exit().success());
    assert_eq!(fake.events().last().unwrap()["data"], json!({"reason": "terminated"}));
}

#[test]
fn an_ended_sandbox_stops_the_worker() {
    let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
    let mut worker = start_worker(&fake, dir.path(), &[]);
    worker.send_event(1);
    worker.next_line();
    fake.with_state(|state| state.sandbox_state = "completing");
    assert_eq!(worker.next_line(), json!({"stop": "completing"}));
    worker.send_event(2);
    assert_eq!(worker.next_line(), json!({"key": 2}));
    assert!(worker.wait_for_exit().success());
    assert_eq!(fake.event_types(), ["agent.message", "agent.message", "agent.shutdown"]);
    assert_eq!(fake.events().last().unwrap()["data"], json!({"reason": "sandbox_completing"}));
    assert_eq!(fake.with_state(|state| state.final_batches), 1);
}

#[test]
fn messages_are_delivered_and_acknowledged() {
    let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
    fake.queue_message("first");
    let mut worker = start_worker(&fake, dir.path(), &["--messages"]);
    let message = worker.next_line()["message"].clone();
    assert_eq!(message["content"], "first");
    worker.send_line(&json!({"ack": {"id": message["id"], "how": "new_turn", "turn": 1}}));
    wait_until("the acknowledgement", || fake.message_answers("ack").len() == 1);
    fake.queue_message("second");
    assert_eq!(worker.next_line()["message"]["content"], "second");
    worker.send_line(&json!({"live": {"text": "…"}}));
    wait_until("the live text", || fake.frames_of_type("live").len() == 1);
    assert!(worker.close_and_wait().success());
    let nacks = fake.message_answers("nack");
    assert_eq!((nacks.len(), &nacks[0]["handed"], &nacks[0]["reason"]), (1, &json!(true), &json!("input_ended")));
}

#[test]
fn a_killed_worker_hands_over_no_message_twice() {
    let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
    let mut worker = start_worker(&fake, dir.path(), &["--messages"]);
    fake.queue_message("unanswered");
    assert_eq!(worker.next_line()["message"]["content"], "unanswered");
    fake.with_state(|state| state.ack_failures_left = u32::MAX);
    fake.queue_message("answered");
    let id = worker.next_line()["message"]["id"].clone();
    worker.send_line(&json!({"ack": {"id": id, "how": "injected"}}));
    wait_until("a failed acknowledgement", || fake.with_state(|state| state.failed_acks > 0));
    worker.kill();
    fake.with_state(|state| state.ack_failures_left = 0);
    // The server releases the dead worker's leases and offers both messages to the next worker.
    let mut worker = start_worker(&fake, dir.path(), &["--messages"]);
    wait_until("both answers", || fake.message_answers("ack").len() == 1 && fake.message_answers("nack").len() == 1);
    assert_eq!(fake.message_answers("nack")[0]["reason"], "worker_restarted");
    fake.queue_message("new");
    assert_eq!(worker.next_line()["message"]["content"], "new", "a message was delivered twice");
}

#[test]
fn a_late_copy_of_an_acknowledged_message_is_not_handed_over() {
    let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
    let mut worker = start_worker(&fake, dir.path(), &["--messages"]);
    let id = fake.queue_message("acknowledged");
    assert_eq!(worker.next_line()["message"]["id"], id);
    worker.send_line(&json!({"ack": {"id": id, "how": "new_turn", "turn": 1}}));
    wait_until("the acknowledgement", || fake.message_answers("ack").len() == 1);
    fake.send_late_copy(&id);
    fake.queue_message("new");
    assert_eq!(worker.next_line()["message"]["content"], "new", "the copy does not reach the program");
    assert!(read_stderr(dir.path()).contains("an acknowledged message came again"));
    assert!(worker.close_and_wait().success());
    assert_eq!(fake.message_answers("ack").len(), 1);
}

#[test]
fn a_worker_without_messages_returns_the_prompt() {
    let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
    fake.queue_message("prompt");
    let mut worker = start_worker(&fake, dir.path(), &[]);
    wait_until("the answer", || fake.message_answers("nack").len() == 1);
    assert_eq!(
        (&fake.message_answers("nack")[0]["handed"], &fake.message_answers("nack")[0]["retry"]),
        (&json!(false), &json!(true))
    );
    worker.send_event(1);
    assert_eq!(worker.next_line(), json!({"key": 1}));
    assert!(worker.close_and_wait().success());
}

#[test]
fn an_exiting_worker_leases_no_more_messages() {
    let (fake, dir) = (FakeServer::start(), tempfile::tempdir().unwrap());
    let mut worker = start_worker(&fake, dir.path(), &["--messages"]);
    worker.send_event(1);
    assert_eq!(worker.next_line(), json!({"key": 1}));
    fake.with_state(|state| state.event_failures_left = u32::MAX);
    drop(worker.stdin.take());
    wait_until("the end of the input", || read_stderr(dir.path()).contains("the input is closed"));
    // If the worker leased and returned the message, the server would offer it again at once.
    fake.queue_message("too late");
    wait_until("some retries", || fake.with_state(|state| state.event_failures_left <= u32::MAX - 3));
    fake.with_state(|state| state.event_failures_left = 0);
    assert!(worker.wait_for_exit().success());
    assert!(fake.message_answers("nack").len() <= 1, "{:?}", fake.message_answers("nack"));
}
