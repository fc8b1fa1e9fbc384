//! Sandboxes of the `fake` provider, which uses the same code path as the real ones.

use atoll_providers::fake::{FakeOptions, Fault, FaultKind, FaultPoint};
use atoll_test_wait::try_poll_for;
use atoll_tests::actor::Actor;
use atoll_tests::database::DatabaseKind;
use atoll_tests::on_both_databases;
use atoll_tests::scale::{choose_seed, scale_count};
use atoll_tests::server::TestServer;
use serde_json::{Value, json};
use std::time::Duration;

on_both_databases!(
    a_prompt_runs_to_completion,
    a_message_reaches_a_working_agent,
    every_failure_has_a_reason_code,
    seeded_faults_lose_no_events,
    a_sandbox_lost_in_a_restart_fails_with_sandbox_lost,
    a_paused_sandbox_does_not_time_out,
);

async fn create_sandbox(admin: &Actor, settings: Value) -> String {
    let mut body = json!({ "provider": "fake", "agent": "demo" });
    body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    admin.post("/sandboxes", body).await.expect_status(201)["id"].as_str().unwrap().to_owned()
}

/// Waits until the sandbox's row matches.
async fn wait_until(admin: &Actor, id: &str, is_match: impl Fn(&Value) -> bool) -> Value {
    let polled = try_poll_for(async || {
        let row = admin.get(&format!("/sandboxes/{id}")).await.expect_status(200);
        if is_match(&row) { Ok(row) } else { Err(row) }
    });
    polled.await.expect("the sandbox must reach the expected state")
}

fn has_ended(row: &Value) -> bool {
    row["state"] == "completed" || row["state"] == "failed"
}

async fn a_prompt_runs_to_completion(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let id = create_sandbox(&admin, json!({ "prompt": "say hello\nedit a.txt one\nrun cat a.txt" })).await;
    let row = wait_until(&admin, &id, has_ended).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");
    let events = admin.all_events(&id).await;
    let events_of_type = |name: &str| events.iter().filter(|event| event["type"] == name).collect::<Vec<_>>();
    assert_eq!(events_of_type("agent.message")[0]["data"]["text"], "hello");
    assert_eq!(events_of_type("agent.file_edited").len(), 1);
    assert_eq!(events_of_type("message.acknowledged").len(), 1);
    assert!(events_of_type("agent.started").iter().all(|event| event["turn"] == 1));
    // The server destroys the provider's sandbox at once.
    wait_until(&admin, &id, |row| row["provider_id"].is_null()).await;
    server.stop().await;
}

async fn a_paused_sandbox_does_not_time_out(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let id = create_sandbox(&admin, json!({ "prompt": "say one\nwait 600", "timeout_s": 6 })).await;
    wait_until(&admin, &id, |row| row["activity"] == "working").await;
    admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect_status(200);
    // A sandbox that starts later and is not paused times out.
    let later = create_sandbox(&admin, json!({ "prompt": "wait 600", "timeout_s": 6 })).await;
    assert_eq!(wait_until(&admin, &later, has_ended).await["reason"]["code"], "timeout");
    let row = admin.get(&format!("/sandboxes/{id}")).await.expect_status(200);
    assert_eq!((row["state"].as_str(), row["activity"].as_str()), (Some("running"), Some("paused")), "{row}");
    admin.post(&format!("/sandboxes/{id}/resume"), json!({})).await.expect_status(200);
    let row = wait_until(&admin, &id, has_ended).await;
    assert_eq!(row["reason"]["code"], "timeout", "{row}");
    server.stop().await;
}

async fn a_message_reaches_a_working_agent(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let id = create_sandbox(&admin, json!({ "prompt": "say one\nwait 60\nsay two" })).await;
    wait_until(&admin, &id, |row| row["activity"] == "working" && row["turn"] == 1).await;
    let path = format!("/sandboxes/{id}/messages");
    admin.post(&path, json!({ "content": "say steered" })).await.expect_status(201);
    let polled = try_poll_for(async || {
        let messages = admin.get(&path).await.expect_status(200);
        if messages["items"][1]["state"] == "acknowledged" { Ok(messages) } else { Err(messages) }
    });
    let messages = polled.await.expect("the agent must acknowledge the message");
    assert_eq!(
        (messages["items"][1]["how"].as_str(), messages["items"][1]["turn"].as_i64()),
        (Some("injected"), Some(1))
    );
    admin.post(&path, json!({ "content": "enough", "type": "interrupt" })).await.expect_status(201);
    wait_until(&admin, &id, |row| row["activity"] == "waiting_message").await;
    let events = admin.all_events(&id).await;
    assert!(events.iter().any(|event| event["type"] == "agent.interrupted"));
    assert!(!events.iter().any(|event| event["data"]["text"] == "two"), "the agent continued after the interrupt");
    admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect_status(200);
    let row = wait_until(&admin, &id, has_ended).await;
    assert_eq!(row["outcome"], "cancelled");
    server.stop().await;
}

