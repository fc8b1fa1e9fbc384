//! Pausing sandboxes and reading their resource use, over the API.

use atoll_test_wait::poll_until;
use atoll_tests::local::{LocalServer, event_data};
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_sandbox_stops_and_continues_after_resume() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let counting = "setsid sh -c 'while :; do echo x >> /workspace/log; sleep 0.02; done' >/dev/null 2>&1 &";
    server.run_shell(&id, counting).await;
    let workspace = server.workspace_dir(&id);
    let size = || std::fs::metadata(workspace.join("log")).map_or(0, |metadata| metadata.len());
    poll_until("the first line", async || size() > 0).await;
    let row = server.admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect_status(200);
    assert_eq!((row["state"].as_str(), row["activity"].as_str()), (Some("running"), Some("paused")), "{row}");
    // Many times the interval of the loop.
    let before = size();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(size(), before, "no process may run");
    server
        .admin
        .post(&format!("/sandboxes/{id}/exec"), json!({ "shell": "true" }))
        .await
        .expect_problem(409, "sandbox_paused");
    server.admin.post(&format!("/sandboxes/{id}/fork"), json!({})).await.expect_problem(409, "sandbox_paused");
    // Pausing is idempotent.
    server.admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect_status(200);
    let message = server.send_message(&id, json!({ "content": "say later" })).await;
    let row = server.admin.post(&format!("/sandboxes/{id}/resume"), json!({})).await.expect_status(200);
    assert_ne!(row["activity"], "paused", "{row}");
    server.wait_until_acknowledged(&id, &message).await;
    server.wait_for_event(&id, |event| event["data"]["text"] == "later").await;
    let events = server.admin.all_events(&id).await;
    assert_eq!((event_data(&events, "sandbox.paused").len(), event_data(&events, "sandbox.resumed").len()), (1, 1));
    poll_until("the next line", async || size() > before).await;
    // A paused sandbox can be stopped, and its agent finishes normally.
    server.admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect_status(200);
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect_status(200);
    assert_eq!(server.wait_until_ended(&id).await["state"], "completed");
    server.admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect_problem(409, "illegal_transition");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_paused_during_a_turn_finishes_it_after_resume() {
    let server = LocalServer::start();
    let id = server.create_sandbox(json!({ "prompt": "say one\nrun sleep 1\nsay two" })).await;
    server.wait_for_event(&id, |event| event["type"] == "agent.tool_use").await;
    server.admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect_status(200);
    // Longer than the command.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(server.get_sandbox(&id).await["activity"], "paused");
    assert_eq!(atoll_tests::local::agent_messages(&server.admin.all_events(&id).await), ["one"]);
    server.admin.post(&format!("/sandboxes/{id}/resume"), json!({})).await.expect_status(200);
    assert_eq!(server.wait_until_ended(&id).await["outcome"], "succeeded");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resource_use_of_a_sandbox_is_reported() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let path = format!("/sandboxes/{id}/resources");
    server.admin.get(&path).await.expect_status(200);
    let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; head -c 20000000 /dev/zero > big; sleep 30 &";
    server.run_shell(&id, work).await.expect_success();
    let usage = server.admin.get(&path).await.expect_status(200);
    let now = &usage["now"];
    assert!(now["cpu"].as_f64().unwrap() > 0.0 && now["pids"].as_u64().unwrap() >= 2, "{usage}");
    assert!(now["memory_bytes"].as_u64().unwrap() > 100_000, "{usage}");
    assert!(!usage["items"].as_array().unwrap().is_empty() && usage["limits"]["disk_gb"].as_f64().is_some(), "{usage}");
    for bad in ["step=1", "step=99999", "since=yesterday", "what=1"] {
        server.admin.get(&format!("{path}?{bad}")).await.expect_problem(400, "bad_request");
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_use_of_a_sandbox_grows_with_its_own_files() {
    const WRITTEN: u64 = 30_000_000;
    let server = LocalServer::start();
    let writer = server.create_idle_sandbox(json!({})).await;
    let neighbour = server.create_idle_sandbox(json!({})).await;
    let (writer_before, neighbour_before) = (disk_use(&server, &writer).await, disk_use(&server, &neighbour).await);
    let write = format!("head -c {WRITTEN} /dev/urandom >/workspace/large; sync /workspace/large");
    server.run_shell(&writer, &write).await.expect_success();
    server.run_shell(&neighbour, "date >/workspace/small").await.expect_success();
    poll_until("the writer's disk use to grow", async || disk_use(&server, &writer).await > writer_before + WRITTEN)
        .await;
    let grown = disk_use(&server, &writer).await - writer_before;
    assert!(grown < WRITTEN + WRITTEN / 10, "{grown}");
    let grown = disk_use(&server, &neighbour).await - neighbour_before;
    assert!(grown < 1_000_000, "{grown}");
    let series = server.admin.get(&format!("/sandboxes/{writer}/resources")).await.expect_status(200);
    assert!(series["items"].as_array().unwrap().last().unwrap()["disk_bytes"].as_u64().is_some(), "{series}");
    server.stop_and_check().await;
}

async fn disk_use(server: &LocalServer, id: &str) -> u64 {
    let series = server.admin.get(&format!("/sandboxes/{id}/resources")).await.expect_status(200);
    series["now"]["disk_bytes"].as_u64().unwrap()
}
