//! Cost limits while an agent works. Each request costs $0.0051; its estimate before the call is $0.0016.

use super::super::agent_limits::{is_agent_stopped, wait_until_agent_stopped};
use super::fake_upstream::FakeUpstream;
use super::{messages_arguments, start_server, wait_for_cost};
use atoll_tests::local::{agent_messages, assert_log_is_complete, event_data};
use serde_json::{Value, json};
use tokio::task::block_in_place;

fn request_command() -> String {
    format!(
        "curl -sf -o /dev/null {}",
        messages_arguments("claude-sonnet-4-5", 100).replace("$KEY", "$ATOLL_GATEWAY_KEY")
    )
}

/// Allows three requests. The second one crosses the warning threshold.
const COST_LIMIT_USD: f64 = 0.0125;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_at_its_cost_limit_stays_paused_across_restarts() {
    let upstream = FakeUpstream::start().await;
    let mut server = start_server(&upstream, "");
    let request = request_command();
    let prompt = format!(
        "run {request}\nrun {request}\nwait 1\nrun {request}\nwait 1\nrun until {request}; do sleep 0.2; done\nsay done"
    );
    let id = server.create_sandbox(json!({ "prompt": prompt, "limits": { "cost_usd": COST_LIMIT_USD } })).await;
    let paused = server.wait_for_event(&id, |event| event["type"] == "limit.paused").await;
    assert_eq!(paused["data"]["limit"], "cost_usd", "{paused}");
    wait_for_cost(&server, &id, 0.0153).await;
    wait_until_agent_stopped(&id).await;
    for hard in [true, false] {
        block_in_place(|| {
            if hard {
                server.process.kill();
            } else {
                server.process.terminate();
                server.process.wait_for_exit();
            }
            server.process.restart();
        });
        let row = server.wait_until(&id, |row| row["activity"] == "limit_paused").await;
        assert_eq!((&row["state"], &row["limit_paused"]), (&json!("running"), &json!("cost_usd")), "{row}");
        // The response proves that the worker has connected to the new server.
        server.run_shell(&id, "true").await.expect_success();
        assert!(is_agent_stopped(&id), "the agent must stay stopped");
    }
    assert_eq!(upstream.requests().len(), 3, "a paused agent sends no requests");
    let path = format!("/sandboxes/{id}/limits");
    let response = server.admin.patch(&path, json!({ "cost_usd": 0.5 })).await.expect_status(200);
    assert_eq!((&response["limit_paused"], &response["cost_usd"]), (&Value::Null, &json!(0.0153)), "{response}");
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = server.admin.all_events(&id).await;
    assert_log_is_complete(&events);
    let limit_events: Vec<&str> =
        events.iter().filter_map(|event| event["type"].as_str()?.strip_prefix("limit.")).collect();
    assert_eq!(limit_events, ["warned", "paused", "changed", "resumed"], "one event of each type");
    let warned = event_data(&events, "limit.warned")[0];
    assert_eq!((&warned["limit"], &warned["used"]), (&json!("cost_usd"), &json!(0.0102)), "{warned}");
    let messages = agent_messages(&events);
    let warnings = messages.iter().filter(|text| text.contains("$0.0125 for models is spent")).count();
    assert_eq!(warnings, 1, "{messages:?}");
    assert_eq!(messages.last().map(String::as_str), Some("done"));
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continuous_work_stops_at_its_own_cost_limit() {
    let upstream = FakeUpstream::start().await;
    let server = start_server(&upstream, "");
    let request = request_command();
    let prompt = format!("run for i in 1 2 3 4 5 6; do {request}; done\nwait 600");
    let task = json!({ "checks": ["true"], "cost_usd": COST_LIMIT_USD });
    let id = server.create_sandbox(json!({ "prompt": prompt, "continuous": task })).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["state"], &row["reason"]["code"]), (&json!("failed"), &json!("continuous_cost")), "{row}");
    assert!(row["reason"]["detail"].as_str().unwrap().contains("$0.0125 limit for models"), "{row}");
    assert_eq!(upstream.requests().len(), 3, "the gateway must send no other");
    let events = server.admin.all_events(&id).await;
    assert_log_is_complete(&events);
    assert_eq!(event_data(&events, "continuous.stopped")[0]["reason"], "cost", "{events:#?}");
    assert!(event_data(&events, "continuous.validating").is_empty() && event_data(&events, "limit.paused").is_empty());
    let refused = event_data(&events, "model.refused")[0];
    assert!(refused["detail"].as_str().unwrap().contains("continuous.cost_usd"), "{refused}");

    // A sandbox with `end: keep` waits for the next message, which has a new cost allowance.
    let id = server.create_sandbox(json!({ "prompt": prompt, "continuous": task, "end": "keep" })).await;
    let stopped = server.wait_for_event(&id, |event| event["type"] == "continuous.stopped").await;
    assert_eq!(stopped["data"]["reason"], "cost", "{stopped}");
    server.wait_for_event(&id, |event| event["type"] == "agent.interrupted").await;
    server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!(upstream.requests().len(), 6);
    server.send_message(&id, json!({ "content": format!("run until {request}; do sleep 0.2; done") })).await;
    server.wait_for_event(&id, |event| event["type"] == "continuous.passed").await;
    assert_eq!(upstream.requests().len(), 7);
    server.stop_and_check().await;
}
