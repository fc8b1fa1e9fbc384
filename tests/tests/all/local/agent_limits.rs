//! An agent at a limit is warned, stands still, and goes on from there when a person raises it.

use atoll_tests::local::{Ground, PATIENCE, said, told, traces};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Whether everything of the agent stands still.
pub(super) fn stands_still(id: &str) -> bool {
    let all = traces::leaf(id, "agent");
    // Those that start it, and what it has started; who only waits for it is not stopped.
    let states = all.iter().filter_map(|process| std::fs::read_to_string(format!("/proc/{}/stat", process.pid)).ok());
    let mut states = states.filter_map(|stat| stat.rsplit(") ").next()?.chars().next());
    states.any(|state| state == 'T')
}

async fn reaches(ground: &Ground, id: &str, limit: &str) -> Value {
    let paused = ground.event(id, |event| event["type"] == "limit.paused").await;
    assert_eq!(paused["data"]["limit"], limit, "{paused}");
    let row = ground.until(id, |row| row["activity"] == "limit_paused").await;
    assert_eq!((&row["limit_paused"], &row["state"]), (&json!(limit), &json!("running")), "{row}");
    paused
}

async fn raise(ground: &Ground, id: &str, limits: Value) -> Value {
    ground.admin.patch(&format!("/sandboxes/{id}/limits"), limits).await.expect(200)
}

