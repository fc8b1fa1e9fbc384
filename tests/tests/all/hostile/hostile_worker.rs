//! Workers that continue after the end or after fencing, or that send wrong blobs and extreme numbers.

use super::{expect_safe_problem, request_web_socket};
use atoll_tests::actor::{Actor, ApiResponse};
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use reqwest::Method;
use serde_json::json;

on_both_databases!(
    the_worker_of_an_ended_sandbox_may_only_flush_events,
    fenced_streams_and_key_gaps_are_refused,
    a_blob_must_match_its_hash,
    a_flooded_log_ends_at_its_quota,
    extreme_numbers_break_nothing,
    a_heartbeat_does_not_overtake_the_event_log,
);

const HELLO_SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

async fn put_blob(actor: &Actor, sandbox: &str, name: &str, bytes: &'static [u8]) -> ApiResponse {
    let request = actor.request(Method::PUT, &format!("/sandboxes/{sandbox}/blobs/{name}"));
    actor.send(request.header("content-type", "application/octet-stream").body(bytes)).await
}

async fn the_worker_of_an_ended_sandbox_may_only_flush_events(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    let path = |what: &str| format!("/sandboxes/{}{what}", sandbox.id);
    worker.send_heartbeat("starting").await.expect_status(200);
    worker.send_events(&["agent.message"]).await;
    admin.post(&path("/messages"), json!({ "content": "for the next one" })).await.expect_status(201);
    let leased = worker.lease_messages(1).await.remove(0);
    admin.post(&path("/stop"), json!({ "results": "discard" })).await.expect_status(200);

    // After the end, the server accepts the remaining events and blobs, and serves nothing else.
    assert_eq!(worker.send_heartbeat("working").await.expect_status(200)["state"], "completed");
    worker.send_events(&["agent.message", "agent.shutdown"]).await;
    put_blob(&worker.actor, &sandbox.id, HELLO_SHA256, b"hello").await.expect_status(200);
    let single = json!({ "event_type": "agent.message", "event_data": {} });
    worker.actor.post(&path("/events"), single.clone()).await.expect_status(200);
    let assert_refused = async |worker: &ManualWorker| {
        let lease = json!({ "stream": worker.stream });
        expect_safe_problem(worker.actor.post(&path("/messages/lease"), lease).await, 401, "unauthorized");
        expect_safe_problem(worker.ack_message(&leased, "new_turn", None).await, 401, "unauthorized");
        expect_safe_problem(worker.nack_message(&leased, false, true).await, 401, "unauthorized");
        expect_safe_problem(worker.actor.get(&path("")).await, 401, "unauthorized");
        expect_safe_problem(worker.actor.get(&path("/messages")).await, 401, "unauthorized");
        let stream = path(&format!("/stream?stream={}", worker.stream));
        expect_safe_problem(request_web_socket(&worker.actor, &stream, None).await, 401, "unauthorized");
    };
    assert_refused(&worker).await;

    // A worker that did not get the response sends its final batch again.
    let last = json!({ "stream": worker.stream, "final": true,
        "events": [build_event(worker.next_key, "agent.message", json!({ "last": true }))] });
    let first = worker.actor.post(&path("/events"), last.clone()).await.expect_status(200);
    let again = worker.actor.post(&path("/events"), last).await.expect_status(200);
    assert_eq!((first["stored"].as_i64(), again["stored"].as_i64()), (Some(1), Some(0)));
    assert_eq!((&again["duplicates"], &again["last_seq"]), (&json!(1), &first["last_seq"]));

    // After the final batch, the server refuses everything.
    worker.next_key += 1;
    let more = build_event(worker.next_key, "agent.message", json!({}));
    expect_safe_problem(worker.send_batch(vec![more.clone()]).await, 401, "unauthorized");
    let more = json!({ "stream": worker.stream, "final": true, "events": [more] });
    expect_safe_problem(worker.actor.post(&path("/events"), more).await, 401, "unauthorized");
    let other = json!({ "stream": uuid::Uuid::now_v7(), "final": true, "events": [] });
    expect_safe_problem(worker.actor.post(&path("/events"), other).await, 401, "unauthorized");
    expect_safe_problem(worker.actor.post(&path("/events"), single).await, 401, "unauthorized");
    expect_safe_problem(worker.send_heartbeat("working").await, 401, "unauthorized");
    expect_safe_problem(put_blob(&worker.actor, &sandbox.id, HELLO_SHA256, b"hello").await, 401, "unauthorized");
    expect_safe_problem(worker.actor.get(&path(&format!("/blobs/{HELLO_SHA256}"))).await, 401, "unauthorized");
    assert_refused(&worker).await;
    expect_safe_problem(admin.post(&path("/worker-token"), json!({})).await, 409, "sandbox_ended");
    server.stop().await;
}

