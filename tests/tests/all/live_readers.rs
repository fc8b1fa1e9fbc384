//! Live readers: with disconnections at any point, a reader sees exactly the log.

use atoll_client::api::FollowedSandboxes;
use atoll_client::{Client, EventSocketItem, EventStreamItem};
use atoll_tests::actor::Actor;
use atoll_tests::database::DatabaseKind;
use atoll_tests::event_reader::{EventWebSocket, read_server_sent_events};
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::scale::{choose_seed, scale_count};
use atoll_tests::server::TestServer;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;

on_both_databases!(
    readers_that_reconnect_see_the_whole_log,
    a_reader_of_all_sandboxes_sees_new_ones_from_seq_1,
    the_client_resumes_both_streams_after_a_restart_of_the_server,
    readers_of_a_truncated_log_get_a_truncated_frame,
    a_ticket_opens_one_connection,
    a_worker_stream_delivers_live_output_messages_and_commands,
);

fn event_seq(event: &Value) -> i64 {
    event["seq"].as_i64().unwrap()
}

/// Writes `total` events in bursts.
async fn write_events(mut worker: ManualWorker, total: i64, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    while worker.next_key <= total {
        let last = (worker.next_key + rng.random_range(0..30)).min(total);
        let events =
            (worker.next_key..=last).map(|key| build_event(key, "agent.message", json!({ "n": key }))).collect();
        worker.send_batch(events).await.expect_status(200);
        worker.next_key = last + 1;
        if rng.random_bool(0.3) {
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..20))).await;
        }
    }
}

/// Reads by SSE, and disconnects after a random number of events each time.
async fn read_by_sse(admin: Actor, sandbox: String, until: i64, seed: u64) -> Vec<i64> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut seqs: Vec<i64> = Vec::new();
    while seqs.last().is_none_or(|last| *last < until) {
        let from = seqs.last().copied().unwrap_or(0);
        let most = rng.random_range(1..120);
        seqs.extend(read_server_sent_events(&admin, &sandbox, from, most, until).await.iter().map(event_seq));
    }
    seqs
}

/// Reads two sandboxes by one WebSocket, and disconnects after a random number of frames each time.
async fn read_by_web_socket(admin: Actor, sandboxes: [String; 2], until: i64, seed: u64) -> BTreeMap<String, Vec<i64>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut logs: BTreeMap<String, Vec<i64>> = sandboxes.iter().map(|id| (id.clone(), Vec::new())).collect();
    let done = |logs: &BTreeMap<String, Vec<i64>>| logs.values().all(|seqs| seqs.last().is_some_and(|s| *s >= until));
    while !done(&logs) {
        let mut socket = EventWebSocket::open(&admin, "/events/ws").await;
        let since: BTreeMap<&str, i64> =
            logs.iter().map(|(id, seqs)| (id.as_str(), seqs.last().copied().unwrap_or(0))).collect();
        let named = if rng.random_bool(0.5) { json!("*") } else { json!(sandboxes) };
        socket.subscribe(named, json!(since)).await;
        for _ in 0..rng.random_range(1..12) {
            if done(&logs) {
                break;
            }
            let frame = socket.next_frame().await.unwrap();
            for event in frame["events"].as_array().into_iter().flatten() {
                if let Some(seqs) = logs.get_mut(event["sandbox_id"].as_str().unwrap()) {
                    seqs.push(event_seq(event));
                }
            }
        }
    }
    logs
}

