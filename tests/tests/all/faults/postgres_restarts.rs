//! Restarts of PostgreSQL under load: the server refuses requests with 503, loses no accepted write, and stores
//! retried requests once.

use super::{create_temp_dir, start_server};
use atoll_test_wait::{poll_for, poll_until};
use atoll_tests::actor::{Actor, ApiResponse, ExternalSandbox};
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::postgres::Postgres;
use atoll_tests::scale;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Restarts at full scale.
const FULL_SCALE_RESTARTS: usize = 30;

/// Sends a request until the server accepts it. Every refusal must be `store_unavailable`.
async fn send_until_accepted(request: RequestBuilder, success: u16, refusals: &mut usize) -> Value {
    let mut attempts = 0;
    let accepted = poll_for("the server to reconnect to the database", || {
        attempts += 1;
        let sent = request.try_clone().unwrap().send();
        async move {
            let answer = ApiResponse::from_response(sent.await.unwrap()).await;
            if answer.status.as_u16() == success {
                return Some(answer.body);
            }
            answer.expect_problem(503, "store_unavailable");
            None
        }
    });
    let body = accepted.await;
    *refusals += attempts - 1;
    body
}

/// The accepted and the refused requests of one client.
#[derive(Debug, Default)]
struct RequestCounts {
    accepted: usize,
    refusals: usize,
}

/// Sends batches of events under a worker's keys.
async fn send_batches(worker: ManualWorker, done: Arc<AtomicBool>) -> RequestCounts {
    let mut counts = RequestCounts::default();
    while !done.load(Ordering::SeqCst) {
        let first = counts.accepted as i64 + 1;
        let events: Vec<Value> = (first..first + 7)
            .map(|n| build_event(n, "agent.message", json!({ "n": n, "text": "x".repeat(500) })))
            .collect();
        let body = json!({ "stream": worker.stream, "events": events });
        let request =
            worker.actor.request(Method::POST, &format!("/sandboxes/{}/events", worker.sandbox_id)).json(&body);
        let answer = send_until_accepted(request, 200, &mut counts.refusals).await;
        assert_eq!(answer["last_key"], first + 6);
        // An earlier attempt may have been stored despite its error: then these are duplicates.
        assert_eq!(answer["stored"].as_i64().unwrap() + answer["duplicates"].as_i64().unwrap(), 7);
        counts.accepted += 7;
    }
    counts
}

/// Posts one body after another, each with its own idempotency key.
async fn post_with_keys(
    actor: Actor,
    path: String,
    success: u16,
    body: fn(usize) -> Value,
    done: Arc<AtomicBool>,
) -> RequestCounts {
    let mut counts = RequestCounts::default();
    while !done.load(Ordering::SeqCst) {
        let request = actor.request(Method::POST, &path).header("Idempotency-Key", counts.accepted.to_string());
        send_until_accepted(request.json(&body(counts.accepted)), success, &mut counts.refusals).await;
        counts.accepted += 1;
    }
    counts
}

