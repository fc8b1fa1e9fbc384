//! Messages, interrupts and approvals reach an agent while it works.

use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, agent_messages, event_data};
use serde_json::json;
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_steers_a_working_agent() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let prompt = "say one\nwait 60\nsay two";
    let id = server
        .create_sandbox(json!({ "prompt": prompt, "repo": { "path": repository.path_str() }, "end": "keep" }))
        .await;
    server.wait_for_event(&id, |event| event["data"]["text"] == "one").await;
    let message = server.send_message(&id, json!({ "content": "say steered\nedit steered.txt by a message" })).await;
    let acknowledged = server.wait_until_acknowledged(&id, &message).await;
    assert_eq!(
        (acknowledged["how"].as_str(), acknowledged["turn"].as_i64()),
        (Some("injected"), Some(1)),
        "{acknowledged}"
    );
    server.wait_for_event(&id, |event| event["data"]["text"] == "steered").await;
    let edited = server.wait_for_event(&id, |event| event["data"]["file_path"] == "steered.txt").await;
    assert_eq!((edited["type"].as_str(), edited["turn"].as_i64()), (Some("agent.file_edited"), Some(1)), "{edited}");

    let started = Instant::now();
    server.send_message(&id, json!({ "content": "enough", "type": "interrupt" })).await;
    server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    assert!(started.elapsed() < Duration::from_secs(50), "an interrupt must not wait: {:?}", started.elapsed());
    let events = server.admin.all_events(&id).await;
    assert_eq!(agent_messages(&events), ["one", "steered"], "the interrupt must come before the rest");
    let injected = event_data(&events, "agent.message_injected");
    assert!(injected.iter().any(|data| data["message_id"] == message), "{injected:?}");
    assert_eq!(event_data(&events, "agent.interrupted").len(), 1);

    let next = server.send_message(&id, json!({ "content": "say three" })).await;
    let acknowledged = server.wait_until_acknowledged(&id, &next).await;
    assert_eq!(
        (acknowledged["how"].as_str(), acknowledged["turn"].as_i64()),
        (Some("new_turn"), Some(2)),
        "{acknowledged}"
    );
    server.wait_for_event(&id, |event| event["data"]["text"] == "three" && event["turn"] == 2).await;
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect_status(200);
    assert_eq!(server.wait_until_ended(&id).await["state"], "completed");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_message_waits_for_the_end_of_the_turn() {
    let server = LocalServer::start();
    let id = server.create_sandbox(json!({ "prompt": "say one\nwait 1\nsay two" })).await;
    server.wait_for_event(&id, |event| event["data"]["text"] == "one").await;
    let message = server.send_message(&id, json!({ "content": "say three", "delivery": "queue" })).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(agent_messages(&events), ["one", "two", "three"]);
    let acknowledged = server.wait_until_acknowledged(&id, &message).await;
    assert_eq!(
        (acknowledged["how"].as_str(), acknowledged["turn"].as_i64()),
        (Some("new_turn"), Some(2)),
        "{acknowledged}"
    );
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_kills_a_running_command() {
    let server = LocalServer::start();
    let id = server.create_sandbox(json!({ "prompt": "run sleep 63\nsay never", "end": "keep" })).await;
    server.wait_for_event(&id, |event| event["type"] == "agent.tool_use").await;
    server.send_message(&id, json!({ "content": "stop", "type": "interrupt" })).await;
    server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    let left = server.run_shell(&id, "grep -l sleep /proc/[0-9]*/comm; true").await.expect_success();
    assert_eq!(left, "", "the command must end with the turn");
    assert!(agent_messages(&server.admin.all_events(&id).await).is_empty());
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_waits_for_a_message_with_the_answer() {
    let server = LocalServer::start();
    for (answer, decision) in [("approve", "allow"), ("deny too risky", "deny")] {
        let id = server.create_sandbox(json!({ "prompt": "ask may I?\nsay went on" })).await;
        server.wait_until(&id, |row| row["activity"] == "waiting_approval").await;
        let requested = server.wait_for_event(&id, |event| event["type"] == "approval.requested").await;
        assert_eq!(requested["data"]["text"], "may I?");
        server.send_message(&id, json!({ "content": answer })).await;
        let row = server.wait_until_ended(&id).await;
        assert_eq!(row["outcome"], "succeeded", "{row}");
        let events = server.admin.all_events(&id).await;
        let resolved = event_data(&events, "approval.resolved");
        assert_eq!(resolved.len(), 1);
        assert_eq!(resolved[0]["approval_id"], requested["data"]["approval_id"]);
        assert_eq!(resolved[0]["decision"], decision);
        assert_eq!(agent_messages(&events), ["went on"]);
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_over_the_api_reaches_the_waiting_agent() {
    let server = LocalServer::start();
    for (decision, reason) in [("allow", json!(null)), ("deny", json!("too risky"))] {
        let id = server.create_sandbox(json!({ "prompt": "ask may I?\nsay went on" })).await;
        server.wait_until(&id, |row| row["activity"] == "waiting_approval").await;
        let open = server.admin.get("/approvals").await.expect_status(200);
        let open: Vec<_> = open["items"].as_array().unwrap().iter().filter(|item| item["sandbox_id"] == *id).collect();
        assert_eq!((open.len(), &open[0]["state"]), (1, &json!("open")));
        assert_eq!(open[0]["request"]["text"], "may I?");
        let approval = open[0]["approval_id"].as_str().unwrap();
        let path = format!("/sandboxes/{id}/approvals/{approval}");
        let decided = json!({ "decision": decision, "reason": reason });
        let resolved = server.admin.post(&path, decided.clone()).await.expect_status(200);
        assert_eq!((&resolved["decision"], &resolved["reason"]), (&json!(decision), &reason));
        server.admin.post(&path, decided).await.expect_status(200);
        let other = json!({ "decision": "allow_always" });
        let refused = server.admin.post(&path, other).await.expect_status(409);
        assert_eq!(refused["code"], "approval_resolved");
        let row = server.wait_until_ended(&id).await;
        assert_eq!(row["outcome"], "succeeded", "{row}");
        let events = server.admin.all_events(&id).await;
        let resolved = event_data(&events, "approval.resolved");
        assert_eq!((resolved.len(), &resolved[0]["decision"]), (1, &json!(decision)));
        assert_eq!(event_data(&events, "approval.answered").len(), 1, "the log must name the decider once");
        let all = server.admin.get(&format!("/sandboxes/{id}/approvals")).await.expect_status(200);
        assert_eq!(all["items"][0]["state"], "resolved");
    }
    let unknown =
        server.admin.post("/sandboxes/sbx_00000000000000000000000000/approvals/x", json!({ "decision": "deny" }));
    unknown.await.expect_status(404);
    server.stop_and_check().await;
}
