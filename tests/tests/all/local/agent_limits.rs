//! An agent near a limit gets a warning, pauses at the limit, and continues when a user raises it.

use atoll_test_wait::poll_until;
use atoll_tests::local::{LocalServer, agent_messages, event_data, host_state};
use serde_json::{Value, json};
use std::time::Duration;

/// Returns true if a process of the agent is stopped (state `T`).
pub(super) fn is_agent_stopped(id: &str) -> bool {
    let all = host_state::list_leaf_processes(id, "agent");
    // One process is enough: a parent that only waits for the agent is not stopped.
    let states = all.iter().filter_map(|process| std::fs::read_to_string(format!("/proc/{}/stat", process.pid)).ok());
    let mut states = states.filter_map(|stat| stat.rsplit(") ").next()?.chars().next());
    states.any(|state| state == 'T')
}

async fn wait_for_limit(server: &LocalServer, id: &str, limit: &str) -> Value {
    let paused = server.wait_for_event(id, |event| event["type"] == "limit.paused").await;
    assert_eq!(paused["data"]["limit"], limit, "{paused}");
    let row = server.wait_until(id, |row| row["activity"] == "limit_paused").await;
    assert_eq!((&row["limit_paused"], &row["state"]), (&json!(limit), &json!("running")), "{row}");
    paused
}

async fn raise_limits(server: &LocalServer, id: &str, limits: Value) -> Value {
    server.admin.patch(&format!("/sandboxes/{id}/limits"), limits).await.expect_status(200)
}

pub(super) async fn wait_until_agent_stopped(id: &str) {
    poll_until("the agent to stop", async || is_agent_stopped(id)).await;
}

/// The `limit.*` events in log order, without the prefix.
fn limit_events(events: &[Value]) -> Vec<String> {
    let kind = |event: &Value| event["type"].as_str().unwrap().strip_prefix("limit.").map(str::to_owned);
    events.iter().filter_map(kind).collect()
}

