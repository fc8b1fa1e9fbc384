//! A disk that fills stops in its own sandbox, and is told.

use atoll_tests::local::{Ground, PATIENCE, told};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// 64 MiB.
const SMALL: f64 = 0.0625;

async fn disk_full(ground: &Ground, id: &str) -> Value {
    ground.event(id, |event| event["type"] == "sandbox.disk_full").await
}

async fn crossings(ground: &Ground, id: &str) -> usize {
    told(&ground.admin.all_events(id).await, "sandbox.disk_full").len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_fills_the_disk_is_stopped_and_told_and_can_go_on_after_deleting() {
    let ground = Ground::start();
    let full = ground.kept(json!({ "resources": { "disk_gb": SMALL } })).await;
    let neighbour = ground.kept(json!({ "resources": { "disk_gb": SMALL } })).await;
    ground
        .shell(
            &neighbour,
            "head -c 20M /dev/zero >/workspace/kept; (while :; do date; sleep 0.2; done >>/tmp/log) & true",
        )
        .await
        .well();
    let fill = "while :; do head -c 4M /dev/zero; sleep 0.05; done >/workspace/large";
    let ran = ground.exec(&full, json!({ "shell": fill, "timeout_s": 60 })).await;
    assert_eq!(ran.exit, json!({ "kind": "signalled", "signal": 9 }), "{ran:?}");
    let event = disk_full(&ground, &full).await;
    assert_eq!(event["source"], "system");
    let data = &event["data"];
    assert_eq!(data["limit_bytes"], 64 << 20);
    assert!(data["used_bytes"].as_u64().unwrap() > 64 << 20 && data["stopped"].as_u64().unwrap() >= 1, "{data}");
    assert!(data["text"].as_str().unwrap().contains("delete something"), "{data}");
    // It lives, and whoever writes while it is over is stopped again; that is told once.
    assert_eq!(ground.row(&full).await["state"], "running");
    let ran = ground
        .exec(
            &full,
            json!({ "shell": "exec >>/workspace/more; while :; do echo x; sleep 0.01; done", "timeout_s": 60 }),
        )
        .await;
    assert_eq!(ran.exit, json!({ "kind": "signalled", "signal": 9 }), "{ran:?}");
    assert_eq!(crossings(&ground, &full).await, 1);
    // Deleting works, and then so does writing.
    ground.shell(&full, "rm /workspace/large").await.well();
    let write = "head -c 30M /dev/zero >/workspace/small; for i in 1 2 3 4 5 6; do echo x >>/workspace/small; sleep 0.5; done; echo fine";
    assert_eq!(ground.shell(&full, write).await.well(), "fine\n");
    assert_eq!(crossings(&ground, &full).await, 1);
    // The neighbour felt nothing of it.
    let log = "wc -l </tmp/log; sleep 1; wc -l </tmp/log; stat -c %s /workspace/kept";
    let said = ground.shell(&neighbour, log).await.well();
    let figures: Vec<u64> = said.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert!(figures[1] > figures[0] && figures[2] == 20 << 20, "{figures:?}");
    assert_eq!(crossings(&ground, &neighbour).await, 0);
    // The next crossing is told again.
    let ran = ground.exec(&full, json!({ "shell": fill, "timeout_s": 60 })).await;
    assert_eq!(ran.exit, json!({ "kind": "signalled", "signal": 9 }), "{ran:?}");
    let deadline = Instant::now() + PATIENCE;
    while crossings(&ground, &full).await < 2 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_writes_by_ever_new_processes_is_stopped_as_a_whole() {
    let ground = Ground::start();
    let id = ground.kept(json!({ "resources": { "disk_gb": SMALL } })).await;
    let fill = "i=0; while :; do i=$((i+1)); head -c 4M /dev/zero >/workspace/f$i; sleep 0.02; done";
    let began = Instant::now();
    let ran = ground.exec(&id, json!({ "shell": fill, "timeout_s": 60 })).await;
    assert_eq!(ran.exit["kind"], "signalled", "{ran:?}");
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    disk_full(&ground, &id).await;
    ground.leave().await;
}
