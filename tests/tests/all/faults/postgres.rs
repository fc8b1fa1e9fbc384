//! PostgreSQL that goes and comes under load: requests are refused with 503, nothing that was
//! answered is lost, and what is tried again is there once.

use super::{PATIENCE, serve, temporary};
use atoll_tests::actor::{Actor, Answer, External};
use atoll_tests::postgres::Postgres;
use atoll_tests::scale;
use atoll_tests::worker::{HandWorker, event};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Restarts of a whole run.
const RESTARTS: usize = 30;

/// Sends a request until it is taken; every refusal until then says that nothing was stored.
async fn until_taken(request: RequestBuilder, taken: u16, refusals: &mut usize) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = Answer::of(request.try_clone().unwrap().send().await.unwrap()).await;
        if answer.status.as_u16() == taken {
            return answer.body;
        }
        answer.refused(503, "store_unavailable");
        *refusals += 1;
        assert!(Instant::now() < deadline, "the connections do not come back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How much a client got stored, and how often it was refused.
#[derive(Debug, Default)]
struct Tally {
    taken: usize,
    refusals: usize,
}

/// Batches under a worker's keys.
async fn batches(worker: HandWorker, enough: Arc<AtomicBool>) -> Tally {
    let mut tally = Tally::default();
    while !enough.load(Ordering::SeqCst) {
        let first = tally.taken as i64 + 1;
        let events: Vec<Value> =
            (first..first + 7).map(|n| event(n, "agent.message", json!({ "n": n, "text": "x".repeat(500) }))).collect();
        let body = json!({ "stream": worker.stream, "events": events });
        let request = worker.actor.request(Method::POST, &format!("/sandboxes/{}/events", worker.id)).json(&body);
        let answer = until_taken(request, 200, &mut tally.refusals).await;
        assert_eq!(answer["last_key"], first + 6);
        // The try before may have been stored after all: then these are duplicates.
        assert_eq!(answer["stored"].as_i64().unwrap() + answer["duplicates"].as_i64().unwrap(), 7);
        tally.taken += 7;
    }
    tally
}

/// One thing after the other, each under a key of its own.
async fn keyed(actor: Actor, path: String, taken: u16, body: fn(usize) -> Value, enough: Arc<AtomicBool>) -> Tally {
    let mut tally = Tally::default();
    while !enough.load(Ordering::SeqCst) {
        let request = actor.request(Method::POST, &path).header("Idempotency-Key", tally.taken.to_string());
        until_taken(request.json(&body(tally.taken)), taken, &mut tally.refusals).await;
        tally.taken += 1;
    }
    tally
}

/// Readers are refused in the same way.
async fn reads(admin: Actor, sandbox: String, enough: Arc<AtomicBool>) -> Tally {
    let mut tally = Tally::default();
    while !enough.load(Ordering::SeqCst) {
        let request = admin.request(Method::GET, &format!("/sandboxes/{sandbox}/events?limit=10"));
        until_taken(request, 200, &mut tally.refusals).await;
        tally.taken += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tally
}

fn go_and_come(postgres: &Postgres, mut rng: StdRng) {
    for _ in 0..scale::scaled(RESTARTS) {
        std::thread::sleep(Duration::from_millis(rng.random_range(200..1500)));
        if rng.random_bool(0.5) {
            postgres.crash()
        } else {
            postgres.down()
        }
        std::thread::sleep(Duration::from_millis(rng.random_range(0..700)));
        postgres.up();
    }
}

/// The numbers in the log of what one client sent, in order.
fn numbers(log: &[Value], kind: &str) -> Vec<u64> {
    log.iter().filter(|event| event["type"] == kind).filter_map(|event| event["data"]["n"].as_u64()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_goes_and_comes_and_nothing_is_lost_or_doubled() {
    let rng = StdRng::seed_from_u64(scale::seed("postgres restarts"));
    let dir = temporary();
    let at = dir.path().to_owned();
    let (postgres, server) = tokio::task::spawn_blocking(move || {
        let postgres = Postgres::start();
        let url = format!("--database-url={}", postgres.new_database());
        let server = serve(&at, "", &[url]);
        (postgres, server)
    })
    .await
    .unwrap();
    let admin = Actor::new(&server.url, Some(&server.token()));
    let mut sandboxes: Vec<External> = Vec::new();
    for _ in 0..2 {
        sandboxes.push(admin.external(json!({})).await);
    }
    let enough = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = sandboxes
        .iter()
        .map(|sandbox| tokio::spawn(batches(HandWorker::new(&admin, sandbox), Arc::clone(&enough))))
        .collect();
    let path = |rest: &str| format!("/sandboxes/{}/{rest}", sandboxes[0].id);
    let single = |n: usize| json!({ "event_type": "my.single", "event_data": { "n": n + 1 } });
    let worker = admin.with_token(&sandboxes[0].token);
    let singles = tokio::spawn(keyed(worker, path("events"), 200, single, Arc::clone(&enough)));
    let message = |n: usize| json!({ "content": format!("message {n}") });
    let messages = tokio::spawn(keyed(admin.clone(), path("messages"), 201, message, Arc::clone(&enough)));
    let reading = tokio::spawn(reads(admin.clone(), sandboxes[0].id.clone(), Arc::clone(&enough)));

    let postgres = tokio::task::spawn_blocking(move || {
        go_and_come(&postgres, rng);
        postgres
    });
    let postgres = postgres.await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    enough.store(true, Ordering::SeqCst);

    let mut figures = Vec::new();
    for (sandbox, worker) in sandboxes.iter().zip(workers) {
        let tally = worker.await.unwrap();
        let log = admin.all_events(&sandbox.id).await;
        assert!(log.iter().enumerate().all(|(index, event)| event["seq"] == index + 1), "seq has no gap");
        let wanted: Vec<u64> = (1..=tally.taken as u64).collect();
        assert_eq!(numbers(&log, "agent.message"), wanted, "each event once, in order");
        figures.push(tally);
    }
    let (singles, messages) = (singles.await.unwrap(), messages.await.unwrap());
    let log = admin.all_events(&sandboxes[0].id).await;
    assert_eq!(numbers(&log, "my.single"), (1..=singles.taken as u64).collect::<Vec<_>>());
    assert_eq!(log.iter().filter(|event| event["type"] == "message.queued").count(), messages.taken);
    figures.extend([singles, messages, reading.await.unwrap()]);
    assert!(figures.iter().all(|tally| tally.taken > 0));
    assert!(figures.iter().any(|tally| tally.refusals > 0), "nobody noticed that it was gone");
    let line = format!("postgres restarts: {figures:?}\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    tokio::task::spawn_blocking(move || drop((server, postgres))).await.unwrap();
}
