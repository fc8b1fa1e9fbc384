//! Exits of the agent, the spawner and the worker.

use super::WorkerSandbox;
use crate::SANDBOX_ID;
use atoll_protocol::exec::ExecExit;
use atoll_spool::drain::drain_spool;
use atoll_test_wait::wait_until;
use rustix::process::Signal;
use serde_json::json;
use std::time::Duration;

#[test]
fn classifies_every_agent_exit() {
    for (prompt, reason, error, tail) in [
        ("say x\ncrash", "agent_crashed", "signal 6", "told to crash"),
        ("say x\nfail no key", "agent_failed", "no key", ""),
        ("say x\nrun kill -9 $PPID", "agent_crashed", "signal 9", ""),
    ] {
        let mut sandbox = WorkerSandbox::start_with(|fake| drop(fake.queue_message(prompt)));
        sandbox.wait_for_events("agent.failed", 1);
        let failed = sandbox.first_event_data("agent.failed");
        assert_eq!((&failed["reason"], &failed["turn"]), (&json!(reason), &json!(1)), "{failed}");
        assert!(failed["error"].as_str().unwrap().contains(error), "{failed}");
        assert!(failed["stderr_tail"].as_str().unwrap().contains(tail), "{failed}");
        sandbox.server.with_state(|state| state.sandbox_state = "failed");
        assert!(sandbox.wait_for_exit().success(), "{}", sandbox.worker_log());
        assert_eq!(sandbox.first_event_data("agent.shutdown"), json!({"reason": "sandbox_failed"}));
    }
}

#[test]
fn reports_an_unknown_agent() {
    let mut sandbox = WorkerSandbox::start_with(|fake| {
        fake.with_state(|state| state.agent = Some("no-such-agent"));
        fake.queue_message("hello");
    });
    sandbox.wait_for_events("agent.failed", 1);
    let failed = sandbox.first_event_data("agent.failed");
    assert_eq!(failed["reason"], "agent_not_started");
    assert!(failed["error"].as_str().unwrap().contains("unknown agent `no-such-agent`"));
    assert_eq!(sandbox.run_shell("echo still here"), "still here\n");
    assert!(sandbox.complete_and_wait().success());
    let nacks = sandbox.server.message_answers("nack");
    assert_eq!(
        (&nacks[0]["handed"], &nacks[0]["retry"]),
        (&json!(false), &json!(true)),
        "the worker did not return the message"
    );
}

#[test]
fn replaces_a_killed_spawner() {
    let sandbox = WorkerSandbox::start_with(|fake| drop(fake.queue_message("say begun\nrun sleep 100")));
    sandbox.wait_for_events("agent.tool_use", 1);
    let mut running = sandbox.start_shell("sleep 50");
    let killing = sandbox.start_shell("sleep 0.2; kill -9 $PPID; sleep 50").wait_for_end();
    assert_eq!((killing, running.wait_for_end()), (ExecExit::Unknown, ExecExit::Unknown));
    sandbox.wait_for_events("agent.failed", 1);
    let failed = sandbox.first_event_data("agent.failed");
    assert_eq!((&failed["reason"], &failed["exit"]), (&json!("agent_crashed"), &json!({"kind": "unknown"})));
    assert_eq!(sandbox.run_shell("echo again"), "again\n");
    // The old spawner's processes are gone and reaped, except the one that the agent started in its own group.
    wait_until("the end of the old processes", || {
        let left = sandbox.run_shell("cat /proc/[0-9]*/status 2>/dev/null; true");
        !left.contains("zombie") && left.matches("Name:\tsleep").count() == 1
    });
}

#[test]
fn orphans_are_reaped() {
    let sandbox = WorkerSandbox::start();
    sandbox.run_shell("for n in 1 2 3 4 5; do (sleep 0.1 & ) ; done");
    wait_until("no zombie", || {
        let left = sandbox.run_shell("cat /proc/[0-9]*/status 2>/dev/null; true");
        !left.contains("zombie") && !left.contains("Name:\tsleep")
    });
}

