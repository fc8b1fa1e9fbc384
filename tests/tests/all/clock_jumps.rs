//! Jumps of the server's wall clock: deadlines and leases follow the steady clock.

use atoll_core::time::{Clock, SystemClock, Timestamp};
use atoll_test_wait::poll_until;
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::ManualWorker;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

on_both_databases!(a_jump_forward_ends_no_lease, a_jump_back_hides_no_silent_worker);

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
