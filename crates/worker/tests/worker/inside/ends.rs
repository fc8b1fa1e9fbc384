//! How things end inside: the agent, the helper process, the worker.

use super::Sandbox;
use crate::{SANDBOX, until};
use atoll_protocol::exec::End;
use atoll_worker::drain::drain;
use atoll_worker::link::Dialer;
use rustix::process::Signal;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn every_end_of_an_agent_is_told_apart() {
    for (prompt, reason, words, tail) in [
        ("say x\ncrash", "agent_crashed", "signal 6", "told to crash"),
        ("say x\nfail no key", "agent_failed", "no key", ""),
        ("say x\nrun kill -9 $PPID", "agent_crashed", "signal 9", ""),
    ] {
        let mut sandbox = Sandbox::with(|fake| drop(fake.queue(prompt)));
        sandbox.wait_for("agent.failed", 1);
        let failed = sandbox.data("agent.failed");
        assert_eq!((&failed["reason"], &failed["turn"]), (&json!(reason), &json!(1)), "{failed}");
        assert!(failed["error"].as_str().unwrap().contains(words), "{failed}");
        assert!(failed["stderr_tail"].as_str().unwrap().contains(tail), "{failed}");
        sandbox.fake.with(|state| state.state = "failed");
        assert!(sandbox.wait().success(), "{}", sandbox.log());
        assert_eq!(sandbox.data("agent.shutdown"), json!({"reason": "sandbox_failed"}));
    }
}

#[test]
fn an_agent_that_nobody_knows_is_said_so() {
    let mut sandbox = Sandbox::with(|fake| {
        fake.with(|state| state.agent = Some("nobody"));
        fake.queue("hello");
    });
    sandbox.wait_for("agent.failed", 1);
    let failed = sandbox.data("agent.failed");
    assert_eq!(failed["reason"], "agent_not_started");
    assert!(failed["error"].as_str().unwrap().contains("no agent `nobody`"));
    assert_eq!(sandbox.ask("echo still here"), "still here\n");
    assert!(sandbox.end().success());
    let nacks = sandbox.fake.answers("nack");
    assert_eq!((&nacks[0]["handed"], &nacks[0]["retry"]), (&json!(false), &json!(true)), "it goes back");
}

#[test]
fn killed_hands_are_replaced() {
    let sandbox = Sandbox::with(|fake| drop(fake.queue("say begun\nrun sleep 100")));
    sandbox.wait_for("agent.tool_use", 1);
    let mut running = sandbox.shell("sleep 50");
    let killing = sandbox.shell("sleep 0.2; kill -9 $PPID; sleep 50").end();
    assert_eq!((killing, running.end()), (End::Unknown, End::Unknown));
    sandbox.wait_for("agent.failed", 1);
    let failed = sandbox.data("agent.failed");
    assert_eq!((&failed["reason"], &failed["exit"]), (&json!("agent_crashed"), &json!({"kind": "unknown"})));
    assert_eq!(sandbox.ask("echo again"), "again\n");
    // What ran under the old ones is gone, but for what the agent had put into a group of its own, and so are the dead.
    until("the last one's end", || {
        let left = sandbox.ask("cat /proc/[0-9]*/status 2>/dev/null; true");
        !left.contains("zombie") && left.matches("Name:\tsleep").count() == 1
    });
}

#[test]
fn orphans_are_reaped() {
    let sandbox = Sandbox::start();
    sandbox.ask("for n in 1 2 3 4 5; do (sleep 0.1 & ) ; done");
    until("no zombie", || {
        let left = sandbox.ask("cat /proc/[0-9]*/status 2>/dev/null; true");
        !left.contains("zombie") && !left.contains("Name:\tsleep")
    });
}

