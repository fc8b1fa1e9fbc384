//! A worker after its time, beside its successor, or with bytes that are not what it says.

use super::{refused, upgrade};
use atoll_tests::actor::{Actor, Answer};
use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use atoll_tests::worker::{HandWorker, event};
use reqwest::Method;
use serde_json::json;

on_both_databases!(
    what_an_ended_sandbox_s_worker_may_still_do,
    fenced_streams_and_gaps_say_where_they_stand,
    blobs_are_what_their_name_says,
    absurd_numbers_break_nothing,
    a_heartbeat_is_never_ahead_of_the_log,
);

const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

async fn put_blob(actor: &Actor, sandbox: &str, name: &str, bytes: &'static [u8]) -> Answer {
    let request = actor.request(Method::PUT, &format!("/sandboxes/{sandbox}/blobs/{name}"));
    actor.send(request.header("content-type", "application/octet-stream").body(bytes)).await
}

async fn what_an_ended_sandbox_s_worker_may_still_do(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let mut worker = HandWorker::new(&admin, &sandbox);
    let path = |what: &str| format!("/sandboxes/{}{what}", sandbox.id);
    worker.heartbeat("starting").await.expect(200);
    worker.say(&["agent.message"]).await;
    admin.post(&path("/messages"), json!({ "content": "for the next one" })).await.expect(201);
    let held = worker.lease(1).await.remove(0);
    admin.post(&path("/stop"), json!({ "results": "discard" })).await.expect(200);

    // Ended: what is still on its way is taken, nothing new is handed out or shown.
    assert_eq!(worker.heartbeat("working").await.expect(200)["state"], "completed");
    worker.say(&["agent.message", "agent.shutdown"]).await;
    put_blob(&worker.actor, &sandbox.id, HELLO, b"hello").await.expect(200);
    let single = json!({ "event_type": "agent.message", "event_data": {} });
    worker.actor.post(&path("/events"), single.clone()).await.expect(200);
    let shut = async |worker: &HandWorker| {
        let lease = json!({ "stream": worker.stream });
        refused(worker.actor.post(&path("/messages/lease"), lease).await, 401, "unauthorized");
        refused(worker.ack(&held, "new_turn", None).await, 401, "unauthorized");
        refused(worker.nack(&held, false, true).await, 401, "unauthorized");
        refused(worker.actor.get(&path("")).await, 401, "unauthorized");
        refused(worker.actor.get(&path("/messages")).await, 401, "unauthorized");
        let stream = path(&format!("/stream?stream={}", worker.stream));
        refused(upgrade(&worker.actor, &stream, None).await, 401, "unauthorized");
    };
    shut(&worker).await;

    // The last batch, and the same again by a worker that did not hear the answer.
    let last = json!({ "stream": worker.stream, "final": true,
        "events": [event(worker.next_key, "agent.message", json!({ "last": true }))] });
    let first = worker.actor.post(&path("/events"), last.clone()).await.expect(200);
    let again = worker.actor.post(&path("/events"), last).await.expect(200);
    assert_eq!((first["stored"].as_i64(), again["stored"].as_i64()), (Some(1), Some(0)));
    assert_eq!((&again["duplicates"], &again["last_seq"]), (&json!(1), &first["last_seq"]));

    // Drained: nothing at all.
    worker.next_key += 1;
    let more = event(worker.next_key, "agent.message", json!({}));
    refused(worker.batch(vec![more.clone()]).await, 401, "unauthorized");
    let more = json!({ "stream": worker.stream, "final": true, "events": [more] });
    refused(worker.actor.post(&path("/events"), more).await, 401, "unauthorized");
    let other = json!({ "stream": uuid::Uuid::now_v7(), "final": true, "events": [] });
    refused(worker.actor.post(&path("/events"), other).await, 401, "unauthorized");
    refused(worker.actor.post(&path("/events"), single).await, 401, "unauthorized");
    refused(worker.heartbeat("working").await, 401, "unauthorized");
    refused(put_blob(&worker.actor, &sandbox.id, HELLO, b"hello").await, 401, "unauthorized");
    refused(worker.actor.get(&path(&format!("/blobs/{HELLO}"))).await, 401, "unauthorized");
    shut(&worker).await;
    refused(admin.post(&path("/worker-token"), json!({})).await, 409, "sandbox_ended");
    server.stop().await;
}

async fn fenced_streams_and_gaps_say_where_they_stand(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let mut old = HandWorker { boot: Some(1), ..HandWorker::new(&admin, &sandbox) };
    old.heartbeat("starting").await.expect(200);
    old.say(&["agent.message", "agent.message"]).await;
    for key in [4, 5, i64::MAX] {
        let gap = refused(old.batch(vec![event(key, "agent.message", json!({}))]).await, 409, "key_gap");
        assert_eq!(gap["last_key"], 2);
    }
    let torn = vec![event(3, "agent.message", json!({})), event(5, "agent.message", json!({}))];
    assert_eq!(refused(old.batch(torn).await, 409, "key_gap")["last_key"], 2, "the whole batch or nothing");
    for key in [0, -1, i64::MIN] {
        let old_news = old.batch(vec![event(key, "agent.message", json!({}))]).await.expect(200);
        assert_eq!((&old_news["stored"], &old_news["duplicates"]), (&json!(0), &json!(1)));
    }

    let new = old.restarted();
    new.heartbeat("starting").await.expect(200);
    refused(old.heartbeat("working").await, 409, "stream_fenced");
    refused(old.batch(vec![event(3, "agent.message", json!({}))]).await, 409, "stream_fenced");
    let lease = json!({ "stream": old.stream });
    refused(old.actor.post(&format!("/sandboxes/{}/messages/lease", old.id), lease).await, 409, "stream_fenced");
    let stream = format!("/sandboxes/{}/stream?stream={}", old.id, old.stream);
    refused(upgrade(&old.actor, &stream, None).await, 409, "stream_fenced");
    // Nor may it speak in its successor's name, or drain by itself.
    let own = json!({ "stream": new.stream, "by": old.stream, "events": [event(1, "agent.message", json!({}))] });
    refused(old.actor.post(&format!("/sandboxes/{}/events", old.id), own).await, 409, "stream_fenced");
    server.stop().await;
}

