//! Tasks: the queue, dispatch, retries, time limits and recovery, with the fake provider.

use atoll_providers::fake::{FakeOptions, Fault, FaultKind, FaultPoint};
use atoll_server::Options;
use atoll_test_wait::try_poll_for;
use atoll_tests::actor::Actor;
use atoll_tests::database::{Database, DatabaseKind};
use atoll_tests::on_both_databases;
use atoll_tests::process::ServerProcess;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};
use std::time::Duration;

on_both_databases!(
    a_task_runs_in_a_sandbox_and_completes,
    a_dependant_starts_when_its_dependency_is_reported_complete,
    two_tasks_with_the_same_files_run_one_after_the_other,
    free_slots_go_to_the_highest_score_within_the_limits,
    failures_are_retried_by_class_in_the_same_session,
    tasks_wait_for_the_quota_of_their_provider,
    a_task_is_warned_interrupted_and_ended_at_its_time_limit,
    a_refused_validation_starts_a_revision,
    tasks_are_cancelled_and_started_again,
    a_killed_server_completes_every_task_once,
);

fn fast_retries(options: &mut Options) {
    let orchestrator = &mut options.config.orchestrator;
    orchestrator.retries.first_pause = Duration::from_millis(100);
    orchestrator.quota_pause = Duration::from_secs(2);
    orchestrator.timeout_grace = Duration::from_secs(1);
}

async fn start_server(kind: DatabaseKind) -> TestServer {
    TestServer::start_with(kind, fast_retries).await
}

/// Creates a task whose title is the demo agent's first instruction.
async fn create_task(admin: &Actor, title: &str, fields: Value) -> Value {
    let mut body = json!({ "title": title, "sandbox": { "provider": "fake", "agent": "demo" } });
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    admin.post("/tasks", body).await.expect_status(201)
}

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap_or_else(|| panic!("{value}")).to_owned()
}

/// Waits until the task matches.
async fn wait_until(admin: &Actor, task: &Value, is_match: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/tasks/{}", id(task));
    let polled = try_poll_for(async || {
        let row = admin.get(&path).await.expect_status(200);
        if is_match(&row) { Ok(row) } else { Err(row) }
    });
    polled.await.expect("the task must reach the expected state")
}

async fn wait_for_state(admin: &Actor, task: &Value, state: &str) -> Value {
    wait_until(admin, task, |row| row["state"] == state).await
}

fn outcomes(task: &Value) -> Vec<&str> {
    let attempts = task["attempts"].as_array().unwrap().iter();
    attempts.map(|attempt| attempt["outcome"].as_str().unwrap_or("running")).collect()
}

async fn task_events(admin: &Actor, sandbox: &str) -> Vec<String> {
    let events = admin.all_events(sandbox).await;
    let types = events.iter().map(|event| event["type"].as_str().unwrap().to_owned());
    types.filter(|name| name.starts_with("task.")).collect()
}

async fn report_completion(admin: &Actor, task: &Value, report: Value) -> Value {
    let sandbox = task["sandbox_id"].as_str().unwrap();
    admin.post(&format!("/sandboxes/{sandbox}/task-complete"), report).await.expect_status(200)
}