#[test]
fn ignores_signals_from_the_sandbox() {
    let mut sandbox =
        WorkerSandbox::start_with(|fake| drop(fake.queue_message("run sleep 1; echo finished\nsay never\nwait 60")));
    sandbox.wait_for_events("agent.tool_use", 1);
    sandbox.run_shell("kill -TERM 1; kill -INT 1; sleep 0.3");
    assert!(sandbox.child.try_wait().unwrap().is_none(), "a signal from the sandbox ended the worker");
    sandbox.send_signal(Signal::TERM);
    assert!(sandbox.wait_for_exit().success(), "{}", sandbox.worker_log());
    let completed = sandbox.first_event_data("agent.tool_completed");
    assert_eq!(completed["output"], "finished\n", "the worker did not let the running tool finish");
    assert_eq!(sandbox.first_event_data("agent.shutdown"), json!({"reason": "terminated"}));
    assert_eq!((sandbox.count_events("agent.completed"), sandbox.count_events("agent.failed")), (0, 0));
}

#[test]
fn a_second_signal_ends_the_worker_at_once() {
    let mut sandbox = WorkerSandbox::start_with(|fake| drop(fake.queue_message("run sleep 1000")));
    sandbox.wait_for_events("agent.tool_use", 1);
    sandbox.send_signal(Signal::TERM);
    sandbox.send_signal(Signal::INT);
    assert!(sandbox.wait_for_exit().success(), "{}", sandbox.worker_log());
    assert_eq!(sandbox.first_event_data("agent.shutdown"), json!({"reason": "terminated"}));
}

#[test]
fn drains_the_spool_of_a_killed_worker() {
    let mut sandbox = WorkerSandbox::start_with(|fake| {
        fake.with_state(|state| (state.event_failures_left, state.ack_failures_left) = (u32::MAX, u32::MAX));
        fake.queue_message("say one\nsay two\nwait 100");
    });
    wait_until("a failed answer", || sandbox.server.with_state(|state| state.failed_acks > 0));
    let spool = sandbox.path("spool");
    wait_until("the events on disk", || {
        let text =
            std::fs::read_dir(&spool).unwrap().flatten().map(|entry| std::fs::read(entry.path()).unwrap_or_default());
        text.flatten().collect::<Vec<_>>().windows(3).any(|bytes| bytes == b"two")
    });
    sandbox.child.kill().unwrap();
    sandbox.wait_for_exit();
    assert!(sandbox.server.events().is_empty());

    sandbox.server.with_state(|state| (state.event_failures_left, state.ack_failures_left) = (0, 0));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let id = SANDBOX_ID.parse().unwrap();
    let drained = runtime.block_on(drain_spool(&spool, id, &sandbox.server, Duration::from_secs(10))).unwrap();
    assert_eq!(sandbox.server.event_types(), ["agent.started", "agent.message", "agent.message"]);
    assert_eq!((drained.events, drained.acknowledgements, drained.events_left), (3, 1, 0));
    assert_eq!(sandbox.server.message_answers("ack").len(), 1);
    let again = runtime.block_on(drain_spool(&spool, id, &sandbox.server, Duration::from_secs(10))).unwrap();
    assert_eq!(
        (again.events, again.acknowledgements, again.events_left),
        (0, 0, 0),
        "the second drain sent something again"
    );
}

#[test]
fn a_kill_at_any_point_loses_no_spooled_event() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for delay in [20, 60, 120, 200, 320] {
        let mut sandbox = WorkerSandbox::start_with(|fake| drop(fake.queue_message("loop 400")));
        wait_until("the worker", || sandbox.path("spool").join("boot").exists());
        std::thread::sleep(Duration::from_millis(delay));
        sandbox.child.kill().unwrap();
        sandbox.wait_for_exit();
        let (spool, id) = (sandbox.path("spool"), SANDBOX_ID.parse().unwrap());
        let drained = runtime.block_on(drain_spool(&spool, id, &sandbox.server, Duration::from_secs(20))).unwrap();
        assert_eq!(drained.events_left, 0);
        let keys: Vec<_> = sandbox.server.events().iter().map(|event| event["key"].as_i64().unwrap()).collect();
        assert_eq!(
            keys,
            (1..=i64::try_from(keys.len()).unwrap()).collect::<Vec<_>>(),
            "events are missing or out of order"
        );
        let left = std::fs::read_dir(&spool).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
        assert_eq!(left.filter(|name| name.ends_with(".log") && name != "handed.log").count(), 0);
    }
}
