//! Restarts of the server while sandboxes work and while they are being created.

use atoll_test_wait::wait_until;
use atoll_tests::local::{LocalServer, agent_messages, assert_log_is_complete, event_data, has_ended, host_state};
use atoll_tests::scale;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;

fn counting_prompt(count: usize) -> (String, Vec<String>) {
    let prompt = (0..count).map(|number| format!("say {number}\nwait 0.1\n")).collect();
    (prompt, (0..count).map(|number| number.to_string()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_continues_while_the_server_is_down() {
    let mut server = LocalServer::start();
    let (prompt, expected) = counting_prompt(30);
    let prompt = prompt.replace("say 12\n", "edit half.txt done\nsay 12\n");
    let id = server.create_sandbox(json!({ "prompt": format!("{prompt}edit last.txt done\nrun cat last.txt") })).await;
    server.wait_for_event(&id, |event| event["data"]["text"] == "3").await;
    let before = host_state::list_sandbox_processes(&id);
    block_in_place(|| {
        server.process.kill();
        wait_until("the agent to continue", || server.workspace_dir(&id).join("half.txt").exists());
        assert!(
            before.iter().all(host_state::HostProcess::is_alive),
            "no process of a sandbox may end with the server: {before:?}"
        );
        server.process.restart();
    });
    let started = Instant::now();
    let row = server.wait_until_ended(&id).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");
    assert!(started.elapsed() < Duration::from_secs(50), "{:?}", started.elapsed());
    let events = server.admin.all_events(&id).await;
    assert_log_is_complete(&events);
    assert_eq!(agent_messages(&events), expected, "each message once, in order");
    assert_eq!(event_data(&events, "agent.started").len(), 1, "the agent must not start again");
    assert_eq!(event_data(&events, "agent.tool_completed").last().unwrap()["output"], "done\n");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_and_commands_reach_a_sandbox_after_a_restart() {
    let mut server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    block_in_place(|| server.process.restart());
    let message = server.send_message(&id, json!({ "content": "say again" })).await;
    assert_eq!(server.wait_until_acknowledged(&id, &message).await["turn"], 2);
    server.wait_for_event(&id, |event| event["data"]["text"] == "again").await;
    assert_eq!(server.run_exec(&id, json!({ "argv": ["echo", "here"] })).await.expect_success(), "here\n");
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect_status(200);
    assert_eq!(server.wait_until_ended(&id).await["state"], "completed");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_died_while_the_server_was_down_is_detected_at_the_next_start() {
    let mut server = LocalServer::start();
    let id = server.create_sandbox(json!({ "prompt": "say one\nedit kept.txt hello\nwait 600" })).await;
    server.wait_for_event(&id, |event| event["type"] == "agent.file_edited").await;
    let Some(worker) = host_state::find_worker_process(&id) else {
        atoll_tests::local::report_skipped("a worker that dies alone", "there are no cgroups to find it by");
        return server.stop_and_check().await;
    };
    block_in_place(|| {
        server.process.kill();
        assert!(worker.kill() && worker.ends_in_time());
        server.process.restart();
    });
    let started = Instant::now();
    let row = server.wait_until_ended(&id).await;
    assert!(started.elapsed() < Duration::from_secs(50), "{:?}", started.elapsed());
    assert_eq!((row["state"].as_str(), row["reason"]["code"].as_str()), (Some("failed"), Some("worker_died")), "{row}");
    server.stop_and_check().await;
}

/// The launcher is a process of its own: if it dies, agents continue and the server starts another launcher.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_launcher_does_not_affect_its_sandboxes() {
    let mut server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let mut launchers = host_state::list_children(server.process.pid());
    launchers.retain(|process| process.read_proc_file("cmdline").contains("launcher"));
    assert_eq!(launchers.len(), 1, "{launchers:?}");
    assert!(launchers[0].kill() && launchers[0].ends_in_time());
    let message = server.send_message(&id, json!({ "content": "say still here" })).await;
    server.wait_until_acknowledged(&id, &message).await;
    // The server starts another launcher.
    assert_eq!(server.run_exec(&id, json!({ "argv": ["echo", "there"] })).await.expect_success(), "there\n");
    block_in_place(|| server.process.restart());
    assert_eq!(server.run_exec(&id, json!({ "argv": ["echo", "here"] })).await.expect_success(), "here\n");
    let next = server.create_sandbox(json!({ "prompt": "say next" })).await;
    let row = server.wait_until_ended(&next).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    server.stop_and_check().await;
}

async fn post_sandbox(server: &LocalServer, key: &str, body: &Value) -> Option<Value> {
    let request = server.admin.request(Method::POST, "/sandboxes").header("Idempotency-Key", key).json(body);
    let response = request.send().await.ok()?;
    assert_eq!(response.status().as_u16(), 201);
    response.json().await.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn an_interrupted_creation_yields_one_sandbox_or_fails_cleanly() {
    let mut rng = StdRng::seed_from_u64(scale::choose_seed("local creation"));
    let mut server = block_in_place(LocalServer::start);
    let mut clean_failures = 0;
    let body = LocalServer::sandbox_request(json!({ "prompt": "run echo x >> count.txt\nsay once", "end": "keep" }));
    for round in 0..scale::scale_count(80) {
        let key = format!("creation-{round}");
        let after = Duration::from_millis(rng.random_range(0..120));
        let (first, ()) = tokio::join!(post_sandbox(&server, &key, &body), async {
            tokio::time::sleep(after).await;
        });
        if let Some(created) = &first {
            server.track_sandbox(created["id"].as_str().unwrap());
        }
        block_in_place(|| server.process.kill());
        block_in_place(|| server.process.restart());
        let again = post_sandbox(&server, &key, &body).await.expect("the server must answer");
        let id = again["id"].as_str().unwrap().to_owned();
        assert!(first.is_none_or(|first| first["id"] == id), "one key must create one sandbox");
        server.track_sandbox(&id);
        let settled = |row: &Value| has_ended(row) || row["activity"] == "waiting_message";
        let started = Instant::now();
        let row = server.wait_until(&id, settled).await;
        if row["state"] != "failed" {
            // The activity may be ahead of the events.
            server.wait_for_event(&id, |event| event["type"] == "agent.completed").await;
        }
        let events = server.admin.all_events(&id).await;
        assert!(
            started.elapsed() < Duration::from_secs(50),
            "killed after {after:?}: {:?} {events:#?}",
            started.elapsed()
        );
        if row["state"] == "failed" {
            assert!(!events.iter().any(|event| event["type"] == "agent.started"), "{row}");
            clean_failures += 1;
            server.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect_status(200);
        } else {
            assert_eq!(agent_messages(&events), ["once"], "{row} {events:#?}");
            let counted = server.run_exec(&id, json!({ "argv": ["cat", "count.txt"] })).await.expect_success();
            assert_eq!(counted, "x\n", "the prompt must run once");
            server
                .admin
                .post(&format!("/sandboxes/{id}/stop"), json!({ "results": "discard" }))
                .await
                .expect_status(200);
        }
        server.wait_until_removed(&id).await;
        let sandboxes = server.admin.list_all("/sandboxes", 200).await;
        assert_eq!(sandboxes.len(), round + 1, "one sandbox per round");
    }
    let line = format!("local creation: {clean_failures} clean failures\n");
    drop(std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes()));
    server.stop_and_check().await;
}
