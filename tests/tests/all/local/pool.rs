//! A disk that the kernel bounds: who writes too much is refused, nobody is ended, and all else works as without.

use super::tier::{atoll, doctor};
use atoll_tests::local::{Ground, PATIENCE, skipped, told, traces};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

const CONFIG: &str = "local: {disk_pool_gb: 1}\n";
/// 64 MiB.
const SMALL: f64 = 0.0625;
const FILL: &str = "head -c 200M /dev/zero >/workspace/large; echo $?; stat -c %s /workspace/large";

/// Whether a pool can be had here, and whether that makes the tier strong.
pub fn pools() -> Option<bool> {
    let (_, checks) = doctor(atoll(), CONFIG);
    let details: Vec<String> = checks.iter().map(|check| check["detail"].to_string()).collect();
    if let Some(lacks) = details.iter().find(|detail| detail.contains("disk use is watched")) {
        skipped("a pool", lacks);
        return None;
    }
    Some(details.iter().any(|detail| detail.contains("tier strong")))
}

fn devices(data: &Path) -> Vec<String> {
    let file = data.join("pool.btrfs");
    let all = std::fs::read_dir("/sys/block").unwrap().flatten().filter(|entry| {
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file"));
        backing.is_ok_and(|backing| Path::new(backing.trim()) == file)
    });
    all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn is_full(said: &str) {
    let lines: Vec<u64> = said.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert!(lines[0] == 1 && (40 << 20..=64 << 20).contains(&lines[1]), "{said}");
}

async fn crossings(ground: &Ground, id: &str) -> usize {
    told(&ground.admin.all_events(id).await, "sandbox.disk_full").len()
}

/// Also looks for the device, which goes a moment after the last mount.
pub async fn leave(ground: Ground) {
    let data = ground.data();
    ground.leave().await;
    let deadline = Instant::now() + PATIENCE;
    while !devices(&data).is_empty() {
        assert!(Instant::now() < deadline, "a device is left: {:?}", devices(&data));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_writes_too_much_is_refused_and_told_and_nobody_is_ended() {
    let Some(strong) = block_in_place(pools) else { return };
    let mut ground = Ground::start_with(CONFIG);
    let isolation = if strong { "strong" } else { "standard" };
    let small = || json!({ "resources": { "disk_gb": SMALL }, "isolation": isolation });
    let (full, neighbour) = (ground.kept(small()).await, ground.kept(small()).await);
    ground.shell(&neighbour, "(while :; do date; sleep 0.2; done >>/tmp/log) & true").await.well();
    ground.shell(&full, "(sleep 1000 >/workspace/open) & echo kept >/workspace/kept").await.well();
    let ran = ground.exec(&full, json!({ "shell": FILL, "timeout_s": 60 })).await;
    assert!(ran.stderr.contains("Disk quota exceeded"), "{ran:?}");
    is_full(&ran.well());
    let event = ground.event(&full, |event| event["type"] == "sandbox.disk_full").await;
    let data = &event["data"];
    assert_eq!((&data["limit_bytes"], &data["stopped"]), (&json!(64 << 20), &json!(0)));
    assert!(data["text"].as_str().unwrap().contains("writing fails; delete something"), "{data}");
    let said = ground
        .shell(&full, "pgrep -cx sleep; rm /workspace/large; head -c 8M /dev/zero >/workspace/x; cat /workspace/kept")
        .await;
    assert_eq!(said.well(), "1\nkept\n", "a process with a file open for writing lives on");
    assert_eq!(crossings(&ground, &full).await, 1);
    let said = ground
        .shell(&neighbour, "wc -l </tmp/log; sleep 1; wc -l </tmp/log; head -c 30M /dev/zero >/workspace/f")
        .await;
    let figures: Vec<u64> = said.well().lines().map(|line| line.trim().parse().unwrap()).collect();
    assert!(figures[1] > figures[0], "{figures:?}");
    assert_eq!(crossings(&ground, &neighbour).await, 0);
    // A server that was killed finds them again, and the pool with them.
    let before = devices(&ground.data());
    assert_eq!(before.len(), 1);
    block_in_place(|| {
        ground.server.kill();
        ground.server.start_again();
    });
    let ran = ground.exec(&full, json!({ "shell": FILL, "timeout_s": 60 })).await;
    is_full(&ran.well());
    assert_eq!(devices(&ground.data()), before);
    leave(ground).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forks_and_snapshots_have_bounds_of_their_own() {
    if block_in_place(pools).is_none() {
        return;
    }
    let ground = Ground::start_with(CONFIG);
    let parent = ground.kept(json!({ "resources": { "disk_gb": SMALL } })).await;
    ground.shell(&parent, "head -c 30M /dev/urandom >/workspace/half; echo one >/workspace/kept").await.well();
    let answer = ground.admin.post(&format!("/sandboxes/{parent}/fork"), json!({})).await.expect(201);
    let child = answer["id"].as_str().unwrap().to_owned();
    ground.remember(&child);
    ground.until(&child, |row: &Value| row["state"] == "running").await;
    ground.shell(&parent, "echo two >/workspace/kept").await.well();
    assert_eq!(ground.shell(&child, "cat /workspace/kept; stat -c %s /workspace/half").await.well(), "one\n31457280\n");
    let ran = ground.exec(&child, json!({ "shell": FILL, "timeout_s": 60 })).await;
    let said = ran.well();
    let size: u64 = said.lines().nth(1).unwrap().parse().unwrap();
    assert!((16 << 20..=36 << 20).contains(&size), "what it began with counts: {said}");
    ground.shell(&parent, "head -c 20M /dev/zero >/workspace/more").await.well();
    let mounts = traces::mounts_under(&ground.data());
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    leave(ground).await;
}
