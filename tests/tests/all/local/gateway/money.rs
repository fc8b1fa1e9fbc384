//! Limits in dollars while an agent works. Each request costs $0.0051, and may cost about $0.0016 for what is known of it
//! beforehand.

use super::super::agent_limits::{stands_still, stops_soon};
use super::upstream::Upstream;
use super::{costs, ground, messages};
use atoll_tests::local::{assert_whole, said, told};
use serde_json::{Value, json};
use tokio::task::block_in_place;

fn ask() -> String {
    format!("curl -sf -o /dev/null {}", messages("claude-sonnet-4-5", 100).replace("$KEY", "$ATOLL_GATEWAY_KEY"))
}

/// Has room for three: after the second most of it is used.
const THREE: f64 = 0.0125;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_money_is_used_up_waits_for_a_person_also_over_a_restart() {
    let upstream = Upstream::start().await;
    let mut ground = ground(&upstream, "");
    let ask = ask();
    let prompt =
        format!("run {ask}\nrun {ask}\nwait 1\nrun {ask}\nwait 1\nrun until {ask}; do sleep 0.2; done\nsay done");
    let id = ground.make(json!({ "prompt": prompt, "limits": { "cost_usd": THREE } })).await;
    let paused = ground.event(&id, |event| event["type"] == "limit.paused").await;
    assert_eq!(paused["data"]["limit"], "cost_usd", "{paused}");
    costs(&ground, &id, 0.0153).await;
    stops_soon(&id).await;
    for hard in [true, false] {
        block_in_place(|| {
            if hard {
                ground.server.kill();
            } else {
                ground.server.terminate();
                assert!(ground.server.wait(atoll_tests::local::PATIENCE).is_some());
            }
            ground.server.start_again();
        });
        let row = ground.until(&id, |row| row["activity"] == "limit_paused").await;
        assert_eq!((&row["state"], &row["limit_paused"]), (&json!("running"), &json!("cost_usd")), "{row}");
        // The worker has spoken to the new server once this is answered.
        ground.shell(&id, "true").await.well();
        assert!(stands_still(&id), "nobody raised anything");
    }
    assert_eq!(upstream.requests().len(), 3, "nothing was asked meanwhile");
    let path = format!("/sandboxes/{id}/limits");
    let shown = ground.admin.patch(&path, json!({ "cost_usd": 0.5 })).await.expect(200);
    assert_eq!((&shown["limit_paused"], &shown["cost_usd"]), (&Value::Null, &json!(0.0153)), "{shown}");
    let row = ground.ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_whole(&events);
    let story: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()?.strip_prefix("limit.")).collect();
    assert_eq!(story, ["warned", "paused", "changed", "resumed"], "each once");
    let warned = told(&events, "limit.warned")[0];
    assert_eq!((&warned["limit"], &warned["used"]), (&json!("cost_usd"), &json!(0.0102)), "{warned}");
    let said = said(&events);
    let heard = said.iter().filter(|text| text.contains("$0.0125 for models is spent")).count();
    assert_eq!(heard, 1, "{said:?}");
    assert_eq!(said.last().map(String::as_str), Some("done"));
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_s_own_money_ends_it_within_a_run() {
    let upstream = Upstream::start().await;
    let ground = ground(&upstream, "");
    let ask = ask();
    let prompt = format!("run for i in 1 2 3 4 5 6; do {ask}; done\nwait 600");
    let task = json!({ "checks": ["true"], "cost_usd": THREE });
    let id = ground.make(json!({ "prompt": prompt, "continuous": task })).await;
    let row = ground.ended(&id).await;
    assert_eq!((&row["state"], &row["reason"]["code"]), (&json!("failed"), &json!("continuous_cost")), "{row}");
    assert!(row["reason"]["detail"].as_str().unwrap().contains("$0.0125 for models"), "{row}");
    assert_eq!(upstream.requests().len(), 3, "no other was sent");
    let events = ground.admin.all_events(&id).await;
    assert_whole(&events);
    assert_eq!(told(&events, "continuous.stopped")[0]["reason"], "cost", "{events:#?}");
    assert!(told(&events, "continuous.validating").is_empty() && told(&events, "limit.paused").is_empty());
    let refused = told(&events, "model.refused")[0];
    assert!(refused["detail"].as_str().unwrap().contains("continuous.cost_usd"), "{refused}");

    // One that is kept waits for the next message, whose work has money of its own.
    let id = ground.make(json!({ "prompt": prompt, "continuous": task, "end": "keep" })).await;
    let stopped = ground.event(&id, |event| event["type"] == "continuous.stopped").await;
    assert_eq!(stopped["data"]["reason"], "cost", "{stopped}");
    ground.event(&id, |event| event["type"] == "agent.interrupted").await;
    ground.until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!(upstream.requests().len(), 6);
    ground.send(&id, json!({ "content": format!("run until {ask}; do sleep 0.2; done") })).await;
    ground.event(&id, |event| event["type"] == "continuous.passed").await;
    assert_eq!(upstream.requests().len(), 7);
    ground.leave().await;
}