async fn a_task_runs_in_a_sandbox_and_completes(kind: DatabaseKind) {
    let server = start_server(kind).await;
    let admin = server.admin();
    let fields = json!({ "description": "say known-secret-value-123", "priority": "high", "owned_files": ["src/**"] });
    let task = create_task(&admin, "say hello", fields).await;
    assert_eq!(task["description"], "say [redacted]");
    let done = wait_for_state(&admin, &task, "completed").await;
    assert_eq!(outcomes(&done), ["succeeded"], "{done}");
    let sandbox = done["sandbox_id"].as_str().unwrap();
    assert_eq!(task_events(&admin, sandbox).await, ["task.assigned", "task.running", "task.completed"]);
    let of_sandbox = admin.get(&format!("/sandboxes/{sandbox}/task")).await.expect_status(200);
    assert_eq!(of_sandbox["id"], task["id"]);
    let texts: Vec<Value> =
        admin.all_events(sandbox).await.into_iter().map(|event| event["data"]["text"].clone()).collect();
    assert!(texts.contains(&json!("hello")) && texts.contains(&json!("[redacted]")), "{texts:?}");
    // An ended task changes only by a retry, and a completed one not at all.
    let path = format!("/tasks/{}", id(&task));
    admin.patch(&path, json!({ "priority": "low" })).await.expect_problem(409, "illegal_transition");
    for action in ["cancel", "retry"] {
        admin.post(&format!("{path}/{action}"), json!({})).await.expect_problem(409, "illegal_transition");
    }
    for bad in [
        json!({ "title": " " }),
        json!({ "title": "x", "sandbox": { "prompt": "y" } }),
        json!({ "title": "x", "owned_files": ["/etc/passwd"] }),
        json!({ "title": "x", "timeout_s": 0 }),
        json!({ "title": "x", "max_retries": 11 }),
        json!({ "title": "x", "depends_on": ["tsk_00000000000000000000000000"] }),
        json!({ "title": "x", "sandbox": { "provider": "external" }, "required_capabilities": ["fork"] }),
    ] {
        admin.post("/tasks", bad).await.expect_problem(422, "invalid");
    }
    server.stop().await;
}

async fn a_dependant_starts_when_its_dependency_is_reported_complete(kind: DatabaseKind) {
    let server = start_server(kind).await;
    let admin = server.admin();
    let first = create_task(&admin, "wait 600", json!({})).await;
    let second = create_task(&admin, "say second", json!({ "depends_on": [first["id"]] })).await;
    assert_eq!((&second["waits_for"], &second["blocked_by"]), (&json!("dependencies"), &json!([first["id"]])));
    let cycle = json!({ "depends_on": [second["id"]] });
    let running = wait_for_state(&admin, &first, "running").await;
    assert_eq!(running["blocks"], 1);
    admin.patch(&format!("/tasks/{}", id(&first)), cycle.clone()).await.expect_problem(409, "illegal_transition");
    let third = create_task(&admin, "say third", json!({ "depends_on": [second["id"]] })).await;
    let cycle = json!({ "depends_on": [third["id"]] });
    admin.patch(&format!("/tasks/{}", id(&second)), cycle).await.expect_problem(422, "dependency_cycle");
    // A repeated report changes nothing.
    report_completion(&admin, &running, json!({ "result": "all done" })).await;
    report_completion(&admin, &running, json!({ "success": false, "error": "no" })).await;
    let done = wait_for_state(&admin, &first, "completed").await;
    assert_eq!(done["result"], "all done");
    report_completion(&admin, &running, json!({ "success": false })).await;
    assert_eq!(wait_for_state(&admin, &third, "completed").await["blocked_by"], json!([]));
    assert_eq!(wait_for_state(&admin, &first, "completed").await["version"], done["version"]);
    server.stop().await;
}

async fn two_tasks_with_the_same_files_run_one_after_the_other(kind: DatabaseKind) {
    let server = start_server(kind).await;
    let admin = server.admin();
    let first = create_task(&admin, "wait 600", json!({ "owned_files": ["src/**"] })).await;
    let running = wait_for_state(&admin, &first, "running").await;
    let second = create_task(&admin, "say second", json!({ "owned_files": ["docs", "src/lib.rs"] })).await;
    let third = create_task(&admin, "say third", json!({ "owned_files": ["tests/**"] })).await;
    let waiting = wait_until(&admin, &second, |row| row["waits_for"] == "files").await;
    assert_eq!(waiting["waits_for_task"], first["id"]);
    wait_for_state(&admin, &third, "completed").await;
    assert_eq!(wait_until(&admin, &second, |_| true).await["state"], "pending");
    report_completion(&admin, &running, json!({})).await;
    wait_for_state(&admin, &second, "completed").await;
    server.stop().await;
}

