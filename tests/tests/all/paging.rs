//! Reading page by page: any page sizes, equal timestamps, while others write. What a reader sees
//! is the log.

use atoll_tests::actor::Actor;
use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::scale::{scaled, seed};
use atoll_tests::server::TestServer;
use atoll_tests::worker::{HandWorker, event};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

on_both_databases!(pages_never_skip_or_repeat, filters_and_orders, retention_cuts_whole_prefixes);

const TYPES: [&str; 4] = ["agent.message", "agent.usage", "agent.tool_use", "build.step"];

fn seqs(events: &[Value]) -> Vec<i64> {
    events.iter().map(|event| event["seq"].as_i64().unwrap()).collect()
}

async fn write_some(worker: &mut HandWorker, rng: &mut StdRng) {
    let count = rng.random_range(1..40);
    let events: Vec<Value> = (0..count)
        .map(|_| {
            let key = worker.next_key;
            worker.next_key += 1;
            event(key, TYPES[rng.random_range(0..TYPES.len())], json!({ "n": key }))
        })
        .collect();
    worker.batch(events).await.expect(200);
}

/// Follows one kind of cursor from end to end with random page sizes; something is written in between.
async fn walk(admin: &Actor, worker: &mut HandWorker, rng: &mut StdRng, backward: bool) -> Vec<Value> {
    let mut seen: Vec<Value> = Vec::new();
    let mut cursor = String::new();
    let mut writes = 3;
    loop {
        let limit = rng.random_range(1..60);
        let direction = if backward { "backward" } else { "forward" };
        let path = format!("/sandboxes/{}/trajectory?limit={limit}&direction={direction}{cursor}", worker.id);
        let page = admin.get(&path).await.expect(200);
        let events = page["events"].as_array().unwrap();
        if backward {
            seen.splice(0..0, events.iter().cloned());
        } else {
            seen.extend(events.iter().cloned());
        }
        if writes > 0 && rng.random_bool(0.5) {
            writes -= 1;
            write_some(worker, rng).await;
        }
        let next = if backward { &page["prev_cursor"] } else { &page["next_cursor"] };
        assert_eq!(next.is_string() || !backward, page["has_more"].as_bool().unwrap() || !backward);
        match next.as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return seen,
        }
    }
}

async fn pages_never_skip_or_repeat(kind: Kind) {
    let mut rng = StdRng::seed_from_u64(seed("paging"));
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    for _ in 0..scaled(40) {
        let sandbox = admin.external(json!({})).await;
        let mut worker = HandWorker::new(&admin, &sandbox);
        // Running: from here on only the worker adds to the log.
        worker.heartbeat("working").await.expect(200);
        for _ in 0..rng.random_range(0..6) {
            write_some(&mut worker, &mut rng).await;
        }
        let before = admin.all_events(&sandbox.id).await;
        let forward = walk(&admin, &mut worker, &mut rng, false).await;
        let log = admin.all_events(&sandbox.id).await;
        assert_eq!(seqs(&log), (1..=log.len() as i64).collect::<Vec<_>>());
        assert_eq!(seqs(&log[..before.len()]), seqs(&before));
        let quiet = |events: &[Value]| -> Vec<i64> {
            seqs(&events.iter().filter(|event| event["type"] != "agent.usage").cloned().collect::<Vec<_>>())
        };
        // What was written behind the last page was not there to be seen.
        assert_eq!(seqs(&forward), quiet(&log)[..forward.len()]);
        assert!(forward.len() >= quiet(&before).len());
        let start = admin.all_events(&sandbox.id).await;
        let backward = walk(&admin, &mut worker, &mut rng, true).await;
        assert_eq!(seqs(&backward), quiet(&start));
        let page = admin.get(&format!("/sandboxes/{}/trajectory?limit=1", sandbox.id)).await.expect(200);
        let log = admin.all_events(&sandbox.id).await;
        assert_eq!(page["total_events"], log.len());
        assert_eq!(page["trajectory_events"], quiet(&log).len());
    }
    server.stop().await;
}

async fn filters_and_orders(kind: Kind) {
    let mut rng = StdRng::seed_from_u64(seed("filters"));
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let mut worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("working").await.expect(200);
    for _ in 0..10 {
        write_some(&mut worker, &mut rng).await;
    }
    let log = admin.all_events(&sandbox.id).await;
    for (query, keep) in [
        (
            "type=agent.*",
            Box::new(|e: &Value| e["type"].as_str().unwrap().starts_with("agent.")) as Box<dyn Fn(&Value) -> bool>,
        ),
        ("type=build.step,agent.usage", Box::new(|e: &Value| e["type"] == "build.step" || e["type"] == "agent.usage")),
        ("source=system", Box::new(|e: &Value| e["source"] == "system")),
        ("until=2026-01-01T00:00:01Z", Box::new(|e: &Value| e["at"].as_str().unwrap() < "2026-01-01T00:00:01")),
        ("since=2026-01-01T00:00:01Z", Box::new(|e: &Value| e["at"].as_str().unwrap() >= "2026-01-01T00:00:01")),
    ] {
        for order in ["asc", "desc"] {
            let mut found = Vec::new();
            let mut cursor = String::new();
            loop {
                let limit = rng.random_range(1..80);
                let path = format!("/sandboxes/{}/events?{query}&order={order}&limit={limit}{cursor}", sandbox.id);
                let page = admin.get(&path).await.expect(200);
                found.extend(seqs(page["items"].as_array().unwrap()));
                match page["next_cursor"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            let mut expected = seqs(&log.iter().filter(|event| keep(event)).cloned().collect::<Vec<_>>());
            if order == "desc" {
                expected.reverse();
            }
            assert_eq!(found, expected, "{query} {order}");
        }
    }
    server.stop().await;
}

async fn retention_cuts_whole_prefixes(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let mut worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("working").await.expect(200);
    worker.say(&["agent.message", "agent.usage", "agent.message"]).await;
    let live = admin.post("/gc", json!({ "all": true })).await.expect(200);
    assert_eq!(live["events"], 0, "a live sandbox keeps everything");
    admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({ "results": "discard" })).await.expect(200);
    let before = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200);
    let dry = admin.post("/gc", json!({ "all": true, "dry_run": true })).await.expect(200);
    let swept = admin.post("/gc", json!({ "all": true })).await.expect(200);
    assert_eq!((&dry["events"], dry["dry_run"].as_bool()), (&swept["events"], Some(true)));
    let after = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200);
    assert_eq!(after["first_seq"], before["last_seq"], "the newest one stays");
    let left = admin.all_events(&sandbox.id).await;
    assert_eq!(seqs(&left), [before["last_seq"].as_i64().unwrap()]);
    let page = admin.get(&format!("/sandboxes/{}/trajectory", sandbox.id)).await.expect(200);
    assert_eq!((page["total_events"].as_i64(), page["trajectory_events"].as_i64()), (Some(1), Some(1)));
    server.stop().await;
}
