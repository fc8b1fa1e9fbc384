//! A disk pool: the kernel enforces the quota, so writes fail and no process is killed.

use super::isolation_tier::{atoll_command, run_doctor};
use atoll_test_wait::poll_until;
use atoll_tests::local::{LocalServer, event_data, host_state, report_skipped};
use serde_json::{Value, json};
use std::path::Path;
use tokio::task::block_in_place;

const POOL_CONFIG: &str = "local: {disk_pool_gb: 1}\n";
/// 64 MiB.
const SMALL_DISK_GB: f64 = 0.0625;
const FILL_SCRIPT: &str = "head -c 200M /dev/zero >/workspace/large; echo $?; stat -c %s /workspace/large";

/// Returns `None` if this host cannot have a pool, and otherwise true if a pool makes the tier strong.
pub fn detect_pool_support() -> Option<bool> {
    let (_, checks) = run_doctor(atoll_command(), POOL_CONFIG);
    let details: Vec<String> = checks.iter().map(|check| check["detail"].to_string()).collect();
    if let Some(missing) = details.iter().find(|detail| detail.contains("disk use is watched")) {
        report_skipped("a pool", missing);
        return None;
    }
    Some(details.iter().any(|detail| detail.contains("tier strong")))
}

fn list_loop_devices(data: &Path) -> Vec<String> {
    let file = data.join("pool.btrfs");
    let all = std::fs::read_dir("/sys/block").unwrap().flatten().filter(|entry| {
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file"));
        backing.is_ok_and(|backing| Path::new(backing.trim()) == file)
    });
    all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn assert_disk_full(output: &str) {
    let lines: Vec<u64> = output.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert!(lines[0] == 1 && (40 << 20..=64 << 20).contains(&lines[1]), "{output}");
}

async fn count_disk_full_events(server: &LocalServer, id: &str) -> usize {
    event_data(&server.admin.all_events(id).await, "sandbox.disk_full").len()
}

/// Also waits until the loop device is gone, shortly after the last unmount.
pub async fn stop_and_check(server: LocalServer) {
    let data = server.data_dir();
    server.stop_and_check().await;
    poll_until("the loop device to be gone", async || list_loop_devices(&data).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_over_the_quota_fail_without_killing_a_process() {
    let Some(strong) = block_in_place(detect_pool_support) else { return };
    let mut server = LocalServer::start_with_config(POOL_CONFIG);
    let isolation = if strong { "strong" } else { "standard" };
    let small = || json!({ "resources": { "disk_gb": SMALL_DISK_GB }, "isolation": isolation });
    let (full, neighbour) = (server.create_idle_sandbox(small()).await, server.create_idle_sandbox(small()).await);
    server.run_shell(&neighbour, "(while :; do date; sleep 0.2; done >>/tmp/log) & true").await.expect_success();
    server.run_shell(&full, "(sleep 1000 >/workspace/open) & echo kept >/workspace/kept").await.expect_success();
    let ran = server.run_exec(&full, json!({ "shell": FILL_SCRIPT, "timeout_s": 60 })).await;
    assert!(ran.stderr.contains("Disk quota exceeded"), "{ran:?}");
    assert_disk_full(&ran.expect_success());
    let event = server.wait_for_event(&full, |event| event["type"] == "sandbox.disk_full").await;
    let data = &event["data"];
    assert_eq!((&data["limit_bytes"], &data["stopped"]), (&json!(64 << 20), &json!(0)));
    assert!(data["text"].as_str().unwrap().contains("writes fail; delete files"), "{data}");
    let ran = server
        .run_shell(
            &full,
            "pgrep -cx sleep; rm /workspace/large; head -c 8M /dev/zero >/workspace/x; cat /workspace/kept",
        )
        .await;
    assert_eq!(ran.expect_success(), "1\nkept\n", "a process with a file open for writing must survive");
    assert_eq!(count_disk_full_events(&server, &full).await, 1);
    let ran = server
        .run_shell(&neighbour, "wc -l </tmp/log; sleep 1; wc -l </tmp/log; head -c 30M /dev/zero >/workspace/f")
        .await;
    let figures: Vec<u64> = ran.expect_success().lines().map(|line| line.trim().parse().unwrap()).collect();
    assert!(figures[1] > figures[0], "{figures:?}");
    assert_eq!(count_disk_full_events(&server, &neighbour).await, 0);
    // A server that was killed finds the sandboxes and the pool again.
    let before = list_loop_devices(&server.data_dir());
    assert_eq!(before.len(), 1);
    block_in_place(|| {
        server.process.kill();
        server.process.restart();
    });
    let ran = server.run_exec(&full, json!({ "shell": FILL_SCRIPT, "timeout_s": 60 })).await;
    assert_disk_full(&ran.expect_success());
    assert_eq!(list_loop_devices(&server.data_dir()), before);
    stop_and_check(server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forks_and_snapshots_have_their_own_quota() {
    if block_in_place(detect_pool_support).is_none() {
        return;
    }
    let server = LocalServer::start_with_config(POOL_CONFIG);
    let parent = server.create_idle_sandbox(json!({ "resources": { "disk_gb": SMALL_DISK_GB } })).await;
    server
        .run_shell(&parent, "head -c 30M /dev/urandom >/workspace/half; echo one >/workspace/kept")
        .await
        .expect_success();
    let forked = server.admin.post(&format!("/sandboxes/{parent}/fork"), json!({})).await.expect_status(201);
    let child = forked["id"].as_str().unwrap().to_owned();
    server.track_sandbox(&child);
    server.wait_until(&child, |row: &Value| row["state"] == "running").await;
    server.run_shell(&parent, "echo two >/workspace/kept").await.expect_success();
    assert_eq!(
        server.run_shell(&child, "cat /workspace/kept; stat -c %s /workspace/half").await.expect_success(),
        "one\n31457280\n"
    );
    let ran = server.run_exec(&child, json!({ "shell": FILL_SCRIPT, "timeout_s": 60 })).await;
    let output = ran.expect_success();
    let size: u64 = output.lines().nth(1).unwrap().parse().unwrap();
    assert!((16 << 20..=36 << 20).contains(&size), "the inherited files must count: {output}");
    server.run_shell(&parent, "head -c 20M /dev/zero >/workspace/more").await.expect_success();
    let mounts = host_state::mounts_under(&server.data_dir());
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    stop_and_check(server).await;
}
