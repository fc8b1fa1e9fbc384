//! Following live: whatever the points of disconnection, what a reader sees is the log.

use atoll_tests::actor::Actor;
use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::reader::{Socket, sse};
use atoll_tests::scale::{scaled, seed};
use atoll_tests::server::TestServer;
use atoll_tests::worker::{HandWorker, event};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::BTreeMap;

on_both_databases!(
    readers_see_the_log_whatever_breaks,
    a_reader_of_all_sees_new_sandboxes_from_their_start,
    truncated_readers_are_told,
    tickets_are_good_once,
    a_worker_s_stream_hands_out_and_settles,
);

fn seq(event: &Value) -> i64 {
    event["seq"].as_i64().unwrap()
}

/// Writes `total` events in bursts.
async fn write(mut worker: HandWorker, total: i64, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    while worker.next_key <= total {
        let last = (worker.next_key + rng.random_range(0..30)).min(total);
        let events = (worker.next_key..=last).map(|key| event(key, "agent.message", json!({ "n": key }))).collect();
        worker.batch(events).await.expect(200);
        worker.next_key = last + 1;
        if rng.random_bool(0.3) {
            tokio::time::sleep(std::time::Duration::from_millis(rng.random_range(0..20))).await;
        }
    }
}

/// Reads by SSE, breaking off after a random number of events each time.
async fn read_sse(admin: Actor, sandbox: String, until: i64, seed: u64) -> Vec<i64> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut seen: Vec<i64> = Vec::new();
    while seen.last().is_none_or(|last| *last < until) {
        let from = seen.last().copied().unwrap_or(0);
        let most = rng.random_range(1..120);
        seen.extend(sse(&admin, &sandbox, from, most, until).await.iter().map(seq));
    }
    seen
}

/// Reads two sandboxes by one WebSocket, breaking off after a random number of frames each time.
async fn read_socket(admin: Actor, sandboxes: [String; 2], until: i64, seed: u64) -> BTreeMap<String, Vec<i64>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut seen: BTreeMap<String, Vec<i64>> = sandboxes.iter().map(|id| (id.clone(), Vec::new())).collect();
    let done = |seen: &BTreeMap<String, Vec<i64>>| seen.values().all(|seqs| seqs.last().is_some_and(|s| *s >= until));
    while !done(&seen) {
        let mut socket = Socket::open(&admin, "/events/ws").await;
        let since: BTreeMap<&str, i64> =
            seen.iter().map(|(id, seqs)| (id.as_str(), seqs.last().copied().unwrap_or(0))).collect();
        let named = if rng.random_bool(0.5) { json!("*") } else { json!(sandboxes) };
        socket.subscribe(named, json!(since)).await;
        for _ in 0..rng.random_range(1..12) {
            if done(&seen) {
                break;
            }
            let frame = socket.next().await.unwrap();
            for event in frame["events"].as_array().into_iter().flatten() {
                if let Some(seqs) = seen.get_mut(event["sandbox_id"].as_str().unwrap()) {
                    seqs.push(seq(event));
                }
            }
        }
    }
    seen
}

async fn readers_see_the_log_whatever_breaks(kind: Kind) {
    let first_seed = seed("follow");
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    for round in 0..scaled(20) as u64 {
        let seed = first_seed.wrapping_add(round);
        let (one, two) = (admin.external(json!({})).await, admin.external(json!({})).await);
        let total = 300;
        // Beside the worker's: the session was opened, the sandbox is pending, then creating.
        let until = total + 3;
        let writers = [&one, &two].map(|s| tokio::spawn(write(HandWorker::new(&admin, s), total, seed)));
        let sse = tokio::spawn(read_sse(admin.clone(), one.id.clone(), until, seed));
        let ids = [one.id.clone(), two.id.clone()];
        let socket = tokio::spawn(read_socket(admin.clone(), ids, until, seed + 1));
        for writer in writers {
            writer.await.unwrap();
        }
        let log: Vec<i64> = (1..=until).collect();
        assert_eq!(sse.await.unwrap(), log);
        for (id, seqs) in socket.await.unwrap() {
            assert_eq!(seqs, log, "{id}");
        }
    }
    server.stop().await;
}