fn assert_warned(events: &[Value], words: &str) {
    assert!(
        agent_messages(events).iter().any(|text| text.contains("I was told: Atoll:") && text.contains(words)),
        "{:?}",
        agent_messages(events)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_paused_by_its_time_limit_stays_paused_across_a_restart() {
    let mut server = LocalServer::start();
    let prompt = "say begun\nwait 6\nsay done";
    let id = server.create_sandbox(json!({ "prompt": prompt, "limits": { "turn_s": 3 } })).await;
    let paused = wait_for_limit(&server, &id, "turn_s").await;
    assert!(paused["data"]["used"].as_f64().unwrap() >= 3.0, "{paused}");
    wait_until_agent_stopped(&id).await;
    tokio::task::block_in_place(|| {
        server.process.kill();
        server.process.restart();
    });
    let row = server.wait_until(&id, |row| row["activity"] == "limit_paused").await;
    assert_eq!(row["limit_paused"], "turn_s", "{row}");
    // A limit below the used time does not resume the agent, also a moment later.
    raise_limits(&server, &id, json!({ "turn_s": 2 })).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(is_agent_stopped(&id), "the agent must stay stopped");
    let response = raise_limits(&server, &id, json!({ "turn_s": 600 })).await;
    assert_eq!(response["limits"], json!({ "turn_s": 600 }), "{response}");
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["outcome"], &row["limit_paused"]), (&json!("succeeded"), &Value::Null), "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(limit_events(&events), ["warned", "paused", "changed", "changed", "resumed"]);
    assert_eq!(agent_messages(&events).last().map(String::as_str), Some("done"));
    assert_warned(&events, "3 seconds for this turn");
    let queued = event_data(&events, "message.queued");
    assert!(queued.iter().any(|data| data["type"] == "system"), "{queued:?}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_without_progress_pauses_the_agent() {
    let server = LocalServer::start();
    let prompt = "say begun\nrun sleep 6; echo slept\nsay done";
    let id = server.create_sandbox(json!({ "prompt": prompt, "limits": { "no_progress_s": 3 } })).await;
    wait_for_limit(&server, &id, "no_progress_s").await;
    wait_until_agent_stopped(&id).await;
    let response = raise_limits(&server, &id, json!({ "no_progress_s": null })).await;
    assert_eq!(response["limits"], json!({}), "{response}");
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(limit_events(&events), ["warned", "paused", "changed", "resumed"]);
    let ran = event_data(&events, "agent.tool_completed");
    assert_eq!(
        (&ran[0]["output"], &ran[0]["is_error"]),
        (&json!("slept\n"), &json!(false)),
        "the command must continue too"
    );
    assert_warned(&events, "this turn has made no progress");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_turn_limit_pauses_the_agent_before_the_next_turn() {
    let server = LocalServer::start();
    let id = server.create_sandbox(json!({ "prompt": "say one\nwait 1", "limits": { "turns": 1 } })).await;
    server.wait_for_event(&id, |event| event["data"]["text"] == "one").await;
    server.send_message(&id, json!({ "content": "say two", "delivery": "queue" })).await;
    wait_for_limit(&server, &id, "turns").await;
    let events = server.admin.all_events(&id).await;
    assert_warned(&events, "the last of 1 turns");
    assert!(!agent_messages(&events).contains(&"two".to_owned()));
    raise_limits(&server, &id, json!({ "turns": 5 })).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["outcome"], &row["turn"]), (&json!("succeeded"), &json!(2)), "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(limit_events(&events), ["warned", "paused", "changed", "resumed"]);
    assert_eq!(agent_messages(&events).last().map(String::as_str), Some("two"));
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_paused_by_a_limit_can_be_interrupted_and_stopped() {
    let server = LocalServer::start();
    let limits = json!({ "turn_s": 1 });
    let id = server.create_sandbox(json!({ "prompt": "wait 60\nsay never", "end": "keep", "limits": limits })).await;
    wait_for_limit(&server, &id, "turn_s").await;
    server.send_message(&id, json!({ "content": "enough", "type": "interrupt" })).await;
    server.wait_for_event(&id, |event| event["type"] == "limit.resumed").await;
    let row = server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!((&row["state"], &row["limit_paused"]), (&json!("running"), &Value::Null), "{row}");
    server.send_message(&id, json!({ "content": "say again\nwait 60" })).await;
    server.wait_until(&id, |row| row["activity"] == "limit_paused").await;
    wait_until_agent_stopped(&id).await;
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect_status(200);
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "cancelled", "{row}");
    let events = server.admin.all_events(&id).await;
    assert!(event_data(&events, "agent.failed").is_empty(), "a limit must not kill the agent");
    server
        .admin
        .patch(&format!("/sandboxes/{id}/limits"), json!({ "turns": 3 }))
        .await
        .expect_problem(409, "sandbox_ended");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_rules_decide_before_a_tool_runs_and_the_guardian_nudges() {
    let server = LocalServer::start();
    let prompt = "run git push origin main\nedit secret/key x\nrun echo old\nrun echo a\nrun echo a\nrun echo a\nwait 5\nsay done";
    let settings = json!({
        "prompt": prompt,
        "approvals": "full",
        "protected": ["secret"],
        "guardian": { "act": "nudge", "repeats": 3 },
        "policy": { "rules": [
            { "commands": ["git push"], "then": "deny", "reason": "pushing is not yours to do" },
            { "commands": ["echo old"], "then": "change", "set": { "command": "echo new" } },
        ] },
    });
    let id = server.create_sandbox(settings).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = server.admin.all_events(&id).await;
    let denied = event_data(&events, "guardian.denied");
    let rules: Vec<&Value> = denied.iter().map(|data| &data["rule"]).collect();
    assert_eq!(rules, ["rules[0]", "protected"], "{denied:#?}");
    let ran = event_data(&events, "agent.tool_completed");
    assert_eq!((&ran[0]["output"], &ran[0]["is_error"]), (&json!("pushing is not yours to do"), &json!(true)));
    assert!(ran[1]["output"].as_str().unwrap().contains("is protected"), "{}", ran[1]);
    assert_eq!(ran[2]["output"], "new\n", "a rule must change the input");
    let detected = event_data(&events, "guardian.detected");
    let detectors: Vec<&Value> = detected.iter().map(|data| &data["detector"]).collect();
    assert_eq!(detectors, ["protected_path", "repeated_call"], "{detected:#?}");
    assert_eq!(
        (&detected[1]["times"], detected[1]["evidence"].as_array().unwrap().len()),
        (&json!(3), 3),
        "{}",
        detected[1]
    );
    // The second detection comes too soon after the first nudge to cause another.
    let nudged = event_data(&events, "guardian.nudged");
    assert_eq!(nudged.len(), 1, "{nudged:#?}");
    assert!(
        agent_messages(&events).iter().any(|text| text.contains("Atoll's guardian: `secret/key` is protected")),
        "{:?}",
        agent_messages(&events)
    );
    server.stop_and_check().await;
}
