//! A bomb goes off in its own sandbox, and neither its worker nor its neighbour feels it.

use atoll_tests::local::{Ground, PATIENCE, skipped, traces};
use serde_json::json;
use std::time::{Duration, Instant};

async fn is_well(ground: &Ground, id: &str) {
    let began = Instant::now();
    let ran = ground.exec(id, json!({ "argv": ["echo", "well"] })).await;
    assert_eq!(ran.well(), "well\n");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_bomb_stays_within_its_bound() {
    let ground = Ground::start();
    let bombed = ground.kept(json!({ "resources": { "pids": 64 } })).await;
    let neighbour = ground.kept(json!({})).await;
    if traces::process_count(&bombed).is_none() {
        skipped("a fork bomb", "nothing here bounds the number of processes");
        return ground.leave().await;
    }
    let worker = traces::worker(&bombed).unwrap();
    let bomb =
        "bomb() { bomb | bomb & }; bomb 2>/dev/null; for i in $(seq 300); do sleep 67 & done 2>/dev/null; sleep 67";
    let going = ground.exec(&bombed, json!({ "shell": bomb, "timeout_s": 4 }));
    let watched = async {
        let mut most = 0;
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            most = most.max(traces::process_count(&bombed).unwrap());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        is_well(&ground, &neighbour).await;
        most
    };
    let (_, most) = tokio::join!(going, watched);
    assert!((20..=64).contains(&most), "{most} processes at once");
    assert!(worker.is_alive(), "the worker lives");
    assert_eq!(ground.row(&bombed).await["state"], "running");
    // Ending the sandbox ends what the bomb has left.
    let left = traces::leaf(&bombed, "agent");
    ground.admin.post(&format!("/sandboxes/{bombed}/stop"), json!({ "results": "discard" })).await.expect(200);
    ground.gone(&bombed).await;
    assert!(left.iter().all(|process| process.ends_within(PATIENCE)), "{left:?}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_bomb_takes_neither_the_worker_nor_the_neighbour() {
    let ground = Ground::start();
    let bombed = ground.kept(json!({ "resources": { "memory_gb": 0.15 } })).await;
    let neighbour = ground.kept(json!({})).await;
    if !traces::limits_memory(&bombed) {
        skipped("a memory bomb", "nothing here enforces a memory limit");
        return ground.leave().await;
    }
    let (worker, bystander) = (traces::worker(&bombed).unwrap(), traces::worker(&neighbour).unwrap());
    for _ in 0..3 {
        let ran = ground.exec(&bombed, json!({ "argv": ["tail", "/dev/zero"] })).await;
        assert_eq!(ran.exit["kind"], "out_of_memory", "{ran:?}");
        is_well(&ground, &neighbour).await;
        is_well(&ground, &bombed).await;
    }
    // What is written to temporary files counts as well, and does not fill the host's memory.
    let ran = ground
        .exec(&bombed, json!({ "shell": "head -c 400M /dev/zero > /tmp/zero; rm -f /tmp/zero", "timeout_s": 30 }));
    assert_ne!(ran.await.exit["kind"], "unknown");
    assert!(worker.is_alive() && bystander.is_alive(), "the workers live");
    assert_eq!(ground.row(&bombed).await["state"], "running");
    is_well(&ground, &bombed).await;
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_descriptor_bomb_and_a_flood_of_output_are_bounded() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let limit = ground.shell(&id, "ulimit -n").await.well();
    assert!(limit.trim().parse::<u64>().is_ok_and(|most| most <= 65_536), "{limit}");
    let ran = ground.exec(&id, json!({ "shell": "yes | head -c 3000000", "timeout_s": 60 })).await;
    assert_eq!(ran.exit, json!({ "kind": "exited", "code": 0 }));
    assert!(!ran.stdout.is_empty() && ran.stdout.len() <= 3_000_000, "{}", ran.stdout.len());
    is_well(&ground, &id).await;
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_to_the_background_ends_with_the_sandbox() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let daemons =
        "for i in 1 2 3; do setsid nohup sh -c 'trap \"\" TERM HUP; while :; do sleep 68; done' >/dev/null 2>&1 & done";
    ground.shell(&id, &format!("{daemons}; true")).await.well();
    if traces::cgroups(&id).is_empty() {
        skipped("what was sent to the background", "there are no cgroups to find it by");
        return ground.leave().await;
    }
    // Their shell does not wait until they sleep.
    let deadline = Instant::now() + PATIENCE;
    let processes = loop {
        let processes = traces::processes(&id);
        let sleeping = processes.iter().filter(|process| process.file("cmdline").contains("sleep 68")).count();
        if sleeping >= 3 {
            break processes;
        }
        assert!(Instant::now() < deadline, "{processes:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect(200);
    ground.ended(&id).await;
    ground.gone(&id).await;
    assert!(processes.iter().all(|process| process.ends_within(PATIENCE)), "{processes:?}");
    ground.leave().await;
}
