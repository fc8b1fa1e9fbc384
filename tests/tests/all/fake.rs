//! The `fake` provider goes the same way as the real ones: a life without a worker to start by hand.

use atoll_providers::fake::{FakeOptions, Fault, FaultAt, FaultKind};
use atoll_tests::actor::Actor;
use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::scale::{scaled, seed};
use atoll_tests::server::TestServer;
use serde_json::{Value, json};
use std::time::Duration;

on_both_databases!(
    a_prompt_is_worked_off,
    a_message_reaches_a_working_agent,
    every_end_says_what_it_was,
    seeded_faults_lose_nothing,
    a_lost_sandbox_says_so_after_a_restart,
    the_time_of_a_paused_sandbox_stands,
);

const PATIENCE: Duration = Duration::from_secs(30);

async fn make(admin: &Actor, settings: Value) -> String {
    let mut body = json!({ "provider": "fake", "agent": "demo" });
    body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    admin.post("/sandboxes", body).await.expect(201)["id"].as_str().unwrap().to_owned()
}

/// Waits until the sandbox is as `wanted` says.
async fn until(admin: &Actor, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let row = admin.get(&format!("/sandboxes/{id}")).await.expect(200);
        if wanted(&row) {
            return row;
        }
        assert!(tokio::time::Instant::now() < deadline, "it did not come to that: {row}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn has_ended(row: &Value) -> bool {
    row["state"] == "completed" || row["state"] == "failed"
}

async fn a_prompt_is_worked_off(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let id = make(&admin, json!({ "prompt": "say hello\nedit a.txt one\nrun cat a.txt" })).await;
    let row = until(&admin, &id, has_ended).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");
    let events = admin.all_events(&id).await;
    let of = |name: &str| events.iter().filter(|event| event["type"] == name).collect::<Vec<_>>();
    assert_eq!(of("agent.message")[0]["data"]["text"], "hello");
    assert_eq!(of("agent.file_edited").len(), 1);
    assert_eq!(of("message.acknowledged").len(), 1);
    assert!(of("agent.started").iter().all(|event| event["turn"] == 1));
    // The provider's own sandbox goes at once.
    until(&admin, &id, |row| row["provider_id"].is_null()).await;
    server.stop().await;
}

async fn the_time_of_a_paused_sandbox_stands(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let id = make(&admin, json!({ "prompt": "say one\nwait 600", "timeout_s": 6 })).await;
    until(&admin, &id, |row| row["activity"] == "working").await;
    admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(200);
    // Longer than all of its time.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let row = admin.get(&format!("/sandboxes/{id}")).await.expect(200);
    assert_eq!((row["state"].as_str(), row["activity"].as_str()), (Some("running"), Some("paused")), "{row}");
    admin.post(&format!("/sandboxes/{id}/resume"), json!({})).await.expect(200);
    let row = until(&admin, &id, has_ended).await;
    assert_eq!(row["reason"]["code"], "timeout", "{row}");
    server.stop().await;
}

async fn a_message_reaches_a_working_agent(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let id = make(&admin, json!({ "prompt": "say one\nwait 60\nsay two" })).await;
    until(&admin, &id, |row| row["activity"] == "working" && row["turn"] == 1).await;
    let path = format!("/sandboxes/{id}/messages");
    admin.post(&path, json!({ "content": "say steered" })).await.expect(201);
    let steered = |messages: &Value| messages["items"][1]["state"] == "acknowledged";
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let shown = loop {
        let shown = admin.get(&path).await.expect(200);
        if steered(&shown) {
            break shown;
        }
        assert!(tokio::time::Instant::now() < deadline, "{shown}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((shown["items"][1]["how"].as_str(), shown["items"][1]["turn"].as_i64()), (Some("injected"), Some(1)));
    admin.post(&path, json!({ "content": "enough", "type": "interrupt" })).await.expect(201);
    until(&admin, &id, |row| row["activity"] == "waiting_message").await;
    let events = admin.all_events(&id).await;
    assert!(events.iter().any(|event| event["type"] == "agent.interrupted"));
    assert!(!events.iter().any(|event| event["data"]["text"] == "two"), "it was interrupted before");
    admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect(200);
    let row = until(&admin, &id, has_ended).await;
    assert_eq!(row["outcome"], "cancelled");
    server.stop().await;
}

async fn every_end_says_what_it_was(kind: Kind) {
    let server = TestServer::start_with(kind, |options| {
        options.policy.heartbeat = Duration::from_secs(1);
        options.policy.timeout_when_done = Some(Duration::from_secs(4));
    })
    .await;
    let admin = server.admin();
    for (prompt, reason) in
        [("fail no luck", "agent_failed"), ("oom", "out_of_memory"), ("hang", "timeout"), ("crash", "timeout")]
    {
        let id = make(&admin, json!({ "prompt": format!("say before\n{prompt}") })).await;
        let row = until(&admin, &id, has_ended).await;
        assert_eq!((row["state"].as_str(), row["reason"]["code"].as_str()), (Some("failed"), Some(reason)), "{row}");
        let events = admin.all_events(&id).await;
        assert!(events.iter().any(|event| event["data"]["text"] == "before"), "what was done until then is kept");
    }
    let id = make(&admin, json!({ "prompt": "crash", "timeout_s": 600 })).await;
    until(&admin, &id, |row| row["activity"] == "unreachable").await;
    let taken = admin.post(&format!("/sandboxes/{id}/results"), json!({})).await.expect(200);
    assert_eq!(taken["taken"], json!([]));
    let removed = admin.delete(&format!("/sandboxes/{id}")).await.expect(200);
    assert_eq!((removed["state"].as_str(), removed["outcome"].as_str()), (Some("completed"), Some("cancelled")));
    server.stop().await;
}

async fn seeded_faults_lose_nothing(kind: Kind) {
    let faults = [
        (FaultAt::Create, FaultKind::Fail, 0.2),
        (FaultAt::Heartbeat, FaultKind::Drop, 0.2),
        (FaultAt::Event, FaultKind::Duplicate, 0.2),
        (FaultAt::Event, FaultKind::Drop, 0.2),
        (FaultAt::Ack, FaultKind::Duplicate, 0.3),
        (FaultAt::Destroy, FaultKind::Fail, 0.3),
    ];
    let seed = seed("fake faults");
    let server = TestServer::start_with(kind, |options| {
        let faults = faults.map(|(at, kind, rate)| Fault { at, kind, rate });
        options.fake = FakeOptions { seed, faults: faults.to_vec() };
        options.policy.heartbeat = Duration::from_secs(1);
    })
    .await;
    let admin = server.admin();
    let mut ids = Vec::new();
    for _ in 0..scaled(100) {
        ids.push(make(&admin, json!({ "prompt": "say 1\nsay 2\nsay 3\nsay 4" })).await);
    }
    for id in ids {
        let row = until(&admin, &id, has_ended).await;
        let events = admin.all_events(&id).await;
        let seqs: Vec<i64> = events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
        assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>());
        if row["state"] == "failed" {
            assert_eq!(row["reason"]["code"], "provider_unreachable", "{row}");
            continue;
        }
        let said: Vec<&str> = events
            .iter()
            .filter(|event| event["type"] == "agent.message")
            .map(|event| event["data"]["text"].as_str().unwrap())
            .collect();
        assert_eq!(said, ["1", "2", "3", "4"], "once each, in order");
        assert_eq!(events.iter().filter(|event| event["type"] == "message.acknowledged").count(), 1);
    }
    server.stop().await;
}

async fn a_lost_sandbox_says_so_after_a_restart(kind: Kind) {
    let mut server = TestServer::start(kind).await;
    let admin = server.admin();
    let id = make(&admin, json!({ "prompt": "wait 600" })).await;
    // In its turn: the prompt has reached the agent, and won't be said again.
    until(&admin, &id, |row| row["turn"] == 1 && !row["provider_id"].is_null()).await;
    server.restart().await;
    let row = until(&server.admin(), &id, has_ended).await;
    assert_eq!(
        (row["state"].as_str(), row["reason"]["code"].as_str()),
        (Some("failed"), Some("sandbox_lost")),
        "{row}"
    );
    let events = server.admin().all_events(&id).await;
    assert!(events.iter().any(|event| event["type"] == "worker.lost"));
    // The conversation goes on in a new sandbox.
    let session = row["session_id"].as_str().unwrap();
    let sent = server.admin().post(&format!("/sessions/{session}/messages"), json!({ "content": "say again" })).await;
    let next = sent.expect(201)["sandbox"]["id"].as_str().unwrap().to_owned();
    let row = until(&server.admin(), &next, has_ended).await;
    assert_eq!(row["outcome"], "succeeded");
    let events = server.admin().all_events(&next).await;
    assert!(events.iter().any(|event| event["data"]["text"] == "again"));
    server.stop().await;
}
