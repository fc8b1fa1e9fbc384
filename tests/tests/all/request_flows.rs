//! The main request flows of a sandbox and its worker, on both databases.

use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};
use std::time::Duration;

on_both_databases!(
    a_sandbox_runs_from_creation_to_completion,
    events_are_stored_once_and_in_order,
    a_newer_worker_fences_the_older_one,
    invalid_events_are_replaced_not_lost,
    a_stop_does_not_wait_for_a_worker_that_shut_down,
    a_heartbeat_in_a_batch_shows_a_live_worker,
    a_request_overrides_single_limits_of_the_project,
);

fn event_types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

async fn a_sandbox_runs_from_creation_to_completion(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({ "prompt": "say hello", "agent": "mine" })).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);

    let first = worker.send_heartbeat("starting").await.expect_status(200);
    assert_eq!(first["state"], "running");
    let prompt = first["start"]["prompt"].clone();
    assert_eq!(prompt["content"], "say hello");
    // A worker that lost the response gets the same prompt again, under the same lease.
    let again = worker.send_heartbeat("starting").await.expect_status(200);
    assert_eq!(again["start"]["prompt"], prompt);

    worker.ack_message(&prompt, "new_turn", Some(1)).await.expect_status(200);
    worker.send_events(&["agent.started", "agent.message"]).await;
    let running = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    assert_eq!((running["state"].as_str(), running["activity"].as_str()), (Some("running"), Some("working")));

    worker.send_events(&["agent.completed"]).await;
    let ending = worker.send_heartbeat("waiting_message").await.expect_status(200);
    assert_eq!(ending["state"], "completing");
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    admin.post(&path, json!({ "content": "too late" })).await.expect_problem(409, "sandbox_ending");
    worker.send_events(&["agent.shutdown"]).await;

    let ended = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    assert_eq!((ended["state"].as_str(), ended["outcome"].as_str()), (Some("completed"), Some("succeeded")));
    let events = admin.all_events(&sandbox.id).await;
    let expected = [
        "session.opened",
        "sandbox.pending",
        "message.queued",
        "sandbox.creating",
        "sandbox.running",
        "message.acknowledged",
        "agent.started",
        "agent.message",
        "agent.completed",
        "sandbox.completing",
        "agent.shutdown",
        "sandbox.completed",
    ];
    assert_eq!(event_types(&events), expected);
    let seqs: Vec<i64> = events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, (1..=12).collect::<Vec<i64>>());
    server.stop().await;
}

async fn events_are_stored_once_and_in_order(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    let batch = |range: std::ops::RangeInclusive<i64>| -> Vec<Value> {
        range.map(|key| build_event(key, "agent.message", json!({ "n": key }))).collect()
    };
    let first = worker.send_batch(batch(1..=3)).await.expect_status(200);
    assert_eq!((first["stored"].as_i64(), first["duplicates"].as_i64()), (Some(3), Some(0)));
    let overlap = worker.send_batch(batch(2..=5)).await.expect_status(200);
    assert_eq!((overlap["stored"].as_i64(), overlap["duplicates"].as_i64()), (Some(2), Some(2)));
    let gap = worker.send_batch(batch(7..=8)).await.expect_problem(409, "key_gap");
    assert_eq!(gap["last_key"], 5);
    let stored = admin.all_events(&sandbox.id).await;
    let numbers: Vec<i64> = stored
        .iter()
        .filter(|event| event["type"] == "agent.message")
        .map(|event| event["data"]["n"].as_i64().unwrap())
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    server.stop().await;
}

async fn a_newer_worker_fences_the_older_one(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut old = ManualWorker { boot: Some(1), ..ManualWorker::new(&admin, &sandbox) };
    old.send_heartbeat("starting").await.expect_status(200);
    old.send_events(&["agent.message"]).await;
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    admin.post(&path, json!({ "content": "hello" })).await.expect_status(201);
    let leased = old.lease_messages(5).await;
    assert_eq!(leased.len(), 1);

    let new = old.with_new_stream();
    new.send_heartbeat("starting").await.expect_status(200);
    old.send_heartbeat("working").await.expect_problem(409, "stream_fenced");
    old.send_batch(vec![build_event(2, "agent.message", json!({}))]).await.expect_problem(409, "stream_fenced");
    let late = ManualWorker { boot: Some(1), ..old.with_new_stream() };
    late.send_heartbeat("starting").await.expect_problem(409, "stream_fenced");

    // The new worker sends the old one's remaining events, and the leased message is queued again.
    let rest = json!({ "stream": old.stream, "by": new.stream, "boot": new.boot,
        "events": [build_event(2, "agent.message", json!({ "left": true }))] });
    let stored = new.actor.post(&format!("/sandboxes/{}/events", sandbox.id), rest).await.expect_status(200);
    assert_eq!(stored["stored"], 1);
    let messages = admin.get(&path).await.expect_status(200);
    assert_eq!(messages["items"][0]["id"], leased[0]["id"]);
    server.stop().await;
}

