//! Paused sandboxes and what sandboxes use, through the API.

use atoll_tests::local::{Ground, told};
use serde_json::json;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_sandbox_stands_still_and_goes_on() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let counting = "setsid sh -c 'while :; do echo x >> /workspace/log; sleep 0.02; done' >/dev/null 2>&1 &";
    ground.shell(&id, counting).await;
    let workspace = ground.workspace_of(&id);
    let size = || std::fs::metadata(workspace.join("log")).map_or(0, |found| found.len());
    while size() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let row = ground.admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(200);
    assert_eq!((row["state"].as_str(), row["activity"].as_str()), (Some("running"), Some("paused")), "{row}");
    let before = size();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(size(), before, "nothing runs");
    ground
        .admin
        .post(&format!("/sandboxes/{id}/exec"), json!({ "shell": "true" }))
        .await
        .refused(409, "sandbox_paused");
    ground.admin.post(&format!("/sandboxes/{id}/fork"), json!({})).await.refused(409, "sandbox_paused");
    // Twice is the same as once.
    ground.admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(200);
    let message = ground.send(&id, json!({ "content": "say later" })).await;
    let row = ground.admin.post(&format!("/sandboxes/{id}/resume"), json!({})).await.expect(200);
    assert_ne!(row["activity"], "paused", "{row}");
    ground.delivered(&id, &message).await;
    ground.event(&id, |event| event["data"]["text"] == "later").await;
    let events = ground.admin.all_events(&id).await;
    assert_eq!((told(&events, "sandbox.paused").len(), told(&events, "sandbox.resumed").len()), (1, 1));
    while size() == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // One that is paused can be stopped like any other, its agent is heard.
    ground.admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(200);
    ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect(200);
    assert_eq!(ground.ended(&id).await["state"], "completed");
    ground.admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.refused(409, "illegal_transition");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_in_the_middle_of_its_work_is_paused_and_finishes_it() {
    let ground = Ground::start();
    let id = ground.make(json!({ "prompt": "say one\nrun sleep 1\nsay two" })).await;
    ground.event(&id, |event| event["type"] == "agent.tool_use").await;
    ground.admin.post(&format!("/sandboxes/{id}/pause"), json!({})).await.expect(200);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(ground.row(&id).await["activity"], "paused");
    assert_eq!(atoll_tests::local::said(&ground.admin.all_events(&id).await), ["one"]);
    ground.admin.post(&format!("/sandboxes/{id}/resume"), json!({})).await.expect(200);
    assert_eq!(ground.ended(&id).await["outcome"], "succeeded");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_sandbox_uses_is_seen_from_outside() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let path = format!("/sandboxes/{id}/resources");
    ground.admin.get(&path).await.expect(200);
    let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; head -c 20000000 /dev/zero > big; sleep 30 &";
    ground.shell(&id, work).await.well();
    let seen = ground.admin.get(&path).await.expect(200);
    let now = &seen["now"];
    assert!(now["cpu"].as_f64().unwrap() > 0.0 && now["pids"].as_u64().unwrap() >= 2, "{seen}");
    assert!(now["memory_bytes"].as_u64().unwrap() > 100_000, "{seen}");
    assert!(!seen["items"].as_array().unwrap().is_empty() && seen["limits"]["disk_gb"].as_f64().is_some(), "{seen}");
    for bad in ["step=1", "step=99999", "since=yesterday", "what=1"] {
        ground.admin.get(&format!("{path}?{bad}")).await.refused(400, "bad_request");
    }
    ground.leave().await;
}
