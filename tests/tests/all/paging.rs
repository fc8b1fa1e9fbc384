//! Paging with any page size and equal timestamps, during writes: a reader sees exactly the log.

use atoll_tests::actor::Actor;
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::scale::{choose_seed, scale_count};
use atoll_tests::server::TestServer;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

on_both_databases!(
    pages_never_skip_or_repeat_events,
    filters_and_orders_match_the_log,
    retention_removes_whole_prefixes
);

const EVENT_TYPES: [&str; 4] = ["agent.message", "agent.usage", "agent.tool_use", "build.step"];

fn event_seqs(events: &[Value]) -> Vec<i64> {
    events.iter().map(|event| event["seq"].as_i64().unwrap()).collect()
}

async fn write_random_events(worker: &mut ManualWorker, rng: &mut StdRng) {
    let count = rng.random_range(1..40);
    let events: Vec<Value> = (0..count)
        .map(|_| {
            let key = worker.next_key;
            worker.next_key += 1;
            build_event(key, EVENT_TYPES[rng.random_range(0..EVENT_TYPES.len())], json!({ "n": key }))
        })
        .collect();
    worker.send_batch(events).await.expect_status(200);
}

/// Reads the trajectory in one direction with random page sizes, and writes events in between.
async fn read_all_pages(admin: &Actor, worker: &mut ManualWorker, rng: &mut StdRng, backward: bool) -> Vec<Value> {
    let mut read: Vec<Value> = Vec::new();
    let mut cursor = String::new();
    let mut writes = 3;
    loop {
        let limit = rng.random_range(1..60);
        let direction = if backward { "backward" } else { "forward" };
        let path = format!("/sandboxes/{}/trajectory?limit={limit}&direction={direction}{cursor}", worker.sandbox_id);
        let page = admin.get(&path).await.expect_status(200);
        let events = page["events"].as_array().unwrap();
        if backward {
            read.splice(0..0, events.iter().cloned());
        } else {
            read.extend(events.iter().cloned());
        }
        if writes > 0 && rng.random_bool(0.5) {
            writes -= 1;
            write_random_events(worker, rng).await;
        }
        let next = if backward { &page["prev_cursor"] } else { &page["next_cursor"] };
        assert_eq!(next.is_string() || !backward, page["has_more"].as_bool().unwrap() || !backward);
        match next.as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return read,
        }
    }
}

async fn pages_never_skip_or_repeat_events(kind: DatabaseKind) {
    let mut rng = StdRng::seed_from_u64(choose_seed("paging"));
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    for _ in 0..scale_count(40) {
        let sandbox = admin.create_external_sandbox(json!({})).await;
        let mut worker = ManualWorker::new(&admin, &sandbox);
        // Once the sandbox is running, only the worker adds events.
        worker.send_heartbeat("working").await.expect_status(200);
        for _ in 0..rng.random_range(0..6) {
            write_random_events(&mut worker, &mut rng).await;
        }
        let before = admin.all_events(&sandbox.id).await;
        let forward = read_all_pages(&admin, &mut worker, &mut rng, false).await;
        let log = admin.all_events(&sandbox.id).await;
        assert_eq!(event_seqs(&log), (1..=log.len() as i64).collect::<Vec<_>>());
        assert_eq!(event_seqs(&log[..before.len()]), event_seqs(&before));
        let trajectory_seqs = |events: &[Value]| -> Vec<i64> {
            event_seqs(&events.iter().filter(|event| event["type"] != "agent.usage").cloned().collect::<Vec<_>>())
        };
        // The reader cannot see events that the worker wrote after the last page.
        assert_eq!(event_seqs(&forward), trajectory_seqs(&log)[..forward.len()]);
        assert!(forward.len() >= trajectory_seqs(&before).len());
        let start = admin.all_events(&sandbox.id).await;
        let backward = read_all_pages(&admin, &mut worker, &mut rng, true).await;
        assert_eq!(event_seqs(&backward), trajectory_seqs(&start));
        let page = admin.get(&format!("/sandboxes/{}/trajectory?limit=1", sandbox.id)).await.expect_status(200);
        let log = admin.all_events(&sandbox.id).await;
        assert_eq!(page["total_events"], log.len());
        assert_eq!(page["trajectory_events"], trajectory_seqs(&log).len());
    }
    server.stop().await;
}

async fn filters_and_orders_match_the_log(kind: DatabaseKind) {
    let mut rng = StdRng::seed_from_u64(choose_seed("filters"));
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    for _ in 0..10 {
        write_random_events(&mut worker, &mut rng).await;
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
                let page = admin.get(&path).await.expect_status(200);
                found.extend(event_seqs(page["items"].as_array().unwrap()));
                match page["next_cursor"].as_str() {
                    Some(next) => cursor = format!("&cursor={next}"),
                    None => break,
                }
            }
            let mut expected = event_seqs(&log.iter().filter(|event| keep(event)).cloned().collect::<Vec<_>>());
            if order == "desc" {
                expected.reverse();
            }
            assert_eq!(found, expected, "{query} {order}");
        }
    }
    server.stop().await;
}

async fn retention_removes_whole_prefixes(kind: DatabaseKind) {
    let keep_briefly = |options: &mut atoll_server::options::Options| {
        options.config.retention.events = Some(std::time::Duration::from_micros(1));
    };
    let server = TestServer::start_with(kind, keep_briefly).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    worker.send_events(&["agent.message", "agent.usage", "agent.message"]).await;
    let expired = admin.post("/gc", json!({})).await.expect_status(200);
    assert_eq!(expired["events"], 0, "`retention.events` counts from the end of a sandbox");
    let live = admin.post("/gc", json!({ "all": true })).await.expect_status(200);
    assert_eq!(live["events"], 0, "a live sandbox must keep all events");
    admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({ "results": "discard" })).await.expect_status(200);
    let before = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    let dry = admin.post("/gc", json!({ "all": true, "dry_run": true })).await.expect_status(200);
    let swept = admin.post("/gc", json!({ "all": true })).await.expect_status(200);
    assert_eq!((&dry["events"], dry["dry_run"].as_bool()), (&swept["events"], Some(true)));
    let after = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    assert_eq!(after["first_seq"], before["last_seq"], "the newest event must stay");
    let left = admin.all_events(&sandbox.id).await;
    assert_eq!(event_seqs(&left), [before["last_seq"].as_i64().unwrap()]);
    let page = admin.get(&format!("/sandboxes/{}/trajectory", sandbox.id)).await.expect_status(200);
    assert_eq!((page["total_events"].as_i64(), page["trajectory_events"].as_i64()), (Some(1), Some(1)));
    let log = admin.get(&format!("/sandboxes/{}/logs", sandbox.id)).await.expect_status(200);
    let lines: Vec<&str> = log.as_str().unwrap().lines().collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains(" sandbox.completed "), "{log}");
    server.stop().await;
}