async fn a_stop_does_not_wait_for_a_worker_that_shut_down(kind: DatabaseKind) {
    let server =
        TestServer::start_with(kind, |options| options.config.sandbox.flush_grace = Duration::from_secs(3600)).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    worker.send_events(&["agent.message", "agent.shutdown"]).await;
    let row = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    assert_eq!((row["state"].as_str(), row["activity"].as_str()), (Some("running"), Some("unreachable")));
    let stopped = admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({})).await.expect_status(200);
    assert_eq!((stopped["state"].as_str(), stopped["outcome"].as_str()), (Some("completed"), Some("cancelled")));

    // A stop waits for a live worker until the worker shuts down.
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    let stopped = admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({})).await.expect_status(200);
    assert_eq!(stopped["state"], "completing");
    worker.send_events(&["agent.message", "agent.shutdown"]).await;
    let ended = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    assert_eq!(ended["state"], "completed");
    server.stop().await;
}

async fn a_heartbeat_in_a_batch_shows_a_live_worker(kind: DatabaseKind) {
    let server =
        TestServer::start_with(kind, |options| options.config.sandbox.flush_grace = Duration::from_secs(3600)).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    worker.send_events(&["agent.message", "agent.heartbeat", "agent.message"]).await;
    let row = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    assert_eq!(row["state"], "running");
    let events = admin.all_events(&sandbox.id).await;
    assert_eq!(event_types(&events)[event_types(&events).len() - 2..], ["sandbox.running", "agent.message"]);

    // The worker is alive again after its predecessor shut down, so a stop waits for it.
    worker.send_events(&["agent.shutdown", "agent.heartbeat"]).await;
    let stopped = admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({})).await.expect_status(200);
    assert_eq!(stopped["state"], "completing");
    server.stop().await;
}

async fn invalid_events_are_replaced_not_lost(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    let mut deep = json!(1);
    for _ in 0..40 {
        deep = json!([deep]);
    }
    let secret = json!({ "env": "X=known-secret-value-123" });
    let events = vec![
        build_event(1, "agent.message", json!({ "ok": true })),
        build_event(2, "Agent Message", json!({})),
        build_event(3, "agent.message", json!({ "deep": deep })),
        build_event(4, "agent.message", json!({ "big": "x".repeat(101 * 1024) })),
        json!({ "key": 5, "type": "agent.message", "source": "guardian", "at": "2026-01-01T00:00:00Z", "data": {} }),
        json!({ "key": 6 }),
        build_event(7, "agent.message", secret),
    ];
    let answer = worker.send_batch(events).await.expect_status(200);
    assert_eq!((answer["stored"].as_i64(), answer["last_key"].as_i64()), (Some(2), Some(7)));
    let keys: Vec<i64> = answer["rejected"].as_array().unwrap().iter().map(|r| r["key"].as_i64().unwrap()).collect();
    assert_eq!(keys, [2, 3, 4, 5, 6]);
    let events = admin.all_events(&sandbox.id).await;
    let rejected: Vec<&Value> = events.iter().filter(|event| event["type"] == "worker.rejected").collect();
    assert_eq!(rejected.len(), 5);
    let all = serde_json::to_string(&events).unwrap();
    assert!(!all.contains("known-secret-value-123") && all.contains("[redacted]"));
    server.stop().await;
}

async fn a_request_overrides_single_limits_of_the_project(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let defaults = json!({ "limits": { "cost_usd": 5.0, "turns": 9 }, "resources": { "cpu": 1.5, "pids": 77 } });
    let project = admin.post("/projects", json!({ "name": "careful", "defaults": defaults })).await.expect_status(201);
    let body = json!({ "project_id": project["id"], "limits": { "turns": 20 }, "resources": { "memory_gb": 3.0 } });
    let sandbox = admin.create_external_sandbox(body).await;
    let settings = &admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200)["settings"];
    assert_eq!(settings["limits"], json!({ "cost_usd": 5.0, "turns": 20 }));
    let resources = &settings["resources"];
    assert_eq!(
        (&resources["memory_gb"], &resources["cpu"], &resources["pids"]),
        (&json!(3.0), &json!(1.5), &json!(77))
    );
    server.stop().await;
}
