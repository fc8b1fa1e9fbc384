//! Leases that their workers never heard of.

use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use atoll_tests::worker::HandWorker;
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::time::Duration;
use tokio_tungstenite::tungstenite::Message;

on_both_databases!(
    a_receipt_under_an_older_lease_of_the_same_worker_counts,
    a_message_that_was_under_way_comes_again_at_once,
);

/// The next message that comes down a worker's stream, on a connection of its own that then breaks.
async fn next_message(worker: &HandWorker) -> Value {
    let mut socket =
        worker.actor.web_socket(&format!("/sandboxes/{}/stream?stream={}", worker.id, worker.stream)).await;
    loop {
        let Message::Text(text) = socket.next().await.unwrap().unwrap() else { continue };
        let frame: Value = serde_json::from_str(text.as_str()).unwrap();
        if frame["type"] == "message" {
            return frame["message"].clone();
        }
    }
}

/// The lease outlasts this test by far: nothing has to run out for a worker that comes back.
async fn a_message_that_was_under_way_comes_again_at_once(kind: Kind) {
    let server = TestServer::start_with(kind, |options| options.policy.lease = Duration::from_secs(3600)).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("starting").await.expect(200);
    admin.post(&format!("/sandboxes/{}/messages", sandbox.id), json!({ "content": "hello" })).await.expect(201);
    let (first, again) = (next_message(&worker).await, next_message(&worker).await);
    assert_eq!((&first["id"], &first["lease"]), (&again["id"], &again["lease"]), "the same, under the same lease");
    worker.ack(&again, "injected", None).await.expect(200);
    server.stop().await;
}

/// The server leased a message again, to the worker that has it, and the connection broke over it.
/// What the worker then says under the lease that it knows must not be lost: it would go unheard for good
/// if that is the last thing it says.
async fn a_receipt_under_an_older_lease_of_the_same_worker_counts(kind: Kind) {
    let server = TestServer::start_with(kind, |options| options.policy.lease = Duration::from_millis(1)).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let worker = HandWorker { boot: Some(1), ..HandWorker::new(&admin, &sandbox) };
    worker.heartbeat("starting").await.expect(200);
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    for content in ["acknowledged", "delivered_unconfirmed", "undeliverable", "given back"] {
        admin.post(&path, json!({ "content": content })).await.expect(201);
    }
    let held = worker.lease(5).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let unheard = worker.lease(5).await;
    assert_eq!((held.len(), unheard.len()), (4, 4));
    assert!(held.iter().zip(&unheard).all(|(old, new)| old["id"] == new["id"] && old["lease"] != new["lease"]));

    worker.ack(&held[0], "injected", None).await.expect(200);
    worker.nack(&held[1], true, false).await.expect(200);
    worker.nack(&held[2], false, false).await.expect(200);
    // What is given back may be on its way to the agent again: this takes the lease itself.
    worker.nack(&held[3], false, true).await.refused(409, "not_your_lease");
    let messages = admin.get(&path).await.expect(200);
    for message in messages["items"].as_array().unwrap().iter().take(3) {
        assert_eq!(message["state"], message["content"]);
    }
    assert_eq!(messages["items"][3]["state"], "leased");

    // Another worker's lease is another matter.
    let next = worker.restarted();
    next.heartbeat("starting").await.expect(200);
    worker.ack(&held[3], "injected", None).await.refused(409, "stream_fenced");
    server.stop().await;
}
