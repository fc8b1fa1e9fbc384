//! Every bomb at once in one sandbox. Its neighbour's commands go on, each end is told truly, and the machine is usable.
//!
//! How much slower the neighbour becomes is a figure of the benches, not a matter of right or wrong.

use atoll_tests::local::{Ground, Ran, skipped, traces};
use serde_json::json;
use std::time::{Duration, Instant};

const FORKS: &str = "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 5";
const MEMORY: &str = "tail /dev/zero; echo $? >&2; kill -s KILL $$";
const DESCRIPTORS: &str =
    "count=0; while exec {next}</dev/null; do count=$((count + 1)); done 2>/dev/null; echo $count";
const DISK: &str = "for n in 1 2 3 4; do head -c 60M /dev/zero > fill$n || exit 3; done; rm -f fill*; echo filled";

/// The commands of a neighbour, one after another, until `enough`; how long the slowest took.
async fn commands(ground: &Ground, id: &str, enough: impl Fn() -> bool) -> (usize, Duration) {
    let (mut count, mut slowest) = (0, Duration::ZERO);
    while !enough() || count < 10 {
        let began = Instant::now();
        assert_eq!(ground.exec(id, json!({ "argv": ["echo", "well"] })).await.well(), "well\n");
        slowest = slowest.max(began.elapsed());
        count += 1;
    }
    (count, slowest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_bombs_at_once_are_felt_by_nobody_else() {
    let ground = Ground::start();
    let bombed = ground.kept(json!({ "resources": { "pids": 100, "memory_gb": 0.15, "cpu": 1.0 } })).await;
    let neighbour = ground.kept(json!({})).await;
    if traces::process_count(&bombed).is_none() || !traces::limits_memory(&bombed) {
        skipped("all bombs at once", "not every limit is enforced here");
        return ground.leave().await;
    }
    let workers = [traces::worker(&bombed).unwrap(), traces::worker(&neighbour).unwrap()];
    let (_, quiet) = commands(&ground, &neighbour, || true).await;

    // Those that need processes of their own come before there are none left to have.
    let began = Instant::now();
    let bash = |script: &str| ground.exec(&bombed, json!({ "argv": ["bash", "-c", script], "timeout_s": 20 }));
    let over = std::sync::atomic::AtomicBool::new(false);
    let bombs = async {
        let (descriptors, disk) = tokio::join!(bash(DESCRIPTORS), bash(DISK));
        let memory = ground.exec(&bombed, json!({ "argv": ["tail", "/dev/zero"], "timeout_s": 20 })).await;
        let both = tokio::join!(bash(MEMORY), bash(FORKS));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        (descriptors, disk, memory, both)
    };
    let seen = || over.load(std::sync::atomic::Ordering::Relaxed);
    let ((descriptors, disk, memory, (mixed, forks)), (count, slowest)) =
        tokio::join!(bombs, commands(&ground, &neighbour, seen));
    let line = format!(
        "bombs: {count} commands of the neighbour in {:?}, the slowest {slowest:?}, of ten in quiet {quiet:?}\n",
        began.elapsed()
    );
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));

    let opened: u64 = descriptors.clone().well().trim().parse().unwrap();
    assert!((16..70_000).contains(&opened), "{descriptors:?}");
    assert_eq!(memory.exit["kind"], "out_of_memory", "{memory:?}");
    // Within the bound of the disk, where there is one; else told as what it was.
    let known = |ran: &Ran| ran.exit["kind"] != "unknown" && !ran.exit["kind"].is_null();
    assert!([&disk, &mixed, &forks].into_iter().all(known), "{disk:?} {mixed:?} {forks:?}");
    assert!(workers.iter().all(traces::Process::is_alive), "the workers live");

    // The bombed one is itself again once its processes are gone, and so is the machine.
    ground.shell(&bombed, "kill -s KILL -- -1").await;
    for id in [&bombed, &neighbour] {
        let row = ground.row(id).await;
        // The agent is a process among the bombs: it may be ended with them, and is told to be.
        let ended_with_them = ["agent_crashed", "out_of_memory"].iter().any(|code| row["reason"]["code"] == *code);
        assert!(row["state"] == "running" || (id == &bombed && ended_with_them), "{row}");
    }
    let other = ground.kept(json!({})).await;
    assert_eq!(ground.shell(&other, "echo new").await.well(), "new\n");
    ground.leave().await;
}
