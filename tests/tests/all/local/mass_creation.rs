//! Many creations while the server is killed repeatedly, and many live sandboxes. The next server adopts or removes
//! each sandbox, and the host is clean at the end.

use atoll_test_wait::{poll_for, try_poll_for};
use atoll_tests::actor::Actor;
use atoll_tests::local::host_state::{self, HostProcess};
use atoll_tests::local::{LocalServer, agent_messages, assert_log_is_complete, has_ended, is_root, report_skipped};
use atoll_tests::scale;
use futures_util::StreamExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

/// Number of sandboxes at full scale.
const FULL_SCALE_SANDBOXES: usize = 300;
const CONCURRENT_REQUESTS: usize = 24;
const KILL_COUNT: usize = 6;

/// Retries until the server answers. The idempotency key makes all attempts create one sandbox.
async fn create_sandbox(admin: Actor, number: usize) -> String {
    let settings = match number % 3 {
        0 => json!({ "end": "keep" }),
        1 => json!({ "prompt": format!("say {number}"), "end": "keep" }),
        _ => json!({ "prompt": format!("say {number}") }),
    };
    let request = admin.request(Method::POST, "/sandboxes").header("Idempotency-Key", format!("storm-{number}"));
    let request = request.json(&LocalServer::sandbox_request(settings));
    poll_for("the server to create a sandbox", async || {
        let response = request.try_clone().unwrap().send().await.ok()?;
        let (status, text) = (response.status().as_u16(), response.text().await.unwrap_or_default());
        assert!(status == 201 || status >= 500 || status == 409, "{status}: {text}");
        // A server that was just killed may have truncated its response.
        let created: Value = serde_json::from_str(&text).ok().filter(|_| status == 201)?;
        Some(created["id"].as_str().unwrap().to_owned())
    })
    .await
}

/// Returns true if the sandbox is idle, has done its task, or failed before it ran.
fn is_settled(number: usize, row: &Value) -> bool {
    let is_live = match number % 3 {
        0 => row["state"] == "running",
        1 => row["activity"] == "waiting_message",
        _ => false,
    };
    is_live || has_ended(row)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mass_creation_survives_kills_of_the_server() {
    if !is_root() {
        return report_skipped("a storm of creations", "only root has cgroups to find the processes by");
    }
    // This process reaps orphans and observes their exit.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let mut rng = StdRng::seed_from_u64(scale::choose_seed("storm"));
    let mut server = block_in_place(LocalServer::start);
    let count = scale::scale_count(FULL_SCALE_SANDBOXES);
    let admin = server.admin.clone();
    let creations = tokio::spawn(async move {
        let all = futures_util::stream::iter(0..count).map(|number| create_sandbox(admin.clone(), number));
        all.buffered(CONCURRENT_REQUESTS).collect::<Vec<String>>().await
    });
    let mut launchers: Vec<HostProcess> = Vec::new();
    let mut kills = 0;
    while kills < KILL_COUNT {
        let max_delay_ms = if creations.is_finished() { 100 } else { 1200 };
        tokio::time::sleep(Duration::from_millis(rng.random_range(20..max_delay_ms))).await;
        launchers.extend(host_state::list_children(server.process.pid()));
        block_in_place(|| server.process.kill());
        if rng.random_bool(0.3) {
            let after = Duration::from_millis(rng.random_range(0..300));
            block_in_place(|| server.process.start_and_kill(after));
        }
        block_in_place(|| server.process.restart());
        kills += 1;
    }
    let ids = creations.await.unwrap();
    ids.iter().for_each(|id| server.track_sandbox(id));
    let mut distinct = ids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), count, "each request must create one sandbox");

    let (mut alive, mut interrupted) = (0, 0);
    for (number, id) in ids.iter().enumerate() {
        let polled = try_poll_for(async || {
            let row = server.get_sandbox(id).await;
            if is_settled(number, &row) { Ok(row) } else { Err(row) }
        });
        let row = polled.await.expect("the sandbox must settle");
        let events = server.admin.all_events(id).await;
        assert_log_is_complete(&events);
        let messages = agent_messages(&events);
        assert!(
            messages.is_empty() || messages == [number.to_string()],
            "each sandbox must have its own message once: {messages:?}"
        );
        let ran = events.iter().any(|event| event["type"] == "sandbox.running");
        if row["state"] == "failed" {
            assert!(!ran, "a sandbox that ran must be adopted: {row}");
            interrupted += 1;
        } else if !has_ended(&row) {
            assert_eq!(server.run_exec(id, json!({ "argv": ["echo", id] })).await.expect_success(), format!("{id}\n"));
            alive += 1;
        } else {
            assert_eq!((row["outcome"].as_str(), messages.len()), (Some("succeeded"), 1), "{row}");
        }
    }
    let line = format!("storm: {count} created, {kills} kills, {alive} alive at the end, {interrupted} failed\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    let root_dir = server.root_dir().to_owned();
    server.stop_and_check().await;
    for process in &launchers {
        assert!(process.ends_in_time(), "a launcher is left: {process:?}");
        process.reap();
    }
    assert_eq!(
        host_state::list_processes_with_mounts(&root_dir),
        Vec::<String>::new(),
        "processes that still mount the directory"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_live_sandboxes_all_run_commands() {
    let server = block_in_place(LocalServer::start);
    let count = scale::scale_count(FULL_SCALE_SANDBOXES);
    let started = Instant::now();
    let requests = futures_util::stream::iter(0..count).map(|_| server.create_sandbox(json!({ "end": "keep" })));
    let ids: Vec<String> = requests.buffered(CONCURRENT_REQUESTS).collect().await;
    for id in &ids {
        server.wait_until(id, |row| row["state"] == "running").await;
    }
    let created = started.elapsed();
    for script in ["echo $ID > mine", "cat mine; test $ID = $(cat mine)"] {
        let outputs = futures_util::stream::iter(&ids).map(async |id| {
            server.run_exec(id, json!({ "shell": script, "env": { "ID": id } })).await.expect_success()
        });
        assert_eq!(outputs.buffered(CONCURRENT_REQUESTS).count().await, count, "each sandbox must have its own files");
    }
    let answered = started.elapsed();
    let root_dir = server.root_dir().to_owned();
    if is_root() {
        let workers = host_state::list_processes_with_mounts(&root_dir).len();
        assert!(workers >= count, "each sandbox must have a worker: {workers}");
    }
    server.stop_and_check().await;
    let line = format!(
        "{count} live sandboxes: created after {created:?}, each answered after {answered:?}, gone after {:?}\n",
        started.elapsed()
    );
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    assert_eq!(host_state::list_processes_with_mounts(&root_dir), Vec::<String>::new());
}