async fn blobs_are_what_their_name_says(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let (sandbox, other) = (admin.external(json!({})).await, admin.external(json!({})).await);
    let worker = admin.with_token(&sandbox.token);
    refused(put_blob(&worker, &sandbox.id, HELLO, b"other bytes").await, 422, "blob_mismatch");
    refused(put_blob(&worker, &sandbox.id, HELLO, b"").await, 422, "blob_mismatch");
    refused(admin.get(&format!("/sandboxes/{}/blobs/{HELLO}", sandbox.id)).await, 404, "not_found");
    for name in [
        "hello".to_owned(),
        HELLO.to_uppercase(),
        format!("{HELLO}0"),
        HELLO[1..].to_owned(),
        format!("..%2f{}", &HELLO[3..]),
        format!("..%2f..%2f{}", &HELLO[6..]),
        "..%2f..%2f..%2f..%2fetc%2fpasswd".to_owned(),
        "%2fetc%2fpasswd".to_owned(),
        format!("{}%00", &HELLO[1..]),
        format!("%ff{}", &HELLO[1..]),
    ] {
        refused(put_blob(&worker, &sandbox.id, &name, b"hello").await, 404, "not_found");
    }
    refused(put_blob(&admin, &sandbox.id, HELLO, b"hello").await, 403, "forbidden");
    put_blob(&worker, &sandbox.id, HELLO, b"hello").await.expect(200);
    put_blob(&worker, &sandbox.id, HELLO, b"hello").await.expect(200);
    let read = admin.get(&format!("/sandboxes/{}/blobs/{HELLO}", sandbox.id)).await;
    assert_eq!((read.content_type.as_str(), read.body.as_str()), ("application/octet-stream", Some("hello")));
    // Knowing a hash is not enough: it is another sandbox's.
    refused(admin.get(&format!("/sandboxes/{}/blobs/{HELLO}", other.id)).await, 404, "not_found");
    refused(worker.get(&format!("/sandboxes/{}/blobs/{HELLO}", other.id)).await, 403, "forbidden");
    server.stop().await;
}

async fn absurd_numbers_break_nothing(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({ "timeout_s": u32::MAX })).await;
    let worker = HandWorker { boot: Some(i64::MIN), ..HandWorker::new(&admin, &sandbox) };
    let path = |what: &str| format!("/sandboxes/{}/{what}", sandbox.id);
    let beat = json!({ "stream": worker.stream, "boot": worker.boot, "protocol": u32::MAX, "last_key": i64::MAX,
        "at": "9999-12-30T22:00:00Z", "activity": "starting", "cpu": 1e308, "memory": -1e308, "disk": 1e19 });
    worker.actor.post(&path("heartbeat"), beat).await.expect(200);
    let turn = |key: i64, event_type: &str, turn: Option<i64>| {
        let mut event = event(key, event_type, json!({}));
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
    assert_eq!(worker.batch(events).await.expect(200)["stored"], 4);
    let lease = json!({ "stream": worker.stream, "max": u32::MAX, "wait_s": 0 });
    worker.actor.post(&path("messages/lease"), lease).await.expect(200);
    let newest = worker.restarted();
    let newest = HandWorker { boot: Some(i64::MAX), ..newest };
    newest.heartbeat("working").await.expect(200);
    assert_eq!(admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200)["state"], "running");
    let read = admin.get(&path("events?since=-009999-01-02T01:59:59Z&until=9999-12-30T22:00:00Z")).await.expect(200);
    assert!(!read["items"].as_array().unwrap().is_empty());
    server.stop().await;
}

/// What it says of its agent counts when the events before it are stored, and what it used has a price by then.
async fn a_heartbeat_is_never_ahead_of_the_log(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({ "model": "claude-haiku-4-5" })).await;
    let mut worker = HandWorker::new(&admin, &sandbox);
    let path = format!("/sandboxes/{}", sandbox.id);
    worker.heartbeat("starting").await.expect(200);
    worker.say(&["agent.started"]).await;
    let ahead = HandWorker { next_key: 4, ..worker.clone() };
    ahead.heartbeat("waiting_message").await.expect(200);
    assert_eq!(admin.get(&path).await.expect(200)["activity"], "working", "two events are on their way");
    let used = json!({ "input_tokens": 1_000_000, "output_tokens": 0 });
    let events = vec![event(2, "agent.usage", used), event(3, "agent.rate_limited", json!({ "until": null }))];
    worker.batch(events).await.expect(200);
    assert_eq!(admin.get(&path).await.expect(200)["activity"], "rate_limited");
    ahead.heartbeat("waiting_message").await.expect(200);
    assert_eq!(admin.get(&path).await.expect(200)["activity"], "waiting_message");
    let events = admin.all_events(&sandbox.id).await;
    let usage = events.iter().find(|event| event["type"] == "agent.usage").unwrap();
    assert_eq!(
        (&usage["data"]["cost_usd"], &usage["data"]["cost_by"]),
        (&json!(1.0), &json!("price_table")),
        "{usage}"
    );
    server.stop().await;
}
