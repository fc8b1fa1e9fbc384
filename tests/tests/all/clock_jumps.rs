//! Jumps of the server's wall clock: deadlines and leases follow the steady clock.

use atoll_core::time::{Clock, SystemClock, Timestamp};
use atoll_test_wait::poll_until;
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use reqwest::Method;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

on_both_databases!(
    a_jump_forward_ends_no_lease,
    a_jump_back_hides_no_silent_worker,
    a_blob_stays_as_long_as_the_event_that_names_it,
);

const DAY_SECONDS: i64 = 24 * 3600;

/// The system's clock, with a wall clock that the test sets.
struct JumpingClock {
    system: SystemClock,
    offset_seconds: AtomicI64,
}

impl JumpingClock {
    fn start() -> Arc<Self> {
        Arc::new(Self { system: SystemClock::start(), offset_seconds: AtomicI64::new(0) })
    }

    fn jump(&self, seconds: i64) {
        self.offset_seconds.fetch_add(seconds, Ordering::SeqCst);
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> Timestamp {
        let offset = self.offset_seconds.load(Ordering::SeqCst) * 1_000_000;
        Timestamp::from_micros(self.system.now().as_micros() + offset)
    }

    fn steady_now(&self) -> Timestamp {
        self.system.steady_now()
    }
}

async fn a_jump_forward_ends_no_lease(kind: DatabaseKind) {
    let clock = JumpingClock::start();
    let server = TestServer::start_with_clock(kind, |_| {}, Some(Arc::clone(&clock) as _)).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    admin.post(&format!("/sandboxes/{}/messages", sandbox.id), json!({ "content": "a" })).await.expect_status(201);
    let leased = worker.lease_messages(10).await;
    assert_eq!(leased.len(), 1);
    for seconds in [DAY_SECONDS, -2 * DAY_SECONDS] {
        clock.jump(seconds);
        assert!(worker.lease_messages(10).await.is_empty(), "the lease holds after a jump of {seconds} s");
        worker.send_events(&["agent.message", "agent.message"]).await;
        worker.send_heartbeat("working").await.expect_status(200);
    }
    worker.ack_message(&leased[0], "injected", Some(1)).await.expect_status(200);
    let events = admin.all_events(&sandbox.id).await;
    let seqs: Vec<_> = events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(seqs, (1..=i64::try_from(events.len()).unwrap()).collect::<Vec<_>>());
    server.stop().await;
}

async fn a_jump_back_hides_no_silent_worker(kind: DatabaseKind) {
    let clock = JumpingClock::start();
    let change = |options: &mut atoll_server::Options| options.config.heartbeat.interval = Duration::from_secs(1);
    let server = TestServer::start_with_clock(kind, change, Some(Arc::clone(&clock) as _)).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    clock.jump(-DAY_SECONDS);
    let path = format!("/sandboxes/{}", sandbox.id);
    poll_until("the silent worker to count as unreachable", || async {
        admin.get(&path).await.expect_status(200)["activity"] == "unreachable"
    })
    .await;
    server.stop().await;
}

/// A worker uploads a blob, loses its connection, and sends the event days later.
async fn a_blob_stays_as_long_as_the_event_that_names_it(kind: DatabaseKind) {
    const HELLO_SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let clock = JumpingClock::start();
    let keep_ten_days = |options: &mut atoll_server::options::Options| {
        options.config.retention.events = Some(Duration::from_secs(10 * 24 * 3600));
    };
    let server = TestServer::start_with_clock(kind, keep_ten_days, Some(Arc::clone(&clock) as _)).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    let blob = format!("/sandboxes/{}/blobs/{HELLO_SHA256}", sandbox.id);
    worker.actor.send(worker.actor.request(Method::PUT, &blob).body("hello")).await.expect_status(200);
    admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({ "results": "discard" })).await.expect_status(200);
    clock.jump(5 * DAY_SECONDS);
    let text = json!({ "text": "h", "truncated": true, "text_bytes": 5, "text_blob": HELLO_SHA256 });
    worker.send_batch(vec![build_event(1, "agent.message", text)]).await.expect_status(200);
    clock.jump(6 * DAY_SECONDS);
    admin.post("/gc", json!({})).await.expect_status(200);
    assert_eq!(admin.get(&blob).await.expect_status(200), "hello", "its event is six days old");
    clock.jump(10 * DAY_SECONDS);
    assert_eq!(admin.post("/gc", json!({})).await.expect_status(200)["blobs"], 1);
    admin.get(&blob).await.expect_problem(404, "not_found");
    server.stop().await;
}