async fn fenced_streams_and_key_gaps_are_refused(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut old = ManualWorker { boot: Some(1), ..ManualWorker::new(&admin, &sandbox) };
    old.send_heartbeat("starting").await.expect_status(200);
    old.send_events(&["agent.message", "agent.message"]).await;
    for key in [4, 5, i64::MAX] {
        let gap = expect_safe_problem(
            old.send_batch(vec![build_event(key, "agent.message", json!({}))]).await,
            409,
            "key_gap",
        );
        assert_eq!(gap["last_key"], 2);
    }
    let with_gap = vec![build_event(3, "agent.message", json!({})), build_event(5, "agent.message", json!({}))];
    assert_eq!(
        expect_safe_problem(old.send_batch(with_gap).await, 409, "key_gap")["last_key"],
        2,
        "the server must refuse the whole batch"
    );
    for key in [0, -1, i64::MIN] {
        let duplicate = old.send_batch(vec![build_event(key, "agent.message", json!({}))]).await.expect_status(200);
        assert_eq!((&duplicate["stored"], &duplicate["duplicates"]), (&json!(0), &json!(1)));
    }

    let new = old.with_new_stream();
    new.send_heartbeat("starting").await.expect_status(200);
    expect_safe_problem(old.send_heartbeat("working").await, 409, "stream_fenced");
    expect_safe_problem(old.send_batch(vec![build_event(3, "agent.message", json!({}))]).await, 409, "stream_fenced");
    let lease = json!({ "stream": old.stream });
    expect_safe_problem(
        old.actor.post(&format!("/sandboxes/{}/messages/lease", old.sandbox_id), lease).await,
        409,
        "stream_fenced",
    );
    let stream = format!("/sandboxes/{}/stream?stream={}", old.sandbox_id, old.stream);
    expect_safe_problem(request_web_socket(&old.actor, &stream, None).await, 409, "stream_fenced");
    // A fenced worker cannot send events under its successor's stream either.
    let own = json!({ "stream": new.stream, "by": old.stream, "events": [build_event(1, "agent.message", json!({}))] });
    expect_safe_problem(
        old.actor.post(&format!("/sandboxes/{}/events", old.sandbox_id), own).await,
        409,
        "stream_fenced",
    );
    server.stop().await;
}

