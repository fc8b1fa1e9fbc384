//! What is sent while an agent works reaches it there and then.

use atoll_tests::local::repository::Repository;
use atoll_tests::local::{Ground, said, told};
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_reaches_a_working_agent_and_shows_in_what_it_does() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let prompt = "say one\nwait 60\nsay two";
    let id = ground.make(json!({ "prompt": prompt, "repo": { "path": repository.text() }, "end": "keep" })).await;
    ground.event(&id, |event| event["data"]["text"] == "one").await;
    let message = ground.send(&id, json!({ "content": "say steered\nedit steered.txt by a message" })).await;
    let shown = ground.delivered(&id, &message).await;
    assert_eq!((shown["how"].as_str(), shown["turn"].as_i64()), (Some("injected"), Some(1)), "{shown}");
    ground.event(&id, |event| event["data"]["text"] == "steered").await;
    let edited = ground.event(&id, |event| event["data"]["file_path"] == "steered.txt").await;
    assert_eq!((edited["type"].as_str(), edited["turn"].as_i64()), (Some("agent.file_edited"), Some(1)), "{edited}");

    let began = Instant::now();
    ground.send(&id, json!({ "content": "enough", "type": "interrupt" })).await;
    ground.until(&id, |row| row["activity"] == "waiting_message").await;
    assert!(began.elapsed() < Duration::from_secs(10), "an interrupt does not wait: {:?}", began.elapsed());
    let events = ground.admin.all_events(&id).await;
    assert_eq!(said(&events), ["one", "steered"], "it was interrupted before the rest");
    let injected = told(&events, "agent.message_injected");
    assert!(injected.iter().any(|data| data["message_id"] == message), "{injected:?}");
    assert_eq!(told(&events, "agent.interrupted").len(), 1);

    let next = ground.send(&id, json!({ "content": "say three" })).await;
    let shown = ground.delivered(&id, &next).await;
    assert_eq!((shown["how"].as_str(), shown["turn"].as_i64()), (Some("new_turn"), Some(2)), "{shown}");
    ground.event(&id, |event| event["data"]["text"] == "three" && event["turn"] == 2).await;
    ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect(200);
    assert_eq!(ground.ended(&id).await["state"], "completed");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_message_waits_for_the_end_of_the_turn() {
    let ground = Ground::start();
    let id = ground.make(json!({ "prompt": "say one\nwait 1\nsay two" })).await;
    ground.event(&id, |event| event["data"]["text"] == "one").await;
    let message = ground.send(&id, json!({ "content": "say three", "delivery": "queue" })).await;
    let row = ground.ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_eq!(said(&events), ["one", "two", "three"]);
    let shown = ground.delivered(&id, &message).await;
    assert_eq!((shown["how"].as_str(), shown["turn"].as_i64()), (Some("new_turn"), Some(2)), "{shown}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_ends_a_running_command() {
    let ground = Ground::start();
    let id = ground.make(json!({ "prompt": "run sleep 63\nsay never", "end": "keep" })).await;
    ground.event(&id, |event| event["type"] == "agent.tool_use").await;
    ground.send(&id, json!({ "content": "stop", "type": "interrupt" })).await;
    ground.until(&id, |row| row["activity"] == "waiting_message").await;
    let left = ground.shell(&id, "grep -l sleep /proc/[0-9]*/comm; true").await.well();
    assert_eq!(left, "", "the command went with the turn");
    assert!(said(&ground.admin.all_events(&id).await).is_empty());
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_waits_for_its_answer() {
    let ground = Ground::start();
    for (answer, decision) in [("approve", "allow"), ("deny too risky", "deny")] {
        let id = ground.make(json!({ "prompt": "ask may I?\nsay went on" })).await;
        ground.until(&id, |row| row["activity"] == "waiting_approval").await;
        let asked = ground.event(&id, |event| event["type"] == "approval.requested").await;
        assert_eq!(asked["data"]["text"], "may I?");
        ground.send(&id, json!({ "content": answer })).await;
        let row = ground.ended(&id).await;
        assert_eq!(row["outcome"], "succeeded", "{row}");
        let events = ground.admin.all_events(&id).await;
        let resolved = told(&events, "approval.resolved");
        assert_eq!(resolved.len(), 1);
        assert_eq!(resolved[0]["approval_id"], asked["data"]["approval_id"]);
        assert_eq!(resolved[0]["decision"], decision);
        assert_eq!(said(&events), ["went on"]);
    }
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_s_word_reaches_the_agent_that_waits_for_it() {
    let ground = Ground::start();
    for (decision, reason) in [("allow", json!(null)), ("deny", json!("too risky"))] {
        let id = ground.make(json!({ "prompt": "ask may I?\nsay went on" })).await;
        ground.until(&id, |row| row["activity"] == "waiting_approval").await;
        let waiting = ground.admin.get("/approvals").await.expect(200);
        let waiting: Vec<_> =
            waiting["items"].as_array().unwrap().iter().filter(|item| item["sandbox_id"] == *id).collect();
        assert_eq!((waiting.len(), &waiting[0]["state"]), (1, &json!("open")));
        assert_eq!(waiting[0]["request"]["text"], "may I?");
        let approval = waiting[0]["approval_id"].as_str().unwrap();
        let path = format!("/sandboxes/{id}/approvals/{approval}");
        let word = json!({ "decision": decision, "reason": reason });
        let said_so = ground.admin.post(&path, word.clone()).await.expect(200);
        assert_eq!((&said_so["decision"], &said_so["reason"]), (&json!(decision), &reason));
        ground.admin.post(&path, word).await.expect(200);
        let other = json!({ "decision": "allow_always" });
        let refused = ground.admin.post(&path, other).await.expect(409);
        assert_eq!(refused["code"], "approval_resolved");
        let row = ground.ended(&id).await;
        assert_eq!(row["outcome"], "succeeded", "{row}");
        let events = ground.admin.all_events(&id).await;
        let resolved = told(&events, "approval.resolved");
        assert_eq!((resolved.len(), &resolved[0]["decision"]), (1, &json!(decision)));
        assert_eq!(told(&events, "approval.answered").len(), 1, "who said so is in the log, once");
        let all = ground.admin.get(&format!("/sandboxes/{id}/approvals")).await.expect(200);
        assert_eq!(all["items"][0]["state"], "resolved");
    }
    let nobody =
        ground.admin.post("/sandboxes/sbx_00000000000000000000000000/approvals/x", json!({ "decision": "deny" }));
    nobody.await.expect(404);
    ground.leave().await;
}
