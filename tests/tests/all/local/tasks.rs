//! Tasks in local sandboxes: a retry continues the work of a killed attempt.

use atoll_test_wait::{poll_until, try_poll_for};
use atoll_tests::local::host_state;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, event_data};
use serde_json::{Value, json};
use tokio::task::block_in_place;

async fn wait_until(server: &LocalServer, task: &Value, is_match: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/tasks/{}", task["id"].as_str().unwrap());
    let polled = try_poll_for(async || {
        let row = server.admin.get(&path).await.expect_status(200);
        if is_match(&row) { Ok(row) } else { Err(row) }
    });
    polled.await.expect("the task must reach the expected state")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_continues_the_session_on_its_branch() {
    let server = LocalServer::start_with_config("orchestrator: {retries: {first_pause: 100ms}}\n");
    let repository = SampleRepository::create();
    let new = json!({
        "title": "run echo $TASK_ID >> task.txt",
        "description": "run echo done >> steps.txt\nwait 600",
        "sandbox": { "provider": "local", "agent": "demo", "repo": { "path": repository.path_str() } },
    });
    let task = server.admin.post("/tasks", new).await.expect_status(201);
    let first = wait_until(&server, &task, |row| row["state"] == "running").await["sandbox_id"].clone();
    let first = first.as_str().unwrap().to_owned();
    server.track_sandbox(&first);
    let steps = server.workspace_dir(&first).join("steps.txt");
    poll_until("the agent's file", || async { steps.exists() }).await;
    assert!(block_in_place(|| host_state::find_worker_process(&first)).unwrap().kill());

    let again = wait_until(&server, &task, |row| row["state"] == "running" && row["retries"] == 1).await;
    let second = again["sandbox_id"].as_str().unwrap().to_owned();
    server.track_sandbox(&second);
    assert_eq!(again["attempts"][0]["class"], "agent_crash", "{again}");
    let (old, new) = (server.get_sandbox(&first).await, server.get_sandbox(&second).await);
    assert_eq!((&old["session_id"], &old["branch"]), (&new["session_id"], &new["branch"]), "{old} {new}");
    assert_eq!(old["results"], "taken", "the work of the killed attempt is on the branch: {old}");
    // The second attempt adds its line to the files of the first.
    let steps = server.workspace_dir(&second).join("steps.txt");
    let count_lines = || std::fs::read_to_string(&steps).map_or(0, |text| text.lines().count());
    poll_until("the lines of both attempts", || async { count_lines() == 2 }).await;
    server.admin.post(&format!("/sandboxes/{second}/task-complete"), json!({})).await.expect_status(200);
    let done = wait_until(&server, &task, |row| row["ended_at"].is_string()).await;
    assert_eq!(done["state"], "completed", "{done}");
    let branch = server.get_sandbox(&second).await["branch"].as_str().unwrap().to_owned();
    let ids = repository.run_git(&["show", &format!("{branch}:task.txt")]);
    let id = task["id"].as_str().unwrap();
    assert_eq!(ids.lines().collect::<Vec<_>>(), [id, id], "both attempts have TASK_ID");
    assert_eq!(event_data(&server.admin.all_events(&first).await, "task.retrying").len(), 1);
    server.stop_and_check().await;
}
