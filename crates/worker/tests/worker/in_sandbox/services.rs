//! Services: real processes that the worker starts before the agent, restarts and ends.

use super::WorkerSandbox;
use atoll_protocol::exec::{ConnectionKind, QUIESCED_REPLY};
use atoll_test_wait::wait_until;
use serde_json::{Value, json};
use std::io::Read;
use std::net::TcpListener;

fn start_with_services(prompt: &str, services: Value) -> WorkerSandbox {
    WorkerSandbox::start_with(|fake| {
        fake.with_state(|state| drop(state.start_fields.insert("settings".to_owned(), json!({"services": services}))));
        if !prompt.is_empty() {
            fake.queue_message(prompt);
        }
    })
}

/// A port that is free at the moment: the tests share this machine's loopback interface.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn positions(sandbox: &WorkerSandbox, event: &str) -> Vec<usize> {
    let types = sandbox.server.event_types();
    types.iter().enumerate().filter(|(_, it)| *it == event).map(|(index, _)| index).collect()
}

#[test]
fn the_prompt_waits_until_all_services_are_ready() {
    let port = free_port();
    let listen = format!("sleep 0.5; exec python3 -u -m http.server --bind 127.0.0.1 {port}");
    let ready = "echo checking; test -e warm";
    let sandbox = start_with_services(
        &format!("run cat warm\nrun python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))'"),
        json!([
            {"name": "web", "command": listen, "ready": {"port": port}},
            {"name": "cache", "command": ["sh", "-c", "sleep 0.3; echo $MORE$FROM_SETTINGS > warm; sleep 1000"],
             "directory": ".", "env": {"MORE": "warm"}, "ready": {"command": ready}},
            {"name": "plain", "command": "sleep 1000"},
        ]),
    );
    sandbox.wait_for_events("agent.completed", 1);
    assert_eq!((sandbox.count_events("service.started"), sandbox.count_events("service.ready")), (3, 3));
    let last_ready = *positions(&sandbox, "service.ready").last().unwrap();
    assert!(last_ready < positions(&sandbox, "agent.started")[0], "{:?}", sandbox.server.event_types());
    let events = sandbox.server.events();
    let of_web = |kind: &str| {
        events.iter().find(|event| event["type"] == kind && event["data"]["name"] == "web").unwrap()["data"].clone()
    };
    assert_eq!(of_web("service.started"), json!({"name": "web", "port": port, "restarts": 0}));
    assert!(of_web("service.ready")["seconds"].as_f64().unwrap() >= 0.5);
    let outputs: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "agent.tool_completed").map(|event| &event["data"]).collect();
    assert!(outputs.iter().all(|data| data["is_error"] == false), "{outputs:#?}");
    assert!(outputs[0]["output"].as_str().unwrap().contains("warm"), "{outputs:#?}");
    assert_eq!(sandbox.count_events("service.failed"), 0);
}

#[test]
fn a_service_that_does_not_become_ready_fails_the_run() {
    let port = free_port();
    for (service, reason, detail) in [
        (json!({"name": "db", "command": "echo no data directory >&2; exit 3"}), "not_started", "exited with code 3"),
        (
            json!({"name": "db", "command": "echo waiting; echo no data directory; sleep 1000",
                   "ready": {"port": port}, "ready_timeout_s": 1}),
            "not_ready",
            "accepted no connection on port",
        ),
        (json!({"name": "db", "command": ["no-such-program"]}), "not_started", "no such program"),
        (
            json!({"name": "db", "command": "echo no data directory; sleep 1000", "ready": {"command": "exit 1"},
                   "ready_timeout_s": 1}),
            "not_ready",
            "its ready check `exit 1` did not pass within 1 s",
        ),
    ] {
        let has_output = service["command"].is_string();
        let mut sandbox = start_with_services("say never", json!([service, {"name": "ok", "command": "sleep 1000"}]));
        sandbox.wait_for_events("agent.failed", 1);
        let failed = sandbox.first_event_data("service.failed");
        assert_eq!((&failed["name"], &failed["reason"]), (&json!("db"), &json!(reason)), "{failed}");
        assert!(failed["detail"].as_str().unwrap().contains(detail), "{failed}");
        let of_run = sandbox.first_event_data("agent.failed");
        assert_eq!(of_run["reason"], "service_failed");
        let error = of_run["error"].as_str().unwrap();
        assert!(error.contains("service db: ") && error.contains(detail), "{error}");
        if has_output {
            assert!(failed["tail"].as_str().unwrap().ends_with("no data directory"), "{failed}");
            assert!(error.contains("its output ends with: no data directory"), "{error}");
        }
        assert_eq!(sandbox.count_events("agent.started"), 0);
        wait_until("the end of the services", || !sandbox.run_shell("ps -eo args").contains("sleep 1000"));
        sandbox.server.with_state(|state| state.sandbox_state = "failed");
        assert!(sandbox.wait_for_exit().success(), "{}", sandbox.worker_log());
        assert_eq!(sandbox.count_events("agent.failed"), 1);
    }
}

#[test]
fn a_service_that_dies_is_restarted() {
    let sandbox = start_with_services("", json!([{"name": "db", "command": "echo up; echo $$ > pid; sleep 1000; :"}]));
    sandbox.wait_for_events("agent.waiting", 1);
    assert!(positions(&sandbox, "service.ready")[0] < positions(&sandbox, "agent.waiting")[0]);
    for restarts in 1..=2 {
        sandbox.run_shell("kill -9 $(cat pid)");
        sandbox.wait_for_events("service.ready", 1 + restarts);
    }
    let exited = sandbox.first_event_data("service.exited");
    assert_eq!(
        exited,
        json!({"name": "db", "exit": {"kind": "signalled", "signal": 9}, "detail": "was killed by signal 9",
               "tail": "up", "restart_s": 0.25})
    );
    let events = sandbox.server.events();
    let restarts: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "service.started")
        .map(|event| &event["data"]["restarts"])
        .collect();
    assert_eq!(restarts, [0, 1, 2]);
    assert_eq!(sandbox.run_shell("ps -eo args | grep -c '^sleep 1000'"), "1\n", "the old process group is gone");
    sandbox.server.queue_message("say still here");
    sandbox.wait_for_events("agent.completed", 1);
}

#[test]
fn quiescing_ends_services_and_starts_them_again() {
    let command = "trap 'echo clean > end; exit 0' TERM; echo $$ > pid; while :; do sleep 0.05; done";
    let sandbox = start_with_services("say first", json!([{"name": "db", "command": command}]));
    sandbox.wait_for_events("agent.waiting", 1);
    let mut quiescing = sandbox.connect_for(ConnectionKind::Quiesce);
    let mut reply = [0];
    quiescing.read_exact(&mut reply).unwrap();
    assert_eq!(reply, [QUIESCED_REPLY]);
    assert_eq!(std::fs::read_to_string(sandbox.workspace_path("end")).unwrap(), "clean\n", "it got SIGTERM");
    let before = std::fs::read_to_string(sandbox.workspace_path("pid")).unwrap();
    sandbox.wait_for_events("service.stopped", 1);
    drop(quiescing);
    sandbox.wait_for_events("service.ready", 2);
    assert_ne!(std::fs::read_to_string(sandbox.workspace_path("pid")).unwrap(), before);
    sandbox.server.queue_message("say second");
    sandbox.wait_for_events("agent.completed", 2);
    assert_eq!((sandbox.count_events("service.exited"), sandbox.count_events("service.failed")), (0, 0));
}
