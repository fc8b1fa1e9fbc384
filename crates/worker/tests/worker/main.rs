//! The worker as a program, against a server that does what each test wants.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod fake;
mod inside;

use fake::Fake;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const SANDBOX: &str = "sbx_01jcqz4v8yfxa9s9w5c3m2k7d1";

struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

fn start(fake: &Fake, dir: &Path, more: &[&str]) -> Worker {
    std::fs::write(dir.join("token"), "good\n").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_atoll-worker"))
        .args(["--server", &fake.url(), "--sandbox", SANDBOX, "--stdin"])
        .arg("--token-file")
        .arg(dir.join("token"))
        .arg("--spool")
        .arg(dir.join("spool"))
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::options().create(true).append(true).open(dir.join("stderr")).unwrap())
        .spawn()
        .unwrap();
    let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
    Worker { child, stdin, stdout }
}

impl Worker {
    fn say(&mut self, line: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn event(&mut self, n: i64) {
        self.say(&json!({"type": "agent.message", "data": {"n": n}}));
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("not a line of JSON: {line:?}"))
    }

    fn end(&mut self) -> ExitStatus {
        drop(self.stdin.take());
        self.wait()
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the worker did not end");
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Waits until something is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while !so() {
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn stderr(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("stderr")).unwrap()
}

#[test]
fn events_arrive_once_and_in_order() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    let mut worker = start(&fake, dir.path(), &[]);
    for n in 1..=3 {
        worker.event(n);
        assert_eq!(worker.hear(), json!({"key": n}));
    }
    writeln!(worker.stdin.as_mut().unwrap(), "\n  \nnot json").unwrap();
    assert_eq!(worker.hear(), json!({"key": 4}));
    worker.say(&json!({"ack": {"id": "msg_01jcqz4v8yfxa9s9w5c3m2k7d1", "how": "injected"}}));
    assert!(worker.hear()["error"].as_str().unwrap().contains("was not handed over"));
    assert!(worker.end().success());
    let types = fake.types();
    assert_eq!(types, ["agent.message", "agent.message", "agent.message", "agent.unparsed", "agent.shutdown"]);
    assert_eq!(fake.events().last().unwrap()["data"], json!({"reason": "input_ended"}));
    assert!(!fake.with(|state| state.finals > 0), "the worker may be started again");
    assert_eq!(fake.heartbeats()[0]["activity"], "starting");
}

#[test]
fn what_was_printed_survives_kills_and_outages() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    let mut printed = Vec::new();
    for boot in 1..=4 {
        fake.with(|state| state.fail_events = if boot == 4 { 0 } else { boot * 3 });
        let mut worker = start(&fake, dir.path(), &[]);
        let count = 150 * boot;
        for n in 0..count {
            worker.event(i64::from(boot * 10_000 + n));
        }
        // Some are in the pipe or between disk and pipe when the kill comes.
        for n in 1..=count - if boot == 4 { 0 } else { 20 } {
            assert_eq!(worker.hear(), json!({"key": n}));
            printed.push(i64::from(boot * 10_000 + n - 1));
        }
        if boot == 4 {
            assert!(worker.end().success(), "{}", stderr(dir.path()));
        } else {
            worker.kill();
        }
    }
    let stored: Vec<_> = fake.events().iter().filter_map(|event| event["data"]["n"].as_i64()).collect();
    assert!(stored.is_sorted_by(|a, b| a < b), "each once and in order");
    assert!(printed.iter().all(|n| stored.binary_search(n).is_ok()), "everything that was printed is stored");
    let left = std::fs::read_dir(dir.path().join("spool")).unwrap();
    let logs = left.filter(|entry| entry.as_ref().unwrap().path().to_string_lossy().contains("-0")).count();
    assert!(logs <= 2, "earlier streams are gone from the spool");
}

#[test]
fn a_gap_is_mended_and_a_large_batch_is_halved() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    fake.with(|state| state.most_events = 7);
    let mut worker = start(&fake, dir.path(), &[]);
    for n in 1..=60 {
        worker.event(n);
    }
    until("some events", || fake.events().len() >= 30);
    fake.with(|state| state.forget(20));
    assert!(worker.end().success(), "{}", stderr(dir.path()));
    let stored: Vec<_> = fake.events().iter().filter_map(|event| event["data"]["n"].as_i64()).collect();
    assert_eq!(stored, (1..=60).collect::<Vec<_>>());
}

#[test]
fn refusals_have_their_own_exit_codes() {
    for (code, status) in [("stream_fenced", 4), ("unauthorized", 5)] {
        let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
        let mut worker = start(&fake, dir.path(), &[]);
        worker.event(1);
        until("the event", || !fake.events().is_empty());
        fake.with(|state| state.refuse = Some(code));
        worker.event(2);
        assert_eq!(worker.wait().code(), Some(status), "{}", stderr(dir.path()));
        assert!(stderr(dir.path()).contains("stays in the spool"));
    }
}