async fn a_flooded_log_ends_at_its_quota(kind: DatabaseKind) {
    let mut server =
        TestServer::start_with(kind, |options| options.config.limits.log_bytes_per_sandbox = 200_000).await;
    let admin = server.admin();
    let (flooded, other) =
        (admin.create_external_sandbox(json!({})).await, admin.create_external_sandbox(json!({})).await);
    let (worker, neighbour) = (ManualWorker::new(&admin, &flooded), ManualWorker::new(&admin, &other));
    for worker in [&worker, &neighbour] {
        worker.send_heartbeat("starting").await.expect_status(200);
    }
    let long = |key| build_event(key, "agent.message", json!({ "text": "x".repeat(50_000) }));
    let answer = worker.send_batch((1..=6).map(long).collect()).await.expect_status(200);
    assert_eq!((&answer["stored"], &answer["dropped"], &answer["last_key"]), (&json!(3), &json!(3), &json!(6)));
    // An event that is not stored still has its effect.
    let answer = worker.send_batch(vec![build_event(7, "agent.waiting", json!({}))]).await.expect_status(200);
    assert_eq!((&answer["dropped"], &answer["last_key"]), (&json!(1), &json!(7)));
    let row = admin.get(&format!("/sandboxes/{}", flooded.id)).await.expect_status(200);
    assert_eq!((&row["dropped_events"], &row["activity"]), (&json!(4), &json!("waiting_message")));
    assert!((150_000..200_000).contains(&row["log_bytes"].as_i64().unwrap()), "{row}");
    let events = admin.all_events(&flooded.id).await;
    let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let worker_types = ["agent.message", "agent.message", "agent.message", "log.truncated"];
    assert_eq!(types[types.len() - 4..], worker_types);
    assert_eq!(events.last().unwrap()["data"]["quota_bytes"], 200_000);
    let large: &'static [u8] = vec![b'x'; 60_000].leak();
    put_blob(&worker.actor, &flooded.id, HELLO_SHA256, large).await.expect_problem(413, "log_full");
    // What people do is still recorded, and other sandboxes are not affected.
    admin.post(&format!("/sandboxes/{}/messages", flooded.id), json!({ "content": "stop" })).await.expect_status(201);
    assert_eq!(admin.all_events(&flooded.id).await.last().unwrap()["type"], "message.queued");
    let answer = neighbour.send_batch(vec![long(1)]).await.expect_status(200);
    assert_eq!((&answer["stored"], &answer["dropped"]), (&json!(1), &json!(0)));
    put_blob(&neighbour.actor, &other.id, HELLO_SHA256, b"hello").await.expect_status(200);
    let row = admin.get(&format!("/sandboxes/{}", other.id)).await.expect_status(200);
    assert!(row["log_bytes"].as_i64().unwrap() > 54_000, "a blob counts: {row}");
    server.restart().await;
    let row = server.admin().get(&format!("/sandboxes/{}", flooded.id)).await.expect_status(200);
    assert_eq!(row["dropped_events"], 4);
    server.stop().await;
}

async fn a_blob_must_match_its_hash(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let (sandbox, other) =
        (admin.create_external_sandbox(json!({})).await, admin.create_external_sandbox(json!({})).await);
    let worker = admin.with_token(&sandbox.token);
    expect_safe_problem(put_blob(&worker, &sandbox.id, HELLO_SHA256, b"other bytes").await, 422, "blob_mismatch");
    expect_safe_problem(put_blob(&worker, &sandbox.id, HELLO_SHA256, b"").await, 422, "blob_mismatch");
    expect_safe_problem(admin.get(&format!("/sandboxes/{}/blobs/{HELLO_SHA256}", sandbox.id)).await, 404, "not_found");
    for name in [
        "hello".to_owned(),
        HELLO_SHA256.to_uppercase(),
        format!("{HELLO_SHA256}0"),
        HELLO_SHA256[1..].to_owned(),
        format!("..%2f{}", &HELLO_SHA256[3..]),
        format!("..%2f..%2f{}", &HELLO_SHA256[6..]),
        "..%2f..%2f..%2f..%2fetc%2fpasswd".to_owned(),
        "%2fetc%2fpasswd".to_owned(),
        format!("{}%00", &HELLO_SHA256[1..]),
        format!("%ff{}", &HELLO_SHA256[1..]),
    ] {
        expect_safe_problem(put_blob(&worker, &sandbox.id, &name, b"hello").await, 404, "not_found");
    }
    expect_safe_problem(put_blob(&admin, &sandbox.id, HELLO_SHA256, b"hello").await, 403, "forbidden");
    put_blob(&worker, &sandbox.id, HELLO_SHA256, b"hello").await.expect_status(200);
    put_blob(&worker, &sandbox.id, HELLO_SHA256, b"hello").await.expect_status(200);
    let read = admin.get(&format!("/sandboxes/{}/blobs/{HELLO_SHA256}", sandbox.id)).await;
    assert_eq!((read.content_type.as_str(), read.body.as_str()), ("application/octet-stream", Some("hello")));
    // A hash alone gives no access to another sandbox's blob.
    expect_safe_problem(admin.get(&format!("/sandboxes/{}/blobs/{HELLO_SHA256}", other.id)).await, 404, "not_found");
    expect_safe_problem(worker.get(&format!("/sandboxes/{}/blobs/{HELLO_SHA256}", other.id)).await, 403, "forbidden");
    server.stop().await;
}