#[test]
fn signals_count_only_from_outside() {
    let mut sandbox = Sandbox::with(|fake| drop(fake.queue("run sleep 1; echo finished\nsay never\nwait 60")));
    sandbox.wait_for("agent.tool_use", 1);
    sandbox.ask("kill -TERM 1; kill -INT 1; sleep 0.3");
    assert!(sandbox.child.try_wait().unwrap().is_none(), "what is sent from inside is ignored");
    sandbox.signal(Signal::TERM);
    assert!(sandbox.wait().success(), "{}", sandbox.log());
    let completed = sandbox.data("agent.tool_completed");
    assert_eq!(completed["output"], "finished\n", "the tool under way was finished");
    assert_eq!(sandbox.data("agent.shutdown"), json!({"reason": "terminated"}));
    assert_eq!((sandbox.count("agent.completed"), sandbox.count("agent.failed")), (0, 0));
}

#[test]
fn a_worker_that_is_told_to_go_does_not_wait_for_ever() {
    let mut sandbox = Sandbox::with(|fake| drop(fake.queue("run sleep 1000")));
    sandbox.wait_for("agent.tool_use", 1);
    sandbox.signal(Signal::TERM);
    sandbox.signal(Signal::INT);
    assert!(sandbox.wait().success(), "{}", sandbox.log());
    assert_eq!(sandbox.data("agent.shutdown"), json!({"reason": "terminated"}));
}

#[test]
fn what_a_killed_worker_left_is_drained() {
    let mut sandbox = Sandbox::with(|fake| {
        fake.with(|state| (state.fail_events, state.fail_answers) = (u32::MAX, u32::MAX));
        fake.queue("say one\nsay two\nwait 100");
    });
    until("a failed answer", || sandbox.fake.with(|state| state.failed_answers > 0));
    let spool = sandbox.path("spool");
    until("the events on disk", || {
        let text =
            std::fs::read_dir(&spool).unwrap().flatten().map(|entry| std::fs::read(entry.path()).unwrap_or_default());
        text.flatten().collect::<Vec<_>>().windows(3).any(|bytes| bytes == b"two")
    });
    sandbox.child.kill().unwrap();
    sandbox.wait();
    assert!(sandbox.fake.events().is_empty());

    sandbox.fake.with(|state| (state.fail_events, state.fail_answers) = (0, 0));
    let server = sandbox.fake.beside();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let dial = Arc::new(Dialer::new(&server).unwrap());
    let id = SANDBOX.parse().unwrap();
    let drained = runtime.block_on(drain(&spool, id, dial.clone(), Duration::from_secs(10))).unwrap();
    assert_eq!(sandbox.fake.types(), ["agent.started", "agent.message", "agent.message"]);
    assert_eq!((drained.events, drained.answers, drained.left), (3, 1, 0));
    assert_eq!(sandbox.fake.answers("ack").len(), 1);
    let again = runtime.block_on(drain(&spool, id, dial, Duration::from_secs(10))).unwrap();
    assert_eq!((again.events, again.answers, again.left), (0, 0, 0), "nothing is told twice");
}

#[test]
fn killed_at_any_point_nothing_that_was_spooled_is_lost() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for delay in [20, 60, 120, 200, 320] {
        let mut sandbox = Sandbox::with(|fake| drop(fake.queue("loop 400")));
        until("the worker", || sandbox.path("spool").join("boot").exists());
        std::thread::sleep(Duration::from_millis(delay));
        sandbox.child.kill().unwrap();
        sandbox.wait();
        let (spool, dial) = (sandbox.path("spool"), Arc::new(Dialer::new(&sandbox.fake.beside()).unwrap()));
        let drained = runtime.block_on(drain(&spool, SANDBOX.parse().unwrap(), dial, Duration::from_secs(20))).unwrap();
        assert_eq!(drained.left, 0);
        let keys: Vec<_> = sandbox.fake.events().iter().map(|event| event["key"].as_i64().unwrap()).collect();
        assert_eq!(keys, (1..=i64::try_from(keys.len()).unwrap()).collect::<Vec<_>>(), "each once and in order");
        let left = std::fs::read_dir(&spool).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
        assert_eq!(left.filter(|name| name.ends_with(".log") && name != "handed.log").count(), 0);
    }
}