#[test]
fn a_wrong_set_up_is_said_at_once() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    let mut first = start(&fake, dir.path(), &[]);
    first.event(1);
    first.hear();
    let mut second = start(&fake, dir.path(), &[]);
    assert_eq!(second.wait().code(), Some(2));
    assert!(stderr(dir.path()).contains(&format!("process id {}", first.child.id())), "{}", stderr(dir.path()));
    assert!(stderr(dir.path()).contains("others than its owner can read the token file"));
}

#[test]
fn a_flush_can_have_an_end() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    fake.with(|state| state.fail_events = u32::MAX);
    let mut worker = start(&fake, dir.path(), &["--flush-timeout", "1"]);
    worker.event(1);
    worker.hear();
    assert_eq!(worker.end().code(), Some(3));
    assert!(stderr(dir.path()).contains("2 events"), "{}", stderr(dir.path()));
    fake.with(|state| state.fail_events = 0);
    assert!(start(&fake, dir.path(), &[]).end().success());
    assert_eq!(fake.types(), ["agent.message", "agent.shutdown", "agent.shutdown"]);
}

#[test]
fn a_terminated_worker_sends_what_it_has() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    let mut worker = start(&fake, dir.path(), &[]);
    worker.event(1);
    worker.hear();
    let pid = rustix::process::Pid::from_child(&worker.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(worker.wait().success());
    assert_eq!(fake.events().last().unwrap()["data"], json!({"reason": "terminated"}));
}

#[test]
fn an_ended_sandbox_stops_the_worker() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    let mut worker = start(&fake, dir.path(), &[]);
    worker.event(1);
    worker.hear();
    fake.with(|state| state.state = "completing");
    assert_eq!(worker.hear(), json!({"stop": "completing"}));
    worker.event(2);
    assert_eq!(worker.hear(), json!({"key": 2}));
    assert!(worker.wait().success());
    assert_eq!(fake.types(), ["agent.message", "agent.message", "agent.shutdown"]);
    assert_eq!(fake.events().last().unwrap()["data"], json!({"reason": "sandbox_completing"}));
    assert_eq!(fake.with(|state| state.finals), 1);
}

#[test]
fn messages_are_handed_over_and_answered() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    fake.queue("first");
    let mut worker = start(&fake, dir.path(), &["--messages"]);
    let message = worker.hear()["message"].clone();
    assert_eq!(message["content"], "first");
    worker.say(&json!({"ack": {"id": message["id"], "how": "new_turn", "turn": 1}}));
    until("the acknowledgement", || fake.answers("ack").len() == 1);
    fake.queue("second");
    assert_eq!(worker.hear()["message"]["content"], "second");
    worker.say(&json!({"live": {"text": "…"}}));
    until("the live text", || fake.frames("live").len() == 1);
    assert!(worker.end().success());
    let nacks = fake.answers("nack");
    assert_eq!((nacks.len(), &nacks[0]["handed"], &nacks[0]["reason"]), (1, &json!(true), &json!("input_ended")));
}

#[test]
fn no_message_is_handed_over_twice_through_kills() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    let mut worker = start(&fake, dir.path(), &["--messages"]);
    fake.queue("unanswered");
    assert_eq!(worker.hear()["message"]["content"], "unanswered");
    fake.with(|state| state.fail_answers = u32::MAX);
    fake.queue("answered");
    let id = worker.hear()["message"]["id"].clone();
    worker.say(&json!({"ack": {"id": id, "how": "injected"}}));
    until("a try", || fake.with(|state| state.failed_answers > 0));
    worker.kill();
    fake.with(|state| state.fail_answers = 0);
    // The server frees the leases of the dead worker, and gives both messages to the next one.
    let mut worker = start(&fake, dir.path(), &["--messages"]);
    until("both answers", || fake.answers("ack").len() == 1 && fake.answers("nack").len() == 1);
    assert_eq!(fake.answers("nack")[0]["reason"], "worker_restarted");
    fake.queue("new");
    assert_eq!(worker.hear()["message"]["content"], "new", "nothing else came before");
}

#[test]
fn without_messages_a_prompt_stays_queued() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    fake.queue("prompt");
    let mut worker = start(&fake, dir.path(), &[]);
    until("the answer", || fake.answers("nack").len() == 1);
    assert_eq!((&fake.answers("nack")[0]["handed"], &fake.answers("nack")[0]["retry"]), (&json!(false), &json!(true)));
    worker.event(1);
    assert_eq!(worker.hear(), json!({"key": 1}));
    assert!(worker.end().success());
}

#[test]
fn a_worker_that_is_going_takes_no_more_messages() {
    let (fake, dir) = (Fake::start(), tempfile::tempdir().unwrap());
    let mut worker = start(&fake, dir.path(), &["--messages"]);
    worker.event(1);
    assert_eq!(worker.hear(), json!({"key": 1}));
    fake.with(|state| state.fail_events = u32::MAX);
    drop(worker.stdin.take());
    until("the end of the input", || stderr(dir.path()).contains("no more input is taken"));
    // Given back, it would be free again at once, and come again, for as long as there is anything to send.
    fake.queue("too late");
    std::thread::sleep(Duration::from_millis(300));
    fake.with(|state| state.fail_events = 0);
    assert!(worker.wait().success());
    assert!(fake.answers("nack").len() <= 1, "{:?}", fake.answers("nack"));
}
