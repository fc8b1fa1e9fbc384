//! The two flows, request by request, on both databases.

use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use atoll_tests::worker::{HandWorker, event};
use serde_json::{Value, json};
use std::time::Duration;

on_both_databases!(
    a_life_from_start_to_end,
    events_are_stored_once_and_in_order,
    a_newer_worker_takes_over,
    bad_events_are_replaced_not_lost,
    nobody_waits_for_a_worker_that_has_left,
    who_names_one_limit_keeps_the_project_s_others,
);

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

async fn a_life_from_start_to_end(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({ "prompt": "say hello", "agent": "mine" })).await;
    let mut worker = HandWorker::new(&admin, &sandbox);

    let first = worker.heartbeat("starting").await.expect(200);
    assert_eq!(first["state"], "running");
    let prompt = first["start"]["prompt"].clone();
    assert_eq!(prompt["content"], "say hello");
    // The answer may get lost: the same prompt is there again, under the same lease.
    let again = worker.heartbeat("starting").await.expect(200);
    assert_eq!(again["start"]["prompt"], prompt);

    worker.ack(&prompt, "new_turn", Some(1)).await.expect(200);
    worker.say(&["agent.started", "agent.message"]).await;
    let running = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200);
    assert_eq!((running["state"].as_str(), running["activity"].as_str()), (Some("running"), Some("working")));

    worker.say(&["agent.completed"]).await;
    let ending = worker.heartbeat("waiting_message").await.expect(200);
    assert_eq!(ending["state"], "completing");
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    admin.post(&path, json!({ "content": "too late" })).await.refused(409, "sandbox_ending");
    worker.say(&["agent.shutdown"]).await;

    let ended = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200);
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
    assert_eq!(types(&events), expected);
    let seqs: Vec<i64> = events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, (1..=12).collect::<Vec<i64>>());
    server.stop().await;
}

async fn events_are_stored_once_and_in_order(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let worker = HandWorker::new(&admin, &sandbox);
    let batch = |range: std::ops::RangeInclusive<i64>| -> Vec<Value> {
        range.map(|key| event(key, "agent.message", json!({ "n": key }))).collect()
    };
    let first = worker.batch(batch(1..=3)).await.expect(200);
    assert_eq!((first["stored"].as_i64(), first["duplicates"].as_i64()), (Some(3), Some(0)));
    let overlap = worker.batch(batch(2..=5)).await.expect(200);
    assert_eq!((overlap["stored"].as_i64(), overlap["duplicates"].as_i64()), (Some(2), Some(2)));
    let gap = worker.batch(batch(7..=8)).await.refused(409, "key_gap");
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

async fn a_newer_worker_takes_over(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let mut old = HandWorker { boot: Some(1), ..HandWorker::new(&admin, &sandbox) };
    old.heartbeat("starting").await.expect(200);
    old.say(&["agent.message"]).await;
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    admin.post(&path, json!({ "content": "hello" })).await.expect(201);
    let held = old.lease(5).await;
    assert_eq!(held.len(), 1);

    let new = old.restarted();
    new.heartbeat("starting").await.expect(200);
    old.heartbeat("working").await.refused(409, "stream_fenced");
    old.batch(vec![event(2, "agent.message", json!({}))]).await.refused(409, "stream_fenced");
    let late = HandWorker { boot: Some(1), ..old.restarted() };
    late.heartbeat("starting").await.refused(409, "stream_fenced");

    // What the old one left is sent by the new one; what it held is free again, under the same id.
    let rest = json!({ "stream": old.stream, "by": new.stream, "boot": new.boot,
        "events": [event(2, "agent.message", json!({ "left": true }))] });
    let stored = new.actor.post(&format!("/sandboxes/{}/events", sandbox.id), rest).await.expect(200);
    assert_eq!(stored["stored"], 1);
    let messages = admin.get(&path).await.expect(200);
    assert_eq!(messages["items"][0]["id"], held[0]["id"]);
    server.stop().await;
}

async fn nobody_waits_for_a_worker_that_has_left(kind: Kind) {
    let server = TestServer::start_with(kind, |options| options.policy.flush_grace = Duration::from_secs(3600)).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let mut worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("working").await.expect(200);
    worker.say(&["agent.message", "agent.shutdown"]).await;
    let left = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200);
    assert_eq!((left["state"].as_str(), left["activity"].as_str()), (Some("running"), Some("unreachable")));
    let stopped = admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({})).await.expect(200);
    assert_eq!((stopped["state"].as_str(), stopped["outcome"].as_str()), (Some("completed"), Some("cancelled")));

    // One that may still have something to say is waited for, and says so by going.
    let sandbox = admin.external(json!({})).await;
    let mut worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("working").await.expect(200);
    let stopped = admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({})).await.expect(200);
    assert_eq!(stopped["state"], "completing");
    worker.say(&["agent.message", "agent.shutdown"]).await;
    let ended = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200);
    assert_eq!(ended["state"], "completed");
    server.stop().await;
}

async fn bad_events_are_replaced_not_lost(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let worker = HandWorker::new(&admin, &sandbox);
    let mut deep = json!(1);
    for _ in 0..40 {
        deep = json!([deep]);
    }
    let secret = json!({ "env": "X=known-secret-value-123" });
    let events = vec![
        event(1, "agent.message", json!({ "ok": true })),
        event(2, "Agent Message", json!({})),
        event(3, "agent.message", json!({ "deep": deep })),
        event(4, "agent.message", json!({ "big": "x".repeat(101 * 1024) })),
        json!({ "key": 5, "type": "agent.message", "source": "guardian", "at": "2026-01-01T00:00:00Z", "data": {} }),
        json!({ "key": 6 }),
        event(7, "agent.message", secret),
    ];
    let answer = worker.batch(events).await.expect(200);
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

async fn who_names_one_limit_keeps_the_project_s_others(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let defaults = json!({ "limits": { "cost_usd": 5.0, "turns": 9 }, "resources": { "cpu": 1.5, "pids": 77 } });
    let project = admin.post("/projects", json!({ "name": "careful", "defaults": defaults })).await.expect(201);
    let body = json!({ "project_id": project["id"], "limits": { "turns": 20 }, "resources": { "memory_gb": 3.0 } });
    let sandbox = admin.external(body).await;
    let settings = &admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200)["settings"];
    assert_eq!(settings["limits"], json!({ "cost_usd": 5.0, "turns": 20 }));
    let resources = &settings["resources"];
    assert_eq!(
        (&resources["memory_gb"], &resources["cpu"], &resources["pids"]),
        (&json!(3.0), &json!(1.5), &json!(77))
    );
    server.stop().await;
}
