//! Fork, memory and output bombs stay within their sandbox: its worker and other sandboxes are unaffected.

use atoll_test_wait::try_poll_for;
use atoll_tests::local::{LocalServer, host_state, report_skipped};
use serde_json::json;
use std::time::{Duration, Instant};

async fn assert_responsive(server: &LocalServer, id: &str) {
    let started = Instant::now();
    let ran = server.run_exec(id, json!({ "argv": ["echo", "well"] })).await;
    assert_eq!(ran.expect_success(), "well\n");
    assert!(started.elapsed() < Duration::from_secs(50), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_bomb_stays_within_the_process_limit() {
    let server = LocalServer::start();
    let bombed = server.create_idle_sandbox(json!({ "resources": { "pids": 64 } })).await;
    let neighbour = server.create_idle_sandbox(json!({})).await;
    if host_state::count_agent_processes(&bombed).is_none() {
        report_skipped("a fork bomb", "nothing here bounds the number of processes");
        return server.stop_and_check().await;
    }
    let worker = host_state::find_worker_process(&bombed).unwrap();
    let bomb =
        "bomb() { bomb | bomb & }; bomb 2>/dev/null; for i in $(seq 300); do sleep 67 & done 2>/dev/null; sleep 67";
    let bomb_run = server.run_exec(&bombed, json!({ "shell": bomb, "timeout_s": 4 }));
    let observed = async {
        let mut most = 0;
        // Sample the bomb for a while: it must never exceed the limit.
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            most = most.max(host_state::count_agent_processes(&bombed).unwrap());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_responsive(&server, &neighbour).await;
        most
    };
    let (_, most) = tokio::join!(bomb_run, observed);
    assert!((20..=64).contains(&most), "{most} processes at once");
    assert!(worker.is_alive(), "the worker must survive");
    assert_eq!(server.get_sandbox(&bombed).await["state"], "running");
    // Stopping the sandbox kills the remaining processes of the bomb.
    let left = host_state::list_leaf_processes(&bombed, "agent");
    server.admin.post(&format!("/sandboxes/{bombed}/stop"), json!({ "results": "discard" })).await.expect_status(200);
    server.wait_until_removed(&bombed).await;
    assert!(left.iter().all(|process| process.ends_in_time()), "{left:?}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_bomb_kills_neither_its_worker_nor_another_sandbox() {
    let server = LocalServer::start();
    let bombed = server.create_idle_sandbox(json!({ "resources": { "memory_gb": 0.15 } })).await;
    let neighbour = server.create_idle_sandbox(json!({})).await;
    if !host_state::has_memory_limit(&bombed) {
        report_skipped("a memory bomb", "nothing here enforces a memory limit");
        return server.stop_and_check().await;
    }
    let (worker, bystander) =
        (host_state::find_worker_process(&bombed).unwrap(), host_state::find_worker_process(&neighbour).unwrap());
    for _ in 0..3 {
        let ran = server.run_exec(&bombed, json!({ "argv": ["tail", "/dev/zero"] })).await;
        assert_eq!(ran.exit["kind"], "out_of_memory", "{ran:?}");
        assert_responsive(&server, &neighbour).await;
        assert_responsive(&server, &bombed).await;
    }
    // Temporary files count towards the memory limit.
    let ran = server
        .run_exec(&bombed, json!({ "shell": "head -c 400M /dev/zero > /tmp/zero; rm -f /tmp/zero", "timeout_s": 30 }));
    assert_ne!(ran.await.exit["kind"], "unknown");
    assert!(worker.is_alive() && bystander.is_alive(), "the workers must survive");
    assert_eq!(server.get_sandbox(&bombed).await["state"], "running");
    assert_responsive(&server, &bombed).await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_files_and_output_of_a_command_are_limited() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let limit = server.run_shell(&id, "ulimit -n").await.expect_success();
    assert!(limit.trim().parse::<u64>().is_ok_and(|most| most <= 65_536), "{limit}");
    let ran = server.run_exec(&id, json!({ "shell": "yes | head -c 3000000", "timeout_s": 60 })).await;
    assert_eq!(ran.exit, json!({ "kind": "exited", "code": 0 }));
    assert!(!ran.stdout.is_empty() && ran.stdout.len() <= 3_000_000, "{}", ran.stdout.len());
    assert_responsive(&server, &id).await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn background_processes_end_with_the_sandbox() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let daemons =
        "for i in 1 2 3; do setsid nohup sh -c 'trap \"\" TERM HUP; while :; do sleep 68; done' >/dev/null 2>&1 & done";
    server.run_shell(&id, &format!("{daemons}; true")).await.expect_success();
    if host_state::find_cgroups(&id).is_empty() {
        report_skipped("what was sent to the background", "there are no cgroups to find it by");
        return server.stop_and_check().await;
    }
    // The shell does not wait until the background processes run.
    let polled = try_poll_for(async || {
        let processes = host_state::list_sandbox_processes(&id);
        let sleeping = processes.iter().filter(|process| process.read_proc_file("cmdline").contains("sleep 68"));
        if sleeping.count() >= 3 { Ok(processes) } else { Err(processes) }
    });
    let processes = polled.await.expect("the background processes must start");
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect_status(200);
    server.wait_until_ended(&id).await;
    server.wait_until_removed(&id).await;
    assert!(processes.iter().all(|process| process.ends_in_time()), "{processes:?}");
    server.stop_and_check().await;
}