pub(super) async fn stops_soon(id: &str) {
    let until = Instant::now() + PATIENCE;
    while !stands_still(id) {
        assert!(Instant::now() < until, "the agent goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What was said about a limit, in the order of the log.
fn story(events: &[Value]) -> Vec<String> {
    let of = |event: &Value| event["type"].as_str().unwrap().strip_prefix("limit.").map(str::to_owned);
    events.iter().filter_map(of).collect()
}

fn was_warned(events: &[Value], words: &str) {
    assert!(
        said(events).iter().any(|text| text.contains("I was told: Atoll:") && text.contains(words)),
        "{:?}",
        said(events)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_turn_waits_for_a_person_also_over_a_restart() {
    let mut ground = Ground::start();
    let prompt = "say begun\nwait 6\nsay done";
    let id = ground.make(json!({ "prompt": prompt, "limits": { "turn_s": 3 } })).await;
    let paused = reaches(&ground, &id, "turn_s").await;
    assert!(paused["data"]["used"].as_f64().unwrap() >= 3.0, "{paused}");
    stops_soon(&id).await;
    tokio::task::block_in_place(|| {
        ground.server.kill();
        ground.server.start_again();
    });
    let row = ground.until(&id, |row| row["activity"] == "limit_paused").await;
    assert_eq!(row["limit_paused"], "turn_s", "{row}");
    // Not enough is not a raise.
    raise(&ground, &id, json!({ "turn_s": 2 })).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(stands_still(&id), "it has no more time than before");
    let shown = raise(&ground, &id, json!({ "turn_s": 600 })).await;
    assert_eq!(shown["limits"], json!({ "turn_s": 600 }), "{shown}");
    let row = ground.ended(&id).await;
    assert_eq!((&row["outcome"], &row["limit_paused"]), (&json!("succeeded"), &Value::Null), "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_eq!(story(&events), ["warned", "paused", "changed", "changed", "resumed"]);
    assert_eq!(said(&events).last().map(String::as_str), Some("done"));
    was_warned(&events, "3 seconds for this turn");
    let queued = told(&events, "message.queued");
    assert!(queued.iter().any(|data| data["type"] == "system"), "{queued:?}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_that_nothing_comes_of_waits_for_a_person() {
    let ground = Ground::start();
    let prompt = "say begun\nrun sleep 6; echo slept\nsay done";
    let id = ground.make(json!({ "prompt": prompt, "limits": { "no_progress_s": 3 } })).await;
    reaches(&ground, &id, "no_progress_s").await;
    stops_soon(&id).await;
    let shown = raise(&ground, &id, json!({ "no_progress_s": null })).await;
    assert_eq!(shown["limits"], json!({}), "{shown}");
    let row = ground.ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_eq!(story(&events), ["warned", "paused", "changed", "resumed"]);
    let ran = told(&events, "agent.tool_completed");
    assert_eq!(
        (&ran[0]["output"], &ran[0]["is_error"]),
        (&json!("slept\n"), &json!(false)),
        "its command went on, too"
    );
    was_warned(&events, "nothing has come of this turn");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_turn_after_the_last_waits_for_a_person() {
    let ground = Ground::start();
    let id = ground.make(json!({ "prompt": "say one\nwait 1", "limits": { "turns": 1 } })).await;
    ground.event(&id, |event| event["data"]["text"] == "one").await;
    ground.send(&id, json!({ "content": "say two", "delivery": "queue" })).await;
    reaches(&ground, &id, "turns").await;
    let events = ground.admin.all_events(&id).await;
    was_warned(&events, "the last of 1 turns");
    assert!(!said(&events).contains(&"two".to_owned()));
    raise(&ground, &id, json!({ "turns": 5 })).await;
    let row = ground.ended(&id).await;
    assert_eq!((&row["outcome"], &row["turn"]), (&json!("succeeded"), &json!(2)), "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_eq!(story(&events), ["warned", "paused", "changed", "resumed"]);
    assert_eq!(said(&events).last().map(String::as_str), Some("two"));
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_agent_can_be_interrupted_and_stopped() {
    let ground = Ground::start();
    let limits = json!({ "turn_s": 1 });
    let id = ground.make(json!({ "prompt": "wait 60\nsay never", "end": "keep", "limits": limits })).await;
    reaches(&ground, &id, "turn_s").await;
    ground.send(&id, json!({ "content": "enough", "type": "interrupt" })).await;
    ground.event(&id, |event| event["type"] == "limit.resumed").await;
    let row = ground.until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!((&row["state"], &row["limit_paused"]), (&json!("running"), &Value::Null), "{row}");
    ground.send(&id, json!({ "content": "say again\nwait 60" })).await;
    ground.until(&id, |row| row["activity"] == "limit_paused").await;
    stops_soon(&id).await;
    ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect(200);
    let row = ground.ended(&id).await;
    assert_eq!(row["outcome"], "cancelled", "{row}");
    let events = ground.admin.all_events(&id).await;
    assert!(told(&events, "agent.failed").is_empty(), "nobody was killed for a limit");
    ground.admin.patch(&format!("/sandboxes/{id}/limits"), json!({ "turns": 3 })).await.refused(409, "sandbox_ended");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_decide_before_a_tool_runs_and_the_guardian_watches() {
    let ground = Ground::start();
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
    let id = ground.make(settings).await;
    let row = ground.ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = ground.admin.all_events(&id).await;
    let denied = told(&events, "guardian.denied");
    let rules: Vec<&Value> = denied.iter().map(|data| &data["rule"]).collect();
    assert_eq!(rules, ["rules[0]", "protected"], "{denied:#?}");
    let ran = told(&events, "agent.tool_completed");
    assert_eq!((&ran[0]["output"], &ran[0]["is_error"]), (&json!("pushing is not yours to do"), &json!(true)));
    assert!(ran[1]["output"].as_str().unwrap().contains("is protected"), "{}", ran[1]);
    assert_eq!(ran[2]["output"], "new\n", "a rule gave it other input");
    let found = told(&events, "guardian.detected");
    let detectors: Vec<&Value> = found.iter().map(|data| &data["detector"]).collect();
    assert_eq!(detectors, ["protected_path", "repeated_call"], "{found:#?}");
    assert_eq!((&found[1]["times"], found[1]["evidence"].as_array().unwrap().len()), (&json!(3), 3), "{}", found[1]);
    // The second comes too soon after the first for another word.
    let nudged = told(&events, "guardian.nudged");
    assert_eq!(nudged.len(), 1, "{nudged:#?}");
    assert!(
        said(&events).iter().any(|text| text.contains("Atoll's guardian: `secret/key` is protected")),
        "{:?}",
        said(&events)
    );
    ground.leave().await;
}