async fn every_failure_has_a_reason_code(kind: DatabaseKind) {
    let server = TestServer::start_with(kind, |options| {
        options.config.heartbeat.interval = Duration::from_secs(1);
        options.config.sandbox.timeout.when_done = Some(Duration::from_secs(4));
    })
    .await;
    let admin = server.admin();
    for (prompt, reason) in
        [("fail no luck", "agent_failed"), ("oom", "out_of_memory"), ("hang", "timeout"), ("crash", "timeout")]
    {
        let id = create_sandbox(&admin, json!({ "prompt": format!("say before\n{prompt}") })).await;
        let row = wait_until(&admin, &id, has_ended).await;
        assert_eq!((row["state"].as_str(), row["reason"]["code"].as_str()), (Some("failed"), Some(reason)), "{row}");
        let events = admin.all_events(&id).await;
        assert!(events.iter().any(|event| event["data"]["text"] == "before"), "events before the failure are lost");
    }
    let id = create_sandbox(&admin, json!({ "prompt": "crash", "timeout_s": 600 })).await;
    wait_until(&admin, &id, |row| row["activity"] == "unreachable").await;
    let results = admin.post(&format!("/sandboxes/{id}/results"), json!({})).await.expect_status(200);
    assert_eq!(results["taken"], json!([]));
    let removed = admin.delete(&format!("/sandboxes/{id}")).await.expect_status(200);
    assert_eq!((removed["state"].as_str(), removed["outcome"].as_str()), (Some("completed"), Some("cancelled")));
    server.stop().await;
}

async fn seeded_faults_lose_no_events(kind: DatabaseKind) {
    let faults = [
        (FaultPoint::Create, FaultKind::Fail, 0.2),
        (FaultPoint::Heartbeat, FaultKind::Drop, 0.2),
        (FaultPoint::Event, FaultKind::Duplicate, 0.2),
        (FaultPoint::Event, FaultKind::Drop, 0.2),
        (FaultPoint::Ack, FaultKind::Duplicate, 0.3),
        (FaultPoint::Destroy, FaultKind::Fail, 0.3),
    ];
    let seed = choose_seed("fake faults");
    let server = TestServer::start_with(kind, |options| {
        let faults = faults.map(|(at, kind, rate)| Fault { at, kind, rate });
        options.config.providers.fake = FakeOptions { seed, faults: faults.to_vec() };
        options.config.heartbeat.interval = Duration::from_secs(1);
    })
    .await;
    let admin = server.admin();
    let mut ids = Vec::new();
    for _ in 0..scale_count(100) {
        ids.push(create_sandbox(&admin, json!({ "prompt": "say 1\nsay 2\nsay 3\nsay 4" })).await);
    }
    for id in ids {
        let row = wait_until(&admin, &id, has_ended).await;
        let events = admin.all_events(&id).await;
        let seqs: Vec<i64> = events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
        assert_eq!(seqs, (1..=seqs.len() as i64).collect::<Vec<_>>());
        if row["state"] == "failed" {
            assert_eq!(row["reason"]["code"], "provider_unreachable", "{row}");
            continue;
        }
        let texts: Vec<&str> = events
            .iter()
            .filter(|event| event["type"] == "agent.message")
            .map(|event| event["data"]["text"].as_str().unwrap())
            .collect();
        assert_eq!(texts, ["1", "2", "3", "4"]);
        assert_eq!(events.iter().filter(|event| event["type"] == "message.acknowledged").count(), 1);
    }
    server.stop().await;
}

async fn a_sandbox_lost_in_a_restart_fails_with_sandbox_lost(kind: DatabaseKind) {
    let mut server = TestServer::start(kind).await;
    let admin = server.admin();
    let id = create_sandbox(&admin, json!({ "prompt": "wait 600" })).await;
    // Wait for the first turn: then the agent has the prompt, and the server does not deliver it again.
    wait_until(&admin, &id, |row| row["turn"] == 1 && !row["provider_id"].is_null()).await;
    server.restart().await;
    let row = wait_until(&server.admin(), &id, has_ended).await;
    assert_eq!(
        (row["state"].as_str(), row["reason"]["code"].as_str()),
        (Some("failed"), Some("sandbox_lost")),
        "{row}"
    );
    let events = server.admin().all_events(&id).await;
    assert!(events.iter().any(|event| event["type"] == "worker.lost"));
    // The session continues in a new sandbox.
    let session = row["session_id"].as_str().unwrap();
    let sent = server.admin().post(&format!("/sessions/{session}/messages"), json!({ "content": "say again" })).await;
    let next = sent.expect_status(201)["sandbox"]["id"].as_str().unwrap().to_owned();
    let row = wait_until(&server.admin(), &next, has_ended).await;
    assert_eq!(row["outcome"], "succeeded");
    let events = server.admin().all_events(&next).await;
    assert!(events.iter().any(|event| event["data"]["text"] == "again"));
    server.stop().await;
}
