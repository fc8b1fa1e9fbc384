//! A full disk stops writers in its own sandbox only, and causes an event. This is the monitored mode, without a quota.

use atoll_test_wait::poll_until;
use atoll_tests::local::{LocalServer, event_data};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// 64 MiB.
const SMALL_DISK_GB: f64 = 0.0625;

async fn wait_for_disk_full(server: &LocalServer, id: &str) -> Value {
    server.wait_for_event(id, |event| event["type"] == "sandbox.disk_full").await
}

async fn count_disk_full_events(server: &LocalServer, id: &str) -> usize {
    event_data(&server.admin.all_events(id).await, "sandbox.disk_full").len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_fills_its_disk_is_stopped_and_can_continue_after_deleting() {
    let server = LocalServer::start();
    let full = server.create_idle_sandbox(json!({ "resources": { "disk_gb": SMALL_DISK_GB } })).await;
    let neighbour = server.create_idle_sandbox(json!({ "resources": { "disk_gb": SMALL_DISK_GB } })).await;
    server
        .run_shell(
            &neighbour,
            "head -c 20M /dev/zero >/workspace/kept; (while :; do date; sleep 0.2; done >>/tmp/log) & true",
        )
        .await
        .expect_success();
    let fill = "while :; do head -c 4M /dev/zero; sleep 0.05; done >/workspace/large";
    let ran = server.run_exec(&full, json!({ "shell": fill, "timeout_s": 60 })).await;
    assert_eq!(ran.exit, json!({ "kind": "signalled", "signal": 9 }), "{ran:?}");
    let event = wait_for_disk_full(&server, &full).await;
    assert_eq!(event["source"], "system");
    let data = &event["data"];
    assert_eq!(data["limit_bytes"], 64 << 20);
    assert!(data["used_bytes"].as_u64().unwrap() > 64 << 20 && data["stopped"].as_u64().unwrap() >= 1, "{data}");
    assert!(data["text"].as_str().unwrap().contains("delete files"), "{data}");
    // The sandbox stays alive. Further writers are stopped too, without a second event.
    assert_eq!(server.get_sandbox(&full).await["state"], "running");
    let ran = server
        .run_exec(
            &full,
            json!({ "shell": "exec >>/workspace/more; while :; do echo x; sleep 0.01; done", "timeout_s": 60 }),
        )
        .await;
    assert_eq!(ran.exit, json!({ "kind": "signalled", "signal": 9 }), "{ran:?}");
    assert_eq!(count_disk_full_events(&server, &full).await, 1);
    server.run_shell(&full, "rm /workspace/large").await.expect_success();
    let write = "head -c 30M /dev/zero >/workspace/small; for i in 1 2 3 4 5 6; do echo x >>/workspace/small; sleep 0.5; done; echo fine";
    assert_eq!(server.run_shell(&full, write).await.expect_success(), "fine\n");
    assert_eq!(count_disk_full_events(&server, &full).await, 1);
    // The neighbour is unaffected.
    let log = "wc -l </tmp/log; sleep 1; wc -l </tmp/log; stat -c %s /workspace/kept";
    let output = server.run_shell(&neighbour, log).await.expect_success();
    let figures: Vec<u64> = output.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert!(figures[1] > figures[0] && figures[2] == 20 << 20, "{figures:?}");
    assert_eq!(count_disk_full_events(&server, &neighbour).await, 0);
    // The next time that the disk fills causes another event.
    let ran = server.run_exec(&full, json!({ "shell": fill, "timeout_s": 60 })).await;
    assert_eq!(ran.exit, json!({ "kind": "signalled", "signal": 9 }), "{ran:?}");
    poll_until("the second event", async || count_disk_full_events(&server, &full).await >= 2).await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_filled_by_many_short_processes_stops_the_whole_command() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({ "resources": { "disk_gb": SMALL_DISK_GB } })).await;
    let fill = "i=0; while :; do i=$((i+1)); head -c 4M /dev/zero >/workspace/f$i; sleep 0.02; done";
    let started = Instant::now();
    let ran = server.run_exec(&id, json!({ "shell": fill, "timeout_s": 60 })).await;
    assert_eq!(ran.exit["kind"], "signalled", "{ran:?}");
    assert!(started.elapsed() < Duration::from_secs(50), "{:?}", started.elapsed());
    wait_for_disk_full(&server, &id).await;
    server.stop_and_check().await;
}
