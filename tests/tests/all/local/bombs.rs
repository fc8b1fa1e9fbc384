//! Fork, memory, descriptor and disk bombs at once in one sandbox: its neighbour keeps working, each exit has the right
//! cause, and the host stays usable.
//!
//! The benches measure how much slower the neighbour becomes.

use atoll_tests::local::{ExecResult, LocalServer, host_state, report_skipped};
use serde_json::json;
use std::time::{Duration, Instant};

const FORK_BOMB: &str = "bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 5";
const MEMORY_BOMB: &str = "tail /dev/zero; echo $? >&2; kill -s KILL $$";
const DESCRIPTOR_BOMB: &str =
    "count=0; while exec {next}</dev/null; do count=$((count + 1)); done 2>/dev/null; echo $count";
const DISK_BOMB: &str = "for n in 1 2 3 4; do head -c 60M /dev/zero > fill$n || exit 3; done; rm -f fill*; echo filled";

/// Runs commands in a sandbox until `is_done` and at least ten times. Returns their number and the slowest duration.
async fn run_commands_until(server: &LocalServer, id: &str, is_done: impl Fn() -> bool) -> (usize, Duration) {
    let (mut count, mut slowest) = (0, Duration::ZERO);
    while !is_done() || count < 10 {
        let started = Instant::now();
        assert_eq!(server.run_exec(id, json!({ "argv": ["echo", "well"] })).await.expect_success(), "well\n");
        slowest = slowest.max(started.elapsed());
        count += 1;
    }
    (count, slowest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_bombs_do_not_affect_another_sandbox() {
    let server = LocalServer::start();
    let bombed =
        server.create_idle_sandbox(json!({ "resources": { "pids": 100, "memory_gb": 0.15, "cpu": 1.0 } })).await;
    let neighbour = server.create_idle_sandbox(json!({})).await;
    if host_state::count_agent_processes(&bombed).is_none() || !host_state::has_memory_limit(&bombed) {
        report_skipped("all bombs at once", "not every limit is enforced here");
        return server.stop_and_check().await;
    }
    let workers =
        [host_state::find_worker_process(&bombed).unwrap(), host_state::find_worker_process(&neighbour).unwrap()];
    let (_, quiet) = run_commands_until(&server, &neighbour, || true).await;

    // The bombs that need processes of their own run before the fork bomb uses them all.
    let started = Instant::now();
    let bash = |script: &str| server.run_exec(&bombed, json!({ "argv": ["bash", "-c", script], "timeout_s": 20 }));
    let bombs_ended = std::sync::atomic::AtomicBool::new(false);
    let bombs = async {
        let (descriptors, disk) = tokio::join!(bash(DESCRIPTOR_BOMB), bash(DISK_BOMB));
        let memory = server.run_exec(&bombed, json!({ "argv": ["tail", "/dev/zero"], "timeout_s": 20 })).await;
        let both = tokio::join!(bash(MEMORY_BOMB), bash(FORK_BOMB));
        bombs_ended.store(true, std::sync::atomic::Ordering::Relaxed);
        (descriptors, disk, memory, both)
    };
    let have_bombs_ended = || bombs_ended.load(std::sync::atomic::Ordering::Relaxed);
    let ((descriptors, disk, memory, (mixed, forks)), (count, slowest)) =
        tokio::join!(bombs, run_commands_until(&server, &neighbour, have_bombs_ended));
    let line = format!(
        "bombs: {count} commands of the neighbour in {:?}, the slowest {slowest:?}, of ten in quiet {quiet:?}\n",
        started.elapsed()
    );
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));

    let opened: u64 = descriptors.clone().expect_success().trim().parse().unwrap();
    assert!((16..70_000).contains(&opened), "{descriptors:?}");
    assert_eq!(memory.exit["kind"], "out_of_memory", "{memory:?}");
    // Within the disk quota where there is one; in any case the exit has a known kind.
    let known = |ran: &ExecResult| ran.exit["kind"] != "unknown" && !ran.exit["kind"].is_null();
    assert!([&disk, &mixed, &forks].into_iter().all(known), "{disk:?} {mixed:?} {forks:?}");
    assert!(workers.iter().all(host_state::HostProcess::is_alive), "the workers must survive");

    // The sandbox recovers once its processes are gone.
    server.run_shell(&bombed, "kill -s KILL -- -1").await;
    for id in [&bombed, &neighbour] {
        let row = server.get_sandbox(id).await;
        // The agent is one of the processes: the bombs may kill it too, and the reason must say so.
        let killed_with_them = ["agent_crashed", "out_of_memory"].iter().any(|code| row["reason"]["code"] == *code);
        assert!(row["state"] == "running" || (id == &bombed && killed_with_them), "{row}");
    }
    let other = server.create_idle_sandbox(json!({})).await;
    assert_eq!(server.run_shell(&other, "echo new").await.expect_success(), "new\n");
    server.stop_and_check().await;
}