/// Reads events at a moderate rate. The server refuses readers in the same way.
async fn read_repeatedly(admin: Actor, sandbox: String, done: Arc<AtomicBool>) -> RequestCounts {
    let mut counts = RequestCounts::default();
    while !done.load(Ordering::SeqCst) {
        let request = admin.request(Method::GET, &format!("/sandboxes/{sandbox}/events?limit=10"));
        send_until_accepted(request, 200, &mut counts.refusals).await;
        counts.accepted += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    counts
}

fn restart_postgres(postgres: &Postgres, mut rng: StdRng) {
    for _ in 0..scale::scale_count(FULL_SCALE_RESTARTS) {
        std::thread::sleep(Duration::from_millis(rng.random_range(200..1500)));
        if rng.random_bool(0.5) {
            postgres.crash()
        } else {
            postgres.stop_process()
        }
        std::thread::sleep(Duration::from_millis(rng.random_range(0..700)));
        postgres.start_process();
    }
}

/// The numbers in a log's events of one type, in order.
fn event_numbers(log: &[Value], kind: &str) -> Vec<u64> {
    log.iter().filter(|event| event["type"] == kind).filter_map(|event| event["data"]["n"].as_u64()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_restarts_lose_and_duplicate_nothing() {
    let rng = StdRng::seed_from_u64(scale::choose_seed("postgres restarts"));
    let dir = create_temp_dir();
    let at = dir.path().to_owned();
    let (postgres, server) = tokio::task::spawn_blocking(move || {
        let postgres = Postgres::start();
        let url = format!("--database-url={}", postgres.create_database());
        let server = start_server(&at, "", &[url]);
        (postgres, server)
    })
    .await
    .unwrap();
    let admin = Actor::new(&server.url, Some(&server.admin_token()));
    let mut sandboxes: Vec<ExternalSandbox> = Vec::new();
    for _ in 0..2 {
        sandboxes.push(admin.create_external_sandbox(json!({})).await);
    }
    let done = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = sandboxes
        .iter()
        .map(|sandbox| tokio::spawn(send_batches(ManualWorker::new(&admin, sandbox), Arc::clone(&done))))
        .collect();
    let path = |rest: &str| format!("/sandboxes/{}/{rest}", sandboxes[0].id);
    let single = |n: usize| json!({ "event_type": "my.single", "event_data": { "n": n + 1 } });
    let worker = admin.with_token(&sandboxes[0].token);
    let singles = tokio::spawn(post_with_keys(worker, path("events"), 200, single, Arc::clone(&done)));
    let message = |n: usize| json!({ "content": format!("message {n}") });
    let messages = tokio::spawn(post_with_keys(admin.clone(), path("messages"), 201, message, Arc::clone(&done)));
    let reading = tokio::spawn(read_repeatedly(admin.clone(), sandboxes[0].id.clone(), Arc::clone(&done)));

    let postgres = tokio::task::spawn_blocking(move || {
        restart_postgres(&postgres, rng);
        postgres
    });
    let postgres = postgres.await.unwrap();
    // The workers continue after the last restart.
    for sandbox in &sandboxes {
        let last_seq = async || {
            let request = admin.request(Method::GET, &format!("/sandboxes/{}", sandbox.id));
            send_until_accepted(request, 200, &mut 0).await["last_seq"].as_i64()
        };
        let before = last_seq().await;
        Box::pin(poll_until("another batch of events", async || last_seq().await > before)).await;
    }
    done.store(true, Ordering::SeqCst);

    let mut totals = Vec::new();
    for (sandbox, worker) in sandboxes.iter().zip(workers) {
        let counts = worker.await.unwrap();
        let log = admin.all_events(&sandbox.id).await;
        assert!(log.iter().enumerate().all(|(index, event)| event["seq"] == index + 1), "seq must have no gap");
        let expected: Vec<u64> = (1..=counts.accepted as u64).collect();
        assert_eq!(event_numbers(&log, "agent.message"), expected, "each event once, in order");
        totals.push(counts);
    }
    let (singles, messages) = (singles.await.unwrap(), messages.await.unwrap());
    let log = admin.all_events(&sandboxes[0].id).await;
    assert_eq!(event_numbers(&log, "my.single"), (1..=singles.accepted as u64).collect::<Vec<_>>());
    assert_eq!(log.iter().filter(|event| event["type"] == "message.queued").count(), messages.accepted);
    totals.extend([singles, messages, reading.await.unwrap()]);
    assert!(totals.iter().all(|counts| counts.accepted > 0));
    assert!(totals.iter().any(|counts| counts.refusals > 0), "no client noticed a restart");
    let line = format!("postgres restarts: {totals:?}\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    tokio::task::spawn_blocking(move || drop((server, postgres))).await.unwrap();
}