async fn extreme_numbers_break_nothing(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({ "timeout_s": u32::MAX })).await;
    let worker = ManualWorker { boot: Some(i64::MIN), ..ManualWorker::new(&admin, &sandbox) };
    let path = |what: &str| format!("/sandboxes/{}/{what}", sandbox.id);
    let heartbeat = json!({ "stream": worker.stream, "boot": worker.boot, "protocol": u32::MAX, "last_key": i64::MAX,
        "at": "9999-12-30T22:00:00Z", "activity": "starting", "cpu": 1e308, "memory": -1e308, "disk": 1e19 });
    worker.actor.post(&path("heartbeat"), heartbeat).await.expect_status(200);
    let turn = |key: i64, event_type: &str, turn: Option<i64>| {
        let mut event = build_event(key, event_type, json!({}));
        event["turn"] = json!(turn);
        event["at"] = json!("-009999-01-02T01:59:59Z");
        event
    };
    let events = vec![
        turn(1, "agent.started", Some(i64::MAX)),
        turn(2, "agent.started", None),
        turn(3, "agent.started", Some(i64::MIN)),
        turn(4, "agent.completed", Some(i64::MAX)),
    ];
    assert_eq!(worker.send_batch(events).await.expect_status(200)["stored"], 4);
    let lease = json!({ "stream": worker.stream, "max": u32::MAX, "wait_s": 0 });
    worker.actor.post(&path("messages/lease"), lease).await.expect_status(200);
    let newest = worker.with_new_stream();
    let newest = ManualWorker { boot: Some(i64::MAX), ..newest };
    newest.send_heartbeat("working").await.expect_status(200);
    assert_eq!(admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200)["state"], "running");
    let read =
        admin.get(&path("events?since=-009999-01-02T01:59:59Z&until=9999-12-30T22:00:00Z")).await.expect_status(200);
    assert!(!read["items"].as_array().unwrap().is_empty());
    server.stop().await;
}

/// The server applies a heartbeat's activity only if it has stored all events before the heartbeat. It adds the cost
/// to a usage event when it stores the event.
async fn a_heartbeat_does_not_overtake_the_event_log(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({ "model": "claude-haiku-4-5" })).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    let path = format!("/sandboxes/{}", sandbox.id);
    worker.send_heartbeat("starting").await.expect_status(200);
    worker.send_events(&["agent.started"]).await;
    let ahead = ManualWorker { next_key: 4, ..worker.clone() };
    ahead.send_heartbeat("waiting_message").await.expect_status(200);
    assert_eq!(admin.get(&path).await.expect_status(200)["activity"], "working", "two events are not stored yet");
    let used = json!({ "input_tokens": 1_000_000, "output_tokens": 0 });
    let events =
        vec![build_event(2, "agent.usage", used), build_event(3, "agent.rate_limited", json!({ "until": null }))];
    worker.send_batch(events).await.expect_status(200);
    assert_eq!(admin.get(&path).await.expect_status(200)["activity"], "rate_limited");
    ahead.send_heartbeat("waiting_message").await.expect_status(200);
    assert_eq!(admin.get(&path).await.expect_status(200)["activity"], "waiting_message");
    let events = admin.all_events(&sandbox.id).await;
    let usage = events.iter().find(|event| event["type"] == "agent.usage").unwrap();
    assert_eq!(
        (&usage["data"]["cost_usd"], &usage["data"]["cost_by"]),
        (&json!(1.0), &json!("price_table")),
        "{usage}"
    );
    server.stop().await;
}
