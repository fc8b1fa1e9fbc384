//! Recovery of local sandboxes: a hung worker is restarted in place, a lost sandbox's session continues in a new one.

use atoll_test_wait::try_poll_for;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, agent_messages, event_data, host_state};
use rustix::process::Signal;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_worker_is_restarted_over_the_same_files() {
    let server = LocalServer::start_with_config("heartbeat:\n  interval: 1s\n");
    let id = server.create_idle_sandbox(json!({ "prompt": "say first", "end": "keep" })).await;
    server.run_shell(&id, "echo kept > kept.txt").await.expect_success();
    let worker = host_state::find_worker_process(&id).expect("the sandbox has a worker");
    assert!(worker.send_signal(Signal::STOP));
    server.wait_for_event(&id, |event| event["type"] == "worker.unreachable").await;
    server.wait_for_event(&id, |event| event["type"] == "worker.restarted").await;
    server.wait_for_event(&id, |event| event["type"] == "worker.reachable").await;
    let row = server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!(row["state"], "running", "{row}");
    assert_eq!(server.run_shell(&id, "cat kept.txt").await.expect_success(), "kept\n");
    let message = server.send_message(&id, json!({ "content": "say second" })).await;
    server.wait_until_acknowledged(&id, &message).await;
    server.wait_for_event(&id, |event| event["type"] == "agent.message" && event["data"]["text"] == "second").await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_s_session_continues_in_a_new_sandbox() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let id = server
        .create_sandbox(json!({
            "prompt": "edit kept.txt hello\nsay ready\nrun sleep 600",
            "repo": { "path": repository.path_str() },
            "health": { "restart": "on_failure" },
        }))
        .await;
    server.wait_for_event(&id, |event| event["data"]["text"] == "ready").await;
    assert!(host_state::find_worker_process(&id).expect("the sandbox has a worker").send_signal(Signal::KILL));
    let row = server.wait_until_ended(&id).await;
    assert_eq!((row["state"].as_str(), row["reason"]["code"].as_str()), (Some("failed"), Some("worker_died")), "{row}");
    let session = format!("/sessions/{}", row["session_id"].as_str().unwrap());
    let polled = try_poll_for(async || {
        let session = server.admin.get(&session).await.expect_status(200);
        if session["last_sandbox_id"] == json!(id) { Err(session) } else { Ok(session) }
    });
    let session = polled.await.expect("the session gets another sandbox");
    let next = session["last_sandbox_id"].as_str().unwrap();
    server.track_sandbox(next);
    let row = server.wait_until_ended(next).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let branch = row["branch"].as_str().unwrap();
    assert_eq!(repository.file_at(branch, "kept.txt").as_deref(), Some("hello\n"), "the work so far is on the branch");
    let events = server.admin.all_events(&id).await;
    assert_eq!(event_data(&events, "session.restart_planned")[0]["class"], "provider");
    // The failed sandbox is kept for inspection.
    server.admin.delete(&format!("/sandboxes/{id}")).await.expect_status(200);
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_wants_input_a_pager_or_an_editor_ends() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let prompt =
        "run cat\nrun read word; echo read $?\nrun git --paginate log\nrun git commit --allow-empty; true\nsay done";
    let id = server.create_sandbox(json!({ "prompt": prompt, "repo": { "path": repository.path_str() } })).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(agent_messages(&events), ["done"]);
    assert_eq!(event_data(&events, "agent.tool_completed").len(), 4);
    server.stop_and_check().await;
}
