//! Leases that never reach their worker, because the connection breaks.

use atoll_core::id::LeaseId;
use atoll_test_wait::poll_for;
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::ManualWorker;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

on_both_databases!(
    an_acknowledgement_under_an_older_lease_of_the_same_worker_counts,
    a_reconnected_worker_gets_its_leased_message_again_at_once,
    leases_that_expire_at_once_leave_time_for_the_worker_s_frames,
);

/// Reads the next message from a worker's stream on a new connection, and then closes the connection.
async fn next_message(worker: &ManualWorker) -> Value {
    let mut socket = worker
        .actor
        .open_web_socket(&format!("/sandboxes/{}/stream?stream={}", worker.sandbox_id, worker.stream))
        .await;
    loop {
        let Message::Text(text) = socket.next().await.unwrap().unwrap() else { continue };
        let frame: Value = serde_json::from_str(text.as_str()).unwrap();
        if frame["type"] == "message" {
            return frame["message"].clone();
        }
    }
}

/// More messages than the server leases at once, and leases that expire while it sends them.
async fn leases_that_expire_at_once_leave_time_for_the_worker_s_frames(kind: DatabaseKind) {
    let server = TestServer::start_with(kind, |options| options.config.messages.lease = Duration::from_millis(1)).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("starting").await.expect_status(200);
    for number in 0..40 {
        let message = json!({ "content": number.to_string() });
        admin.post(&format!("/sandboxes/{}/messages", sandbox.id), message).await.expect_status(201);
    }
    let path = format!("/sandboxes/{}/stream?stream={}", worker.sandbox_id, worker.stream);
    let mut socket = worker.actor.open_web_socket(&path).await;
    let mut frames = 0;
    loop {
        let Message::Text(text) = socket.next().await.unwrap().unwrap() else { continue };
        let frame: Value = serde_json::from_str(text.as_str()).unwrap();
        if frame["type"] == "refused" {
            break;
        }
        frames += 1;
        // The server is now leasing messages.
        if frames == 1 {
            let renewal = json!({ "type": "renew", "leases": [LeaseId::new()] });
            socket.send(Message::text(renewal.to_string())).await.unwrap();
        }
        assert!(frames < 2000, "the server sends messages and does not read the worker's renewal");
    }
    server.stop().await;
}

/// The lease is longer than the test, so the message does not wait for its expiry.
async fn a_reconnected_worker_gets_its_leased_message_again_at_once(kind: DatabaseKind) {
    let server =
        TestServer::start_with(kind, |options| options.config.messages.lease = Duration::from_secs(3600)).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("starting").await.expect_status(200);
    admin.post(&format!("/sandboxes/{}/messages", sandbox.id), json!({ "content": "hello" })).await.expect_status(201);
    let (first, again) = (next_message(&worker).await, next_message(&worker).await);
    assert_eq!(
        (&first["id"], &first["lease"]),
        (&again["id"], &again["lease"]),
        "expected the same message under the same lease"
    );
    worker.ack_message(&again, "injected", None).await.expect_status(200);
    server.stop().await;
}

/// The server leases a message to the same worker again, and the connection breaks before the worker gets the new
/// lease. The server must accept the acknowledgement under the older lease, because the worker sends no other one.
async fn an_acknowledgement_under_an_older_lease_of_the_same_worker_counts(kind: DatabaseKind) {
    let server = TestServer::start_with(kind, |options| options.config.messages.lease = Duration::from_millis(1)).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker { boot: Some(1), ..ManualWorker::new(&admin, &sandbox) };
    worker.send_heartbeat("starting").await.expect_status(200);
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    for content in ["acknowledged", "delivered_unconfirmed", "undeliverable", "given back"] {
        admin.post(&path, json!({ "content": content })).await.expect_status(201);
    }
    let first = worker.lease_messages(5).await;
    let leases = async || Some(worker.lease_messages(5).await).filter(|leases| !leases.is_empty());
    let second = poll_for("the leases to expire", leases).await;
    assert_eq!((first.len(), second.len()), (4, 4));
    assert!(first.iter().zip(&second).all(|(old, new)| old["id"] == new["id"] && old["lease"] != new["lease"]));

    worker.ack_message(&first[0], "injected", None).await.expect_status(200);
    worker.nack_message(&first[1], true, false).await.expect_status(200);
    worker.nack_message(&first[2], false, false).await.expect_status(200);
    // A returned message may be on its way to the agent again, so a return needs the current lease.
    worker.nack_message(&first[3], false, true).await.expect_problem(409, "not_your_lease");
    let messages = admin.get(&path).await.expect_status(200);
    for message in messages["items"].as_array().unwrap().iter().take(3) {
        assert_eq!(message["state"], message["content"]);
    }
    assert_eq!(messages["items"][3]["state"], "leased");

    // A fenced worker cannot acknowledge at all.
    let next = worker.with_new_stream();
    next.send_heartbeat("starting").await.expect_status(200);
    worker.ack_message(&first[3], "injected", None).await.expect_problem(409, "stream_fenced");
    server.stop().await;
}
