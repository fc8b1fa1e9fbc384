//! The guardian over real sandboxes: denials in the worker, and pauses.

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