async fn readers_that_reconnect_see_the_whole_log(kind: DatabaseKind) {
    let first_seed = choose_seed("follow");
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    for round in 0..scale_count(20) as u64 {
        let seed = first_seed.wrapping_add(round);
        let (one, two) =
            (admin.create_external_sandbox(json!({})).await, admin.create_external_sandbox(json!({})).await);
        let total = 300;
        // The server adds three events: session opened, sandbox pending, sandbox creating.
        let until = total + 3;
        let writers = [&one, &two].map(|s| tokio::spawn(write_events(ManualWorker::new(&admin, s), total, seed)));
        let sse = tokio::spawn(read_by_sse(admin.clone(), one.id.clone(), until, seed));
        let ids = [one.id.clone(), two.id.clone()];
        let socket = tokio::spawn(read_by_web_socket(admin.clone(), ids, until, seed + 1));
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

async fn a_reader_of_all_sandboxes_sees_new_ones_from_seq_1(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let old = admin.create_external_sandbox(json!({})).await;
    let mut socket = EventWebSocket::open(&admin, "/events/ws").await;
    socket.subscribe(json!("*"), json!({})).await;
    // Write events until the first frame arrives: then the subscription is active.
    let mut worker = ManualWorker::new(&admin, &old);
    let mut first = None;
    while first.is_none() {
        worker.send_events(&["agent.message"]).await;
        let waiting = timeout(Duration::from_millis(200), socket.next_frame()).await;
        first = waiting.ok().flatten();
    }
    let first = first.unwrap();
    assert!(event_seq(&first["events"][0]) > 2, "an old sandbox must not start from seq 1: {first}");
    let new = admin.create_external_sandbox(json!({})).await;
    // Skip frames with late events of the old sandbox.
    let mut frame = first;
    while frame["events"][0]["sandbox_id"] == old.id.as_str() {
        frame = socket.next_frame().await.unwrap();
    }
    assert_eq!(frame["events"][0]["sandbox_id"].as_str(), Some(new.id.as_str()), "{frame}");
    assert_eq!(event_seq(&frame["events"][0]), 1);
    server.stop().await;
}

async fn log_after(admin: &Actor, sandbox: &str, seq: i64) -> Vec<i64> {
    admin.all_events(sandbox).await.iter().map(event_seq).filter(|later| *later > seq).collect()
}

async fn the_client_resumes_both_streams_after_a_restart_of_the_server(kind: DatabaseKind) {
    let mut server = TestServer::start(kind).await;
    let admin = server.admin();
    let (busy, quiet) =
        (admin.create_external_sandbox(json!({})).await, admin.create_external_sandbox(json!({})).await);
    let (mut busy_worker, mut quiet_worker) = (ManualWorker::new(&admin, &busy), ManualWorker::new(&admin, &quiet));
    let client = Client::new(&admin.url, admin.token.clone().unwrap()).unwrap();
    let mut stream = client.follow_events(busy.id.parse().unwrap(), &[], 0);
    let mut socket = client.open_event_socket(FollowedSandboxes::all(), &[], BTreeMap::new());

    // Both are connected when each has shown an event. The quiet sandbox has none yet.
    let mut streamed = Vec::new();
    let mut followed: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    while streamed.is_empty() || followed.is_empty() {
        if let Ok(item) = timeout(Duration::from_millis(200), socket.next()).await
            && let EventSocketItem::Event(event) = item.unwrap()
        {
            followed.entry(event.sandbox_id.to_string()).or_default().push(event.seq);
        }
        busy_worker.send_events(&["agent.message"]).await;
        if let EventStreamItem::Event(event) = stream.next().await.unwrap() {
            streamed.push(event.seq);
        }
    }
    // The creation of a sandbox may log events after the response, so ask the socket where it starts.
    let [busy_start, quiet_start] = [&busy.id, &quiet.id].map(|id| match followed.get(id) {
        Some(seqs) => seqs[0] - 1,
        None => socket.positions()[&id.parse().unwrap()],
    });
    server.restart().await;
    let new = admin.create_external_sandbox(json!({})).await;
    busy_worker.send_events(&["agent.message"]).await;
    quiet_worker.send_events(&["agent.message"]).await;

    let expected = BTreeMap::from([
        (busy.id.clone(), log_after(&admin, &busy.id, busy_start).await),
        (quiet.id.clone(), log_after(&admin, &quiet.id, quiet_start).await),
        (new.id.clone(), log_after(&admin, &new.id, 0).await),
    ]);
    let is_complete = |seen: &BTreeMap<String, Vec<i64>>| {
        expected.iter().all(|(id, log)| seen.get(id).and_then(|seqs| seqs.last()) == log.last())
    };
    while !is_complete(&followed) {
        let item = timeout(Duration::from_secs(20), socket.next()).await;
        let item = item.unwrap_or_else(|_| panic!("some events are lost: {followed:?} of {expected:?}"));
        if let EventSocketItem::Event(event) = item.unwrap() {
            followed.entry(event.sandbox_id.to_string()).or_default().push(event.seq);
        }
    }
    assert_eq!(followed, expected);
    let whole = log_after(&admin, &busy.id, 0).await;
    while streamed.last() != whole.last() {
        if let EventStreamItem::Event(event) = stream.next().await.unwrap() {
            streamed.push(event.seq);
        }
    }
    assert_eq!(streamed, whole);
    server.stop().await;
}

async fn readers_of_a_truncated_log_get_a_truncated_frame(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    worker.send_events(&["agent.message", "agent.message"]).await;
    admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({ "results": "discard" })).await.expect_status(200);
    admin.post("/gc", json!({ "all": true })).await.expect_status(200);
    let first_seq = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200)["first_seq"].clone();
    let mut socket = EventWebSocket::open(&admin, "/events/ws").await;
    let since = BTreeMap::from([(sandbox.id.clone(), 0)]);
    socket.subscribe(json!([sandbox.id]), json!(since)).await;
    let truncated = socket.next_frame().await.unwrap();
    assert_eq!((truncated["type"].as_str(), &truncated["first_seq"]), (Some("truncated"), &first_seq));
    assert_eq!(socket.next_frame().await.unwrap()["events"][0]["seq"], first_seq);
    let caught_up = socket.next_frame().await.unwrap();
    assert_eq!(caught_up["type"], "caught_up");
    server.stop().await;
}

