//! A full disk of the server, and one of the worker.

use super::{create_temp_dir, start_server};
use atoll_test_wait::{poll_until, wait_until};
use atoll_tests::actor::Actor;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::small_disk::SmallDisk;
use atoll_tests::worker_process::WorkerProcess;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Arc, Mutex};

/// The numbers in the events of a log, in order.
fn event_numbers(log: &[Value]) -> Vec<i64> {
    log.iter().filter_map(|event| event["data"]["n"].as_i64()).collect()
}

fn event_line(number: usize, bytes: usize) -> String {
    json!({ "type": "agent.message", "data": { "n": number, "text": "x".repeat(bytes) } }).to_string() + "\n"
}

/// Counts the keys that a worker prints.
#[derive(Clone, Default)]
struct KeyCounter(Arc<Mutex<usize>>);

impl KeyCounter {
    fn count(&self) -> usize {
        *self.0.lock().unwrap()
    }

    fn line_handler(&self) -> impl FnMut(Value) + Send + 'static {
        let keys = Arc::clone(&self.0);
        move |line| {
            if !line["key"].is_null() {
                *keys.lock().unwrap() += 1;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_a_full_disk_loses_no_accepted_event_and_recovers() {
    let Some(disk) = SmallDisk::mount("a_server_on_a_full_disk_loses_no_accepted_event_and_recovers", 68) else {
        return;
    };
    disk.fill_space(32);
    let mut server = start_server(disk.path(), "", &[]);
    let (admin, pid) = (Actor::new(&server.url, Some(&server.admin_token())), server.pid());
    let spools = create_temp_dir();
    let (manual_sandbox, worker_sandbox) =
        (admin.create_external_sandbox(json!({})).await, admin.create_external_sandbox(json!({})).await);
    let manual = ManualWorker::new(&admin, &manual_sandbox);

    let mut sent = 0;
    let batch = |after: i64| -> Vec<Value> {
        let text = "x".repeat(8000);
        (after + 1..=after + 20).map(|n| build_event(n, "agent.message", json!({ "n": n, "text": text }))).collect()
    };
    let full = loop {
        let answer = manual.send_batch(batch(sent)).await;
        match answer.status.as_u16() {
            200 => sent += 20,
            _ => break answer,
        }
        assert!(sent < 100_000, "the disk never fills");
    };
    assert_eq!(full.retry_after.as_deref(), Some("5"));
    full.expect_problem(503, "disk_full");

    // A worker whose server has a full disk spools its input.
    let keys = KeyCounter::default();
    let (mut worker, mut stdin) =
        WorkerProcess::start(&server.url, &worker_sandbox, spools.path(), keys.line_handler());
    (1..=200).for_each(|number| stdin.write_all(event_line(number, 4000).as_bytes()).unwrap());
    wait_until("a key for each line", || keys.count() == 200);

    // While the disk is full, every write fails with 503, and reads still work.
    for _ in 0..5 {
        let again = manual.send_batch(batch(sent)).await;
        assert!(["disk_full", "store_unavailable"].contains(&again.body["code"].as_str().unwrap()), "{}", again.body);
        again.expect_status(503);
    }
    admin.get("/healthz").await.expect_status(200);
    assert_eq!(event_numbers(&admin.all_events(&manual_sandbox.id).await), (1..=sent).collect::<Vec<i64>>());

    disk.free_space();
    poll_until("the server to recover", async || manual.send_batch(batch(sent)).await.status == 200).await;
    sent += 20;
    drop(stdin);
    assert_eq!(worker.wait_for_exit().code(), Some(0));
    assert_eq!(server.pid(), pid, "the server must recover without a restart");

    // The events survive a kill.
    server.restart();
    assert_eq!(event_numbers(&admin.all_events(&manual_sandbox.id).await), (1..=sent).collect::<Vec<i64>>());
    assert_eq!(event_numbers(&admin.all_events(&worker_sandbox.id).await), (1..=200).collect::<Vec<i64>>());
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_on_a_full_disk_loses_no_confirmed_event() {
    let Some(disk) = SmallDisk::mount("a_worker_on_a_full_disk_loses_no_confirmed_event", 8) else { return };
    let dir = create_temp_dir();
    let mut server = start_server(dir.path(), "", &[]);
    let admin = Actor::new(&server.url, Some(&server.admin_token()));
    let sandbox = admin.create_external_sandbox(json!({})).await;
    // Without a server the worker can send nothing, so the spool cannot shrink.
    server.kill();

    disk.fill_space(6);
    let keys = KeyCounter::default();
    let (worker, mut stdin) = WorkerProcess::start(&server.url, &sandbox, disk.path(), keys.line_handler());
    let feeding = std::thread::spawn(move || {
        (1..=300).for_each(|number| stdin.write_all(event_line(number, 10_000).as_bytes()).unwrap());
        stdin
    });
    wait_until("a full spool", || worker.stderr_tail().contains("failed to write to the spool"));
    assert!(keys.count() < 300, "3 MB of events must not fit on 2 MB of disk");
    // The worker recovers without a restart and without the server.
    disk.free_space();
    wait_until("a key for each line", || keys.count() == 300);
    let stdin = feeding.join().unwrap();

    // Fill the disk again and kill the worker: every event with a key must survive.
    let (used, mut stdin) = (keys.count(), stdin);
    disk.fill_space(4);
    let feeding =
        std::thread::spawn(move || (301..=500).try_for_each(|n| stdin.write_all(event_line(n, 10_000).as_bytes())));
    let log_length = worker.stderr_tail().len();
    wait_until("a full spool", || worker.stderr_tail().len() > log_length);
    let mut worker = worker;
    worker.kill();
    drop(feeding.join().unwrap());
    let confirmed = keys.count();
    assert!((used..500).contains(&confirmed));

    disk.free_space();
    server.restart();
    let (mut next, stdin) = WorkerProcess::start(&server.url, &sandbox, disk.path(), |_| {});
    drop(stdin);
    assert_eq!(next.wait_for_exit().code(), Some(0));
    let log = admin.all_events(&sandbox.id).await;
    let stored = event_numbers(&log);
    assert!(stored.len() >= confirmed, "{confirmed} events were confirmed, {} are stored", stored.len());
    assert_eq!(stored, (1..=stored.len() as i64).collect::<Vec<i64>>());
    assert!(log.iter().all(|event| event["type"] != "worker.lost"));
}