async fn free_slots_go_to_the_highest_score_within_the_limits(kind: DatabaseKind) {
    let server = TestServer::start_with(kind, |options| {
        fast_retries(options);
        options.config.orchestrator.max_running_per_project = 1;
    })
    .await;
    let admin = server.admin();
    let blocker = create_task(&admin, "wait 600", json!({})).await;
    let running = wait_for_state(&admin, &blocker, "running").await;
    let low = create_task(&admin, "say low", json!({ "priority": "low" })).await;
    let critical = create_task(&admin, "say critical", json!({ "priority": "critical" })).await;
    let project = admin.post("/projects", json!({ "name": "other" })).await.expect_status(201);
    let elsewhere = create_task(&admin, "say elsewhere", json!({ "project_id": project["id"] })).await;
    wait_for_state(&admin, &elsewhere, "completed").await;
    let queued = admin.get("/tasks?waits_for=slot").await.expect_status(200);
    assert_eq!(queued["items"].as_array().unwrap().len(), 2, "the project has one slot: {queued}");
    assert!(queued["items"][0]["score"].as_f64().unwrap() > queued["items"][1]["score"].as_f64().unwrap());
    admin.delete(&format!("/projects/{}", id(&project))).await.expect_problem(409, "in_use");
    report_completion(&admin, &running, json!({})).await;
    let (low, critical) =
        (wait_for_state(&admin, &low, "completed").await, wait_for_state(&admin, &critical, "completed").await);
    assert!(critical["started_at"].as_str() < low["started_at"].as_str(), "{critical} {low}");
    server.stop().await;
}

async fn failures_are_retried_by_class_in_the_same_session(kind: DatabaseKind) {
    let server = start_server(kind).await;
    let admin = server.admin();
    let merits = create_task(&admin, "fail no luck", json!({})).await;
    let memory = create_task(&admin, "oom", json!({})).await;
    let failed = wait_for_state(&admin, &merits, "failed").await;
    assert_eq!((&failed["failure_class"], outcomes(&failed)), (&json!("task"), vec!["failed"]), "{failed}");
    let failed = wait_for_state(&admin, &memory, "failed").await;
    assert_eq!((&failed["failure_class"], outcomes(&failed).len()), (&json!("out_of_memory"), 2), "{failed}");
    let mut sessions = Vec::new();
    for attempt in failed["attempts"].as_array().unwrap() {
        let sandbox = attempt["sandbox_id"].as_str().unwrap();
        sessions.push(admin.get(&format!("/sandboxes/{sandbox}")).await.expect_status(200)["session_id"].clone());
        assert_eq!(attempt["reason"]["code"], "out_of_memory");
    }
    assert_eq!(sessions, [failed["session_id"].clone(), failed["session_id"].clone()], "one session");
    let first = failed["attempts"][0]["sandbox_id"].as_str().unwrap();
    assert_eq!(task_events(&admin, first).await, ["task.assigned", "task.running", "task.retrying"]);
    server.stop().await;

    let server = TestServer::start_with(kind, |options| {
        fast_retries(options);
        let fault = Fault { at: FaultPoint::Create, kind: FaultKind::Fail, rate: 1.0 };
        options.config.providers.fake = FakeOptions { seed: 1, faults: vec![fault] };
    })
    .await;
    let admin = server.admin();
    let task = create_task(&admin, "say hello", json!({ "max_retries": 2 })).await;
    let failed = wait_for_state(&admin, &task, "failed").await;
    assert_eq!((&failed["failure_class"], &failed["retries"]), (&json!("provider"), &json!(2)), "{failed}");
    assert_eq!(outcomes(&failed), ["failed", "failed", "failed"]);
    server.stop().await;
}