/// The reader stops until the connection's buffers and the server's tail hold less than was written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_gets_a_lagged_frame_and_then_the_whole_log() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    let mut socket = EventWebSocket::open(&admin, "/events/ws").await;
    socket.subscribe(json!([sandbox.id]), json!(BTreeMap::from([(sandbox.id.clone(), 0)]))).await;
    let (mut seqs, mut lagged) = (Vec::new(), Vec::new());
    let mut read_frame = async |seqs: &mut Vec<i64>| {
        let frame = socket.next_frame().await.unwrap();
        match frame["type"].as_str() {
            Some("events") => seqs.extend(frame["events"].as_array().unwrap().iter().map(event_seq)),
            Some("lagged") => lagged.push((seqs.last().copied(), frame["resume"][&sandbox.id].as_i64())),
            _ => {}
        }
        frame["type"] == "caught_up"
    };
    while !read_frame(&mut seqs).await {}
    let padding = "x".repeat(40_000);
    for _ in 0..12 {
        let keys = worker.next_key..worker.next_key + 100;
        let event = |key| build_event(key, "agent.message", json!({ "text": padding }));
        worker.send_batch(keys.clone().map(event).collect()).await.expect_status(200);
        worker.next_key = keys.end;
    }
    let last_seq = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200)["last_seq"].as_i64();
    while seqs.last().copied() < last_seq {
        read_frame(&mut seqs).await;
    }
    assert_eq!(seqs, (1..=last_seq.unwrap()).collect::<Vec<_>>());
    assert!(!lagged.is_empty(), "the reader must have fallen behind");
    assert!(lagged.iter().all(|(read, resume)| read == resume), "the frame names the last event: {lagged:?}");
    server.stop().await;
}

async fn a_ticket_opens_one_connection(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let ticket = admin.post("/ws-tickets", json!({})).await.expect_status(201)["ticket"].as_str().unwrap().to_owned();
    let path = format!("/events/ws?ticket={ticket}");
    let anon = server.anon();
    let mut socket = EventWebSocket::open(&anon, &path).await;
    socket.subscribe(json!("*"), json!({})).await;
    assert!(EventWebSocket::try_open(&anon, &path).await.is_err());
    assert!(EventWebSocket::try_open(&anon, "/events/ws").await.is_err());
    server.stop().await;
}

async fn a_worker_stream_delivers_live_output_messages_and_commands(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    let mut stream =
        EventWebSocket::open(&worker.actor, &format!("/sandboxes/{}/stream?stream={}", sandbox.id, worker.stream))
            .await;
    // A reader of all sandboxes gets live text, although the log has no new event.
    let newest = admin.create_external_sandbox(json!({})).await;
    let mut reader = EventWebSocket::open(&admin, "/events/ws").await;
    reader.subscribe(json!("*"), json!({ (newest.id): 0 })).await;
    while reader.next_frame().await.unwrap()["type"] != "caught_up" {}
    let last_seq = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200)["last_seq"].clone();
    for text in ["some", " text"] {
        stream.send_frame(json!({ "type": "live", "after_key": 0, "data": { "text": text } })).await;
        let live = reader.next_frame().await.unwrap();
        assert_eq!((&live["type"], &live["data"]["text"]), (&json!("live"), &json!(text)));
        assert_eq!(live["after_seq"], last_seq);
    }

    reader.subscribe(json!([sandbox.id]), json!({})).await;
    assert_eq!(reader.next_frame().await.unwrap()["type"], "caught_up");
    stream.send_frame(json!({ "type": "live", "after_key": 0, "data": { "text": "typing" } })).await;
    let live = reader.next_frame().await.unwrap();
    assert_eq!((live["type"].as_str(), live["data"]["text"].as_str()), (Some("live"), Some("typing")));

    let path = format!("/sandboxes/{}/messages", sandbox.id);
    admin.post(&path, json!({ "content": "hello" })).await.expect_status(201);
    let frame = stream.next_frame().await.unwrap();
    let message = &frame["message"];
    assert_eq!((frame["type"].as_str(), message["content"].as_str()), (Some("message"), Some("hello")));
    let ack = json!({ "stream": worker.stream, "lease": message["lease"], "how": "injected", "turn": 4 });
    let id = message["id"].as_str().unwrap();
    for _ in 0..2 {
        // A repeated acknowledgement is harmless.
        worker.actor.post(&format!("{path}/{id}/ack"), ack.clone()).await.expect_status(200);
    }
    let listed = admin.get(&path).await.expect_status(200);
    let listed = &listed["items"][0];
    assert_eq!(
        (listed["state"].as_str(), listed["how"].as_str(), listed["turn"].as_i64()),
        (Some("acknowledged"), Some("injected"), Some(4))
    );

    admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({})).await.expect_status(200);
    let command = stream.next_frame().await.unwrap();
    assert_eq!((command["type"].as_str(), command["command"]["name"].as_str()), (Some("command"), Some("stop")));
    server.stop().await;
}
