//! A disk without room, under the server and under the worker.

use super::{PATIENCE, serve, temporary};
use atoll_tests::actor::Actor;
use atoll_tests::program::WorkerProcess;
use atoll_tests::small_disk::SmallDisk;
use atoll_tests::worker::{HandWorker, event};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The numbers that stand in a log, in its order.
fn numbers(log: &[Value]) -> Vec<i64> {
    log.iter().filter_map(|event| event["data"]["n"].as_i64()).collect()
}

fn line(number: usize, bytes: usize) -> String {
    json!({ "type": "agent.message", "data": { "n": number, "text": "x".repeat(bytes) } }).to_string() + "\n"
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How many keys a worker has printed.
#[derive(Clone, Default)]
struct Keys(Arc<Mutex<usize>>);

impl Keys {
    fn count(&self) -> usize {
        *self.0.lock().unwrap()
    }

    fn hear(&self) -> impl FnMut(Value) + Send + 'static {
        let keys = Arc::clone(&self.0);
        move |line| {
            if !line["key"].is_null() {
                *keys.lock().unwrap() += 1;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_a_full_disk_stores_what_it_says_and_recovers() {
    let Some(disk) = SmallDisk::mount("a_server_on_a_full_disk_stores_what_it_says_and_recovers", 48) else { return };
    disk.load(32);
    let mut server = serve(disk.path(), "", &[]);
    let (admin, pid) = (Actor::new(&server.url, Some(&server.token())), server.pid());
    let spools = temporary();
    let (by_hand, by_worker) = (admin.external(json!({})).await, admin.external(json!({})).await);
    let hand = HandWorker::new(&admin, &by_hand);

    let mut sent = 0;
    let batch = |after: i64| -> Vec<Value> {
        let text = "x".repeat(8000);
        (after + 1..=after + 20).map(|n| event(n, "agent.message", json!({ "n": n, "text": text }))).collect()
    };
    let full = loop {
        let answer = hand.batch(batch(sent)).await;
        match answer.status.as_u16() {
            200 => sent += 20,
            _ => break answer,
        }
        assert!(sent < 100_000, "the disk never fills");
    };
    assert_eq!(full.retry_after.as_deref(), Some("5"));
    full.refused(503, "disk_full");

    // A worker whose server has no room keeps what it takes in.
    let keys = Keys::default();
    let (mut worker, mut stdin) = WorkerProcess::start(&server.url, &by_worker, spools.path(), keys.hear());
    (1..=200).for_each(|number| stdin.write_all(line(number, 4000).as_bytes()).unwrap());
    wait_until("a key for each line", || keys.count() == 200);

    // While it is full: no refusal is another one, and what was taken can be read.
    for _ in 0..5 {
        let again = hand.batch(batch(sent)).await;
        assert!(["disk_full", "store_unavailable"].contains(&again.body["code"].as_str().unwrap()), "{}", again.body);
        again.expect(503);
    }
    admin.get("/healthz").await.expect(200);
    assert_eq!(numbers(&admin.all_events(&by_hand.id).await), (1..=sent).collect::<Vec<i64>>());

    disk.unload();
    let deadline = Instant::now() + PATIENCE;
    while hand.batch(batch(sent)).await.status != 200 {
        assert!(Instant::now() < deadline, "it does not recover");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    sent += 20;
    drop(stdin);
    assert_eq!(worker.wait(PATIENCE).and_then(|status| status.code()), Some(0));
    assert_eq!(server.pid(), pid, "without being started again");

    // And all of it is still there after a kill.
    server.start_again();
    assert_eq!(numbers(&admin.all_events(&by_hand.id).await), (1..=sent).collect::<Vec<i64>>());
    assert_eq!(numbers(&admin.all_events(&by_worker.id).await), (1..=200).collect::<Vec<i64>>());
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_on_a_full_disk_promises_nothing_it_does_not_keep() {
    let Some(disk) = SmallDisk::mount("a_worker_on_a_full_disk_promises_nothing_it_does_not_keep", 8) else { return };
    let dir = temporary();
    let mut server = serve(dir.path(), "", &[]);
    let admin = Actor::new(&server.url, Some(&server.token()));
    let sandbox = admin.external(json!({})).await;
    // Nothing can be sent, so nothing can be deleted.
    server.kill();

    disk.load(6);
    let keys = Keys::default();
    let (worker, mut stdin) = WorkerProcess::start(&server.url, &sandbox, disk.path(), keys.hear());
    let feeding = std::thread::spawn(move || {
        (1..=300).for_each(|number| stdin.write_all(line(number, 10_000).as_bytes()).unwrap());
        stdin
    });
    wait_until("a full spool", || worker.said().contains("can't write to the spool"));
    assert!(keys.count() < 300, "three megabytes do not fit into two");
    // By itself, without a restart and without the server.
    disk.unload();
    wait_until("a key for each line", || keys.count() == 300);
    let stdin = feeding.join().unwrap();

    // Full again, and then killed: what had a key is there.
    let (used, mut stdin) = (keys.count(), stdin);
    disk.load(4);
    let feeding = std::thread::spawn(move || (301..=500).try_for_each(|n| stdin.write_all(line(n, 10_000).as_bytes())));
    let said = worker.said().len();
    wait_until("a full spool", || worker.said().len() > said);
    let mut worker = worker;
    worker.kill();
    drop(feeding.join().unwrap());
    let promised = keys.count();
    assert!((used..500).contains(&promised));

    disk.unload();
    server.start_again();
    let (mut next, stdin) = WorkerProcess::start(&server.url, &sandbox, disk.path(), |_| {});
    drop(stdin);
    assert_eq!(next.wait(PATIENCE).and_then(|status| status.code()), Some(0));
    let log = admin.all_events(&sandbox.id).await;
    let stored = numbers(&log);
    assert!(stored.len() >= promised, "{promised} were promised, {} are stored", stored.len());
    assert_eq!(stored, (1..=stored.len() as i64).collect::<Vec<i64>>(), "each once, in order, without a gap");
    assert!(log.iter().all(|event| event["type"] != "worker.lost"));
}