async fn tasks_wait_for_the_quota_of_their_provider(kind: DatabaseKind) {
    let server = TestServer::start_with(kind, |options| {
        fast_retries(options);
        options.config.orchestrator.quota_pause = Duration::from_secs(600);
        let fault = Fault { at: FaultPoint::Create, kind: FaultKind::Exhaust, rate: 1.0 };
        options.config.providers.fake = FakeOptions { seed: 1, faults: vec![fault] };
    })
    .await;
    let admin = server.admin();
    let task = create_task(&admin, "say hello", json!({})).await;
    let waiting = wait_until(&admin, &task, |row| row["waits_for"] == "quota").await;
    assert_eq!((waiting["retries"].as_i64(), outcomes(&waiting)), (Some(0), vec!["waited"]), "{waiting}");
    assert!(waiting["available_at"].as_str() > waiting["created_at"].as_str(), "{waiting}");
    // The next task does not ask the provider before the quota is back.
    let next = create_task(&admin, "say next", json!({})).await;
    let waiting = wait_until(&admin, &next, |row| row["waits_for"] == "quota").await;
    assert!(outcomes(&waiting).is_empty(), "{waiting}");
    server.stop().await;
}

async fn a_task_is_warned_interrupted_and_ended_at_its_time_limit(kind: DatabaseKind) {
    let server = start_server(kind).await;
    let admin = server.admin();
    let task = create_task(&admin, "wait 600", json!({ "timeout_s": 2 })).await;
    let failed = wait_for_state(&admin, &task, "failed").await;
    assert_eq!((&failed["failure_class"], &failed["error"]["code"]), (&json!("timeout"), &json!("task_timeout")));
    let sandbox = failed["sandbox_id"].as_str().unwrap();
    let expected = ["task.assigned", "task.running", "task.warned", "task.interrupted", "task.failed"];
    assert_eq!(task_events(&admin, sandbox).await, expected);
    let messages = admin.get(&format!("/sandboxes/{sandbox}/messages")).await.expect_status(200);
    let kinds: Vec<&str> =
        messages["items"].as_array().unwrap().iter().map(|message| message["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["user_message", "system", "interrupt"]);
    server.stop().await;
}

async fn a_refused_validation_starts_a_revision(kind: DatabaseKind) {
    let server = start_server(kind).await;
    let admin = server.admin();
    let task = create_task(&admin, "say hello", json!({ "needs_validation": true })).await;
    let validating = wait_for_state(&admin, &task, "validating").await;
    let verdict = |row: &Value| format!("/sandboxes/{}/validation-result", row["sandbox_id"].as_str().unwrap());
    let refusal = json!({ "passed": false, "feedback": "say it louder" });
    let revised = admin.post(&verdict(&validating), refusal.clone()).await.expect_status(200);
    assert_eq!((&revised["state"], &revised["revisions"]), (&json!("needs_revision"), &json!(1)));
    let again = wait_for_state(&admin, &task, "validating").await;
    assert_eq!(again["session_id"], validating["session_id"]);
    assert_ne!(again["sandbox_id"], validating["sandbox_id"]);
    let log = admin.all_events(again["sandbox_id"].as_str().unwrap()).await;
    assert!(log.iter().any(|event| event.to_string().contains("say it louder")), "the agent gets the feedback");
    // The verdict on the first attempt comes too late.
    admin.post(&verdict(&validating), refusal).await.expect_problem(404, "not_found");
    admin.post(&verdict(&again), json!({ "passed": true })).await.expect_status(200);
    let done = wait_for_state(&admin, &task, "completed").await;
    assert_eq!(outcomes(&done), ["succeeded", "succeeded"]);
    server.stop().await;
}

async fn tasks_are_cancelled_and_started_again(kind: DatabaseKind) {
    let server = start_server(kind).await;
    let admin = server.admin();
    let running = create_task(&admin, "wait 600", json!({})).await;
    let waiting = create_task(&admin, "say later", json!({ "depends_on": [running["id"]] })).await;
    let before = wait_for_state(&admin, &running, "running").await;
    let ids = [running["id"].clone(), waiting["id"].clone(), json!("tsk_00000000000000000000000000")];
    let results = admin.post("/tasks/bulk", json!({ "action": "cancel", "ids": ids })).await.expect_status(200);
    let states: Vec<&Value> = results["items"].as_array().unwrap().iter().map(|item| &item["state"]).collect();
    assert_eq!(states, [&json!("cancelled"), &json!("cancelled"), &Value::Null], "{results}");
    assert_eq!(results["items"][2]["code"], "not_found");
    let sandbox = before["sandbox_id"].as_str().unwrap();
    let polled = try_poll_for(async || {
        let row = admin.get(&format!("/sandboxes/{sandbox}")).await.expect_status(200);
        if row["outcome"] == "cancelled" { Ok(row) } else { Err(row) }
    });
    assert_eq!(polled.await.expect("the sandbox must end")["reason"]["code"], "task_cancelled");
    let retried = admin.post(&format!("/tasks/{}/retry", id(&waiting)), json!({})).await.expect_status(200);
    assert_eq!((&retried["state"], &retried["waits_for"]), (&json!("pending"), &json!("dependencies")));
    admin.post(&format!("/tasks/{}/retry", id(&running)), json!({})).await.expect_status(200);
    let again = wait_for_state(&admin, &running, "running").await;
    assert_eq!(again["session_id"], before["session_id"], "a retry continues the session");
    report_completion(&admin, &again, json!({})).await;
    wait_for_state(&admin, &waiting, "completed").await;
    server.stop().await;
}

/// Retries at once, and enough of them for every kill.
const KILL_CONFIG: &str = "\
limits: {writes_per_minute: 0}
orchestrator: {retries: {max: 10, provider: 10, agent_crash: 10, set_up: 10, first_pause: 100ms, max_pause: 1s}}
";

async fn a_killed_server_completes_every_task_once(kind: DatabaseKind) {
    const TASKS: usize = 12;
    let dir = tempfile::Builder::new().prefix("atoll-tasks-").tempdir().unwrap();
    let path = dir.path().to_owned();
    let started = tokio::task::spawn_blocking(move || {
        let data = path.join("data");
        std::fs::create_dir(&data).unwrap();
        let config = path.join("atoll.yaml");
        std::fs::write(&config, KILL_CONFIG).unwrap();
        let database = Database::new(kind, &data);
        let mut arguments = vec!["--config".to_owned(), config.to_str().unwrap().to_owned()];
        arguments.extend(database.url().map(|url| format!("--database-url={url}")));
        (database, ServerProcess::start(&data, &arguments))
    });
    let (database, mut server) = started.await.unwrap();
    let admin = Actor::new(&server.url, Some(&server.admin_token()));
    let mut tasks = Vec::new();
    for number in 0..TASKS {
        tasks.push(create_task(&admin, &format!("say {number}"), json!({ "description": "wait 1\nsay end" })).await);
    }
    for _ in 0..3 {
        wait_until_any_runs(&admin).await;
        server = tokio::task::spawn_blocking(move || {
            server.kill();
            server.restart();
            server
        })
        .await
        .unwrap();
    }
    for task in &tasks {
        let done = wait_until(&admin, task, |row| row["ended_at"].is_string()).await;
        assert_eq!(done["state"], "completed", "{done}");
        let succeeded = outcomes(&done).into_iter().filter(|outcome| *outcome == "succeeded").count();
        assert_eq!((succeeded, outcomes(&done).contains(&"running")), (1, false), "{done}");
    }
    let live = admin.get("/sandboxes?live=true").await.expect_status(200);
    assert_eq!(live["items"], json!([]), "no sandbox remains");
    tokio::task::spawn_blocking(move || drop((server, database))).await.unwrap();
}

async fn wait_until_any_runs(admin: &Actor) {
    let polled = try_poll_for(async || {
        let running = admin.get("/tasks?state=running").await.expect_status(200);
        let open = admin.get("/tasks?open=true").await.expect_status(200);
        let is_over = open["items"].as_array().unwrap().is_empty();
        if is_over || !running["items"].as_array().unwrap().is_empty() { Ok(()) } else { Err(open) }
    });
    polled.await.expect("a task must run");
}
