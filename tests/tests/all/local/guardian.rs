//! The guardian over real sandboxes: denials in the worker, pauses and restarts.

use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, agent_messages, event_data};
use serde_json::{Value, json};

/// Commands that the demo agent repeats, with time for the guardian after each group.
fn looping_prompt(groups: usize) -> String {
    let group = "run echo same\n".repeat(3) + "wait 1\n";
    group.repeat(groups) + "say done"
}

fn actions(events: &[Value], event_type: &str) -> Vec<String> {
    event_data(events, event_type).iter().map(|data| data["action"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_looping_agent_is_nudged_in_its_turn_and_its_call_is_denied() {
    let server = LocalServer::start_with_config("guardian: {nudge_cool_down: 0s}");
    let settings = json!({
        "prompt": looping_prompt(3), "approvals": "full", "guardian": { "act": "deny", "repeats": 3 },
    });
    let id = server.create_sandbox(settings).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(actions(&events, "guardian.detected"), ["nudge", "deny", "escalate"], "{events:#?}");
    let told = "I was told: Atoll's guardian: you have called";
    assert!(agent_messages(&events).iter().any(|text| text.contains(told)), "{:?}", agent_messages(&events));
    let injected = event_data(&events, "agent.message_injected");
    assert_eq!(injected.len(), 1, "the nudge must arrive in the running turn: {injected:?}");
    let denied = event_data(&events, "guardian.denied");
    assert_eq!(denied.len(), 3, "each later call is denied: {denied:#?}");
    assert!(denied.iter().all(|data| data["rule"] == "guardian"), "{denied:#?}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_touches_protected_paths_is_paused_until_a_person_resumes_it() {
    let server = LocalServer::start_with_config("guardian: {max_nudges: 0}");
    let settings = json!({
        "prompt": "edit secret/key x\nwait 1\nsay done", "approvals": "full", "protected": ["secret"],
        "guardian": { "act": "pause" },
    });
    let id = server.create_sandbox(settings).await;
    let paused = server.wait_for_event(&id, |event| event["type"] == "sandbox.paused").await;
    assert_eq!(paused["source"], "guardian", "{paused}");
    server.wait_until(&id, |row| row["activity"] == "paused").await;
    server.admin.post(&format!("/sandboxes/{id}/resume"), json!({})).await.expect_status(200);
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    server.stop_and_check().await;
}

/// The session continues in another sandbox with its files, a note and the task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_continues_in_a_fresh_sandbox() {
    let server = LocalServer::start_with_config("guardian: {max_nudges: 0, max_actions: 0}");
    let repository = SampleRepository::create();
    let settings = json!({
        "prompt": format!("edit notes.md begun\n{}", looping_prompt(1).replace("wait 1", "wait 20")),
        "approvals": "full", "repo": { "path": repository.path_str() },
        "guardian": { "act": "restart", "repeats": 3 },
    });
    let id = server.create_sandbox(settings).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["state"], &row["reason"]["code"]), (&json!("completed"), &json!("guardian_restart")), "{row}");
    let followed = server.wait_for_event(&id, |event| event["data"]["next_sandbox_id"].is_string()).await;
    let next = followed["data"]["next_sandbox_id"].as_str().unwrap().to_owned();
    server.track_sandbox(&next);
    let row = server.get_sandbox(&next).await;
    let first = server.get_sandbox(&id).await;
    assert_eq!(row["session_id"], first["session_id"], "{row}");
    let queued = server.wait_for_event(&next, |event| event["type"] == "message.queued").await;
    let note = queued["data"]["content"].as_str().unwrap();
    assert!(note.starts_with("Atoll's guardian: your last sandbox was ended"), "{note}");
    assert!(note.contains("called Bash 3 times in a row") && note.contains("edit notes.md begun"), "{note}");
    server.wait_until(&next, |row| row["state"] == "running" || row["state"] == "completed").await;
    let rows = server.admin.list_all(&format!("/sandboxes/{id}/interventions"), 50).await;
    assert_eq!((&rows[0]["action"], &rows[0]["next_sandbox_id"]), (&json!("restart"), &json!(next)), "{rows:#?}");
    server.admin.post(&format!("/sandboxes/{next}/stop"), json!({ "results": "discard" })).await.expect_status(200);
    server.wait_until_ended(&next).await;
    server.stop_and_check().await;
}