async fn a_reader_of_all_sees_new_sandboxes_from_their_start(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let old = admin.external(json!({})).await;
    let mut socket = Socket::open(&admin, "/events/ws").await;
    socket.subscribe(json!("*"), json!({})).await;
    // The subscription is taken when its first news arrive: from now on for the old one.
    let mut worker = HandWorker::new(&admin, &old);
    let mut first = None;
    while first.is_none() {
        worker.say(&["agent.message"]).await;
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(200), socket.next()).await;
        first = waiting.ok().flatten();
    }
    let first = first.unwrap();
    assert!(seq(&first["events"][0]) > 2, "not from the start: {first}");
    let new = admin.external(json!({})).await;
    // What the old one said last may still be on its way.
    let mut frame = first;
    while frame["events"][0]["sandbox_id"] == old.id.as_str() {
        frame = socket.next().await.unwrap();
    }
    assert_eq!(frame["events"][0]["sandbox_id"].as_str(), Some(new.id.as_str()), "{frame}");
    assert_eq!(seq(&frame["events"][0]), 1);
    server.stop().await;
}

async fn truncated_readers_are_told(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let mut worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("working").await.expect(200);
    worker.say(&["agent.message", "agent.message"]).await;
    admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({ "results": "discard" })).await.expect(200);
    admin.post("/gc", json!({ "all": true })).await.expect(200);
    let first_seq = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200)["first_seq"].clone();
    let mut socket = Socket::open(&admin, "/events/ws").await;
    let since = BTreeMap::from([(sandbox.id.clone(), 0)]);
    socket.subscribe(json!([sandbox.id]), json!(since)).await;
    let told = socket.next().await.unwrap();
    assert_eq!((told["type"].as_str(), &told["first_seq"]), (Some("truncated"), &first_seq));
    assert_eq!(socket.next().await.unwrap()["events"][0]["seq"], first_seq);
    let caught_up = socket.next().await.unwrap();
    assert_eq!(caught_up["type"], "caught_up");
    server.stop().await;
}

async fn tickets_are_good_once(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let ticket = admin.post("/ws-tickets", json!({})).await.expect(201)["ticket"].as_str().unwrap().to_owned();
    let path = format!("/events/ws?ticket={ticket}");
    let nobody = server.anon();
    let mut socket = Socket::open(&nobody, &path).await;
    socket.subscribe(json!("*"), json!({})).await;
    assert!(Socket::try_open(&nobody, &path).await.is_err());
    assert!(Socket::try_open(&nobody, "/events/ws").await.is_err());
    server.stop().await;
}

async fn a_worker_s_stream_hands_out_and_settles(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("working").await.expect(200);
    let mut reader = Socket::open(&admin, "/events/ws").await;
    reader.subscribe(json!([sandbox.id]), json!({})).await;
    assert_eq!(reader.next().await.unwrap()["type"], "caught_up");
    let mut stream =
        Socket::open(&worker.actor, &format!("/sandboxes/{}/stream?stream={}", sandbox.id, worker.stream)).await;
    stream.send(json!({ "type": "live", "after_key": 0, "data": { "text": "typing" } })).await;
    let live = reader.next().await.unwrap();
    assert_eq!((live["type"].as_str(), live["data"]["text"].as_str()), (Some("live"), Some("typing")));

    let path = format!("/sandboxes/{}/messages", sandbox.id);
    admin.post(&path, json!({ "content": "hello" })).await.expect(201);
    let frame = stream.next().await.unwrap();
    let message = &frame["message"];
    assert_eq!((frame["type"].as_str(), message["content"].as_str()), (Some("message"), Some("hello")));
    let receipt = json!({ "type": "ack", "id": message["id"], "stream": worker.stream, "lease": message["lease"],
        "how": "injected", "turn": 4 });
    stream.send(receipt.clone()).await;
    assert_eq!(stream.next().await.unwrap()["type"], "settled");
    stream.send(receipt).await;
    assert_eq!(stream.next().await.unwrap()["type"], "settled", "saying it again is harmless");
    let shown = admin.get(&path).await.expect(200);
    let shown = &shown["items"][0];
    assert_eq!(
        (shown["state"].as_str(), shown["how"].as_str(), shown["turn"].as_i64()),
        (Some("acknowledged"), Some("injected"), Some(4))
    );

    admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({})).await.expect(200);
    let command = stream.next().await.unwrap();
    assert_eq!((command["type"].as_str(), command["command"]["name"].as_str()), (Some("command"), Some("stop")));
    server.stop().await;
}
