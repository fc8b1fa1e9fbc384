//! Forks and snapshots: they start with the parent's files and are independent from then on.

use atoll_tests::actor::Actor;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, agent_messages, event_data, host_state, is_root, report_skipped};
use atoll_tests::unprivileged_user::{self, SubordinateIds};
use serde_json::{Value, json};
use std::process::Command;
use tokio::task::block_in_place;

async fn fork_sandbox(server: &LocalServer, id: &str, body: Value) -> String {
    let created = server.admin.post(&format!("/sandboxes/{id}/fork"), body).await.expect_status(201);
    let fork = created["id"].as_str().unwrap().to_owned();
    server.track_sandbox(&fork);
    server.wait_until(&fork, |row| row["state"] == "running" && row["activity"] != "starting").await;
    fork
}

async fn is_list_empty(admin: &Actor, list: &str) -> bool {
    admin.get(list).await.expect_status(200)["items"].as_array().unwrap().is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_fork_request_creates_one_fork() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    let request_fork = || {
        let request = server.admin.request(reqwest::Method::POST, &format!("/sandboxes/{id}/fork"));
        server.admin.send(request.header("idempotency-key", "one").json(&json!({})))
    };
    let fork = request_fork().await.expect_status(201)["id"].clone();
    server.track_sandbox(fork.as_str().unwrap());
    server.run_shell(&id, "sleep 54321 >/dev/null 2>&1 &").await.expect_success();
    assert_eq!(request_fork().await.expect_status(201)["id"], fork);
    let commands = server.run_shell(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.expect_success();
    assert!(commands.contains("sleep 54321"), "a repeated request must not quiesce the parent: {commands}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_starts_with_the_files_and_diverges_from_its_parent() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let id = server.create_idle_sandbox(json!({ "repo": { "path": repository.path_str() } })).await;
    server
        .run_shell(&id, "echo before > shared.txt; mkdir -p ~/.agent; echo memory > ~/.agent/session")
        .await
        .expect_success();
    let fork = fork_sandbox(&server, &id, json!({ "title": "another way" })).await;
    let row = server.get_sandbox(&fork).await;
    assert_eq!(row["settings"]["forked_from"], *id, "{row}");
    let (parents, forks) = (server.get_sandbox(&id).await["session_id"].clone(), row["session_id"].clone());
    assert_ne!(parents, forks);
    let session = server.admin.get(&format!("/sessions/{}", forks.as_str().unwrap())).await.expect_status(200);
    assert_eq!((&session["forked_from"], session["title"].as_str()), (&parents, Some("another way")), "{session}");

    let inspect = "cat shared.txt ~/.agent/session; git log --oneline | wc -l; stat -c %U shared.txt";
    assert_eq!(
        server.run_shell(&fork, inspect).await.expect_success(),
        server.run_shell(&id, inspect).await.expect_success()
    );
    server.run_shell(&fork, "echo fork >> shared.txt; rm README.md; echo only > fork.txt").await.expect_success();
    server.run_shell(&id, "echo parent >> shared.txt; echo only > parent.txt").await.expect_success();
    assert_eq!(
        server.run_shell(&id, "cat shared.txt; ls fork.txt README.md").await.stdout,
        "before\nparent\nREADME.md\n"
    );
    assert_eq!(server.run_shell(&fork, "cat shared.txt; ls parent.txt README.md").await.stdout, "before\nfork\n");

    // Both agents continue, and each sandbox exports its own changes.
    for (sandbox, text) in [(&id, "parent"), (&fork, "fork")] {
        server.send_message(sandbox, json!({ "content": format!("say {text}\nedit {text}-agent.txt {text}") })).await;
        server.wait_for_event(sandbox, |event| event["data"]["text"] == text).await;
        server.wait_until(sandbox, |row| row["activity"] == "waiting_message").await;
        let diff = server.admin.get(&format!("/sandboxes/{sandbox}/diff")).await.expect_status(200);
        let paths: Vec<&str> =
            diff["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
        assert!(paths.contains(&format!("{text}-agent.txt").as_str()) && paths.contains(&"shared.txt"), "{diff}");
    }
    let events = server.admin.all_events(&id).await;
    assert_eq!(agent_messages(&events), ["ready", "parent"], "a fork must not interrupt the agent");
    assert_eq!(event_data(&events, "agent.failed"), Vec::<&Value>::new());
    assert_eq!(event_data(&events, "session.forked").len(), 1);

    // A fork of a fork outlives both.
    let grandchild = fork_sandbox(&server, &fork, json!({ "prompt": "say hello\nrun cat shared.txt" })).await;
    for sandbox in [&id, &fork] {
        server.admin.delete(&format!("/sandboxes/{sandbox}?force=true")).await.expect_status(200);
        server.wait_until_removed(sandbox).await;
    }
    server.wait_for_event(&grandchild, |event| event["data"]["text"] == "hello").await;
    assert_eq!(
        server.run_shell(&grandchild, "cat shared.txt fork-agent.txt").await.expect_success(),
        "before\nfork\nfork\n"
    );
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_agent_refuses_fork_and_snapshot() {
    let server = LocalServer::start();
    let id = server.create_sandbox(json!({ "prompt": "say one\nwait 3\nsay two", "end": "keep" })).await;
    server.wait_for_event(&id, |event| event["data"]["text"] == "one").await;
    for (operation, body) in [("fork", json!({})), ("snapshot", json!({ "name": "early" }))] {
        server.admin.post(&format!("/sandboxes/{id}/{operation}"), body).await.expect_problem(409, "sandbox_busy");
    }
    assert!(is_list_empty(&server.admin, "/snapshots").await);
    server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!(agent_messages(&server.admin.all_events(&id).await), ["one", "two"]);
    fork_sandbox(&server, &id, json!({})).await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_ends_background_processes_of_the_parent() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    server
        .run_shell(
            &id,
            "setsid sh -c 'while :; do date >> /workspace/log; sleep 0.01; done' >/dev/null 2>&1 &
             until [ -s /workspace/log ]; do sleep 0.01; done",
        )
        .await;
    let fork = fork_sandbox(&server, &id, json!({})).await;
    let size = || server.run_shell(&id, "pgrep -f 'whil[e] :' | wc -l; stat -c %s log");
    let (first, second) = (size().await.expect_success(), size().await.expect_success());
    assert!(first.starts_with("0\n") && first == second, "{first} {second}");
    assert_eq!(server.run_shell(&fork, "stat -c %s log").await.expect_success(), first.trim_start_matches("0\n"));
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_starts_sandboxes_and_outlives_its_source() {
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    server.run_shell(&id, "echo kept > a.txt; echo mine > ~/b.txt").await.expect_success();
    let path = format!("/sandboxes/{id}/snapshot");
    let created = server.admin.post(&path, json!({ "name": "base-1" })).await.expect_status(201);
    assert_eq!(created["name"], "base-1", "{created}");
    for bad in ["", "../up", "A", ".hidden", "-x"] {
        server.admin.post(&path, json!({ "name": bad })).await.expect_problem(422, "invalid");
    }
    let again = server.admin.post(&path, json!({ "name": "base-1" })).await;
    assert_eq!(again.status, 409, "{}", again.body);
    server.run_shell(&id, "echo later > a.txt").await.expect_success();
    server.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect_status(200);
    server.wait_until_removed(&id).await;

    // A snapshot is visible in its own project only.
    let project = server.admin.post("/projects", json!({ "name": "elsewhere" })).await.expect_status(201);
    let foreign =
        server.create_sandbox(json!({ "snapshot": "base-1", "project_id": project["id"], "prompt": "say hi" })).await;
    assert_eq!(server.wait_until_ended(&foreign).await["state"], "failed");
    server
        .admin
        .delete(&format!("/snapshots/base-1?project_id={}", project["id"].as_str().unwrap()))
        .await
        .expect_problem(404, "not_found");

    let next = server.create_idle_sandbox(json!({ "snapshot": "base-1" })).await;
    let forked = fork_sandbox(&server, &next, json!({})).await;
    assert_eq!(
        server.run_shell(&forked, "cat a.txt").await.expect_success(),
        "kept\n",
        "a sandbox from a snapshot can be forked"
    );
    assert_eq!(
        server.run_shell(&next, "cat a.txt ~/b.txt; stat -c %U a.txt").await.expect_success(),
        "kept\nmine\nagent\n"
    );
    let list = server.admin.get("/snapshots").await.expect_status(200);
    assert_eq!((list["items"].as_array().unwrap().len(), &list["items"][0]["name"]), (1, &json!("base-1")), "{list}");
    server.admin.delete("/snapshots/base-1").await.expect_status(200);
    server.admin.delete("/snapshots/base-1").await.expect_problem(404, "not_found");
    assert_eq!(
        server.run_shell(&next, "cat a.txt").await.expect_success(),
        "kept\n",
        "a deleted snapshot stays in sandboxes that use it"
    );
    let unknown = server.create_sandbox(json!({ "snapshot": "base-1", "prompt": "say hi" })).await;
    let row = server.wait_until_ended(&unknown).await;
    assert!(row["reason"]["detail"].as_str().unwrap().contains("base-1"), "{row}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_of_an_ordinary_user_reports_that_directories_cannot_be_renamed() {
    let user = (61_250, SubordinateIds::Range);
    if let Some(why) = unprivileged_user::missing_requirement(user.0, user.1) {
        return report_skipped("a fork of an ordinary user", why);
    }
    let server = LocalServer::start_with_options("", &[], &[], Some(user));
    let id = server.create_idle_sandbox(json!({})).await;
    let notices = async |id: &str| {
        let events = server.admin.all_events(id).await;
        let texts = event_data(&events, "sandbox.notice").into_iter().filter_map(|data| data["text"].as_str());
        texts.filter(|text| text.contains("EXDEV")).count()
    };
    assert_eq!(notices(&id).await, 0);
    let fork = fork_sandbox(&server, &id, json!({})).await;
    assert_eq!(notices(&fork).await, 1, "in the fork");
    server
        .wait_for_event(&id, |event| {
            event["type"] == "sandbox.notice" && event["data"]["text"].to_string().contains("EXDEV")
        })
        .await;
    server.stop_and_check().await;
}

/// The data directory is replaced by a copy that was made while the sandbox worked, as it would be found after a power
/// failure: no process had the time to finish.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_of_a_fork_come_out_after_a_power_failure() {
    if !is_root() {
        return report_skipped("a power failure", "needs root to copy the layers with their owners");
    }
    let (mut server, repository) = (LocalServer::start(), SampleRepository::create());
    let id = server.create_idle_sandbox(json!({ "repo": { "path": repository.path_str() } })).await;
    let fork = fork_sandbox(&server, &id, json!({})).await;
    server.run_shell(&fork, "mkdir -p src; echo done > src/work.txt; git add -A").await.expect_success();
    let workers = [&id, &fork].map(|id| host_state::find_worker_process(id));
    block_in_place(|| {
        server.process.kill();
        let (data, copy) = (server.data_dir(), server.root_dir().join("copy"));
        assert!(Command::new("cp").arg("-a").args([&data, &copy]).status().unwrap().success());
        for worker in workers.iter().flatten() {
            assert!(worker.kill() && worker.ends_in_time());
        }
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::rename(&copy, &data).unwrap();
        server.process.restart();
    });
    let row = server.wait_until_ended(&fork).await;
    assert_eq!(row["reason"]["code"], "worker_died", "{row}");
    let exported = server.admin.post(&format!("/sandboxes/{fork}/results"), json!({})).await.expect_status(200);
    let branch = exported["taken"][0]["branch"].as_str().unwrap();
    assert_eq!(repository.file_at(branch, "src/work.txt").as_deref(), Some("done\n"), "{exported}");
    server.wait_until_ended(&id).await;
    server.stop_and_check().await;
}
