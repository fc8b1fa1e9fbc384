//! Set-up layers: the second sandbox of a project skips set-up, and no agent changes what the next one gets.

use super::setup::{command_output, request, run_to_end};
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, event_data};
use serde_json::{Value, json};

/// The set-up leaves another text each time that it runs.
const COMMAND: &str =
    "mkdir -p build ~/.cache/packages; cat /proc/sys/kernel/random/uuid | tee build/made ~/.cache/packages/p";

fn project_with_lock() -> SampleRepository {
    let repository = SampleRepository::create();
    write_lock(&repository, "1");
    repository
}

fn write_lock(repository: &SampleRepository, version: &str) {
    repository.write("package-lock.json", &format!("{{\"version\": {version}}}\n"));
    repository.run_git(&["add", "-A"]);
    repository.run_git(&["commit", "-q", "-m", "Lock"]);
}

fn completion(events: &[Value]) -> &Value {
    let completed = event_data(events, "setup.completed");
    assert_eq!(completed.len(), 1, "{events:#?}");
    completed[0]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_sandbox_skips_set_up_and_a_changed_lock_file_repeats_it() {
    let (server, repository) = (LocalServer::start(), project_with_lock());
    let setup = json!({ "commands": [COMMAND] });
    // Each agent tries to poison what the next one gets.
    let prompt = "run cat build/made ~/.cache/packages/p; echo bad | tee build/made ~/.cache/packages/p >/dev/null; \
                  git status --short";
    let body = request(&repository, prompt, setup);
    let (row, first) = run_to_end(&server, body.clone()).await;
    assert_eq!(row["outcome"], "succeeded", "{row} {first:#?}");
    let made = command_output(&first);
    assert_eq!(made.lines().count(), 2, "{made}");
    let stored = completion(&first);
    assert_eq!((&stored["cached"], &stored["stored"]), (&json!(false), &json!(true)), "{stored}");
    assert!(stored["key_parts"]["file package-lock.json"].is_string(), "{stored}");

    for _ in 0..2 {
        let (row, events) = run_to_end(&server, body.clone()).await;
        assert_eq!(row["outcome"], "succeeded", "{row} {events:#?}");
        assert!(event_data(&events, "setup.started").is_empty(), "{events:#?}");
        let cached = completion(&events);
        assert_eq!((&cached["cached"], &cached["key"]), (&json!(true), &stored["key"]), "{cached}");
        assert_eq!(command_output(&events), made, "each agent gets what set-up left, and a clean checkout");
    }

    write_lock(&repository, "2");
    let (_, events) = run_to_end(&server, body).await;
    let again = completion(&events);
    assert_eq!((&again["cached"], &again["stored"]), (&json!(false), &json!(true)), "{again}");
    assert_ne!(again["key"], stored["key"]);
    assert_ne!(command_output(&events), made);
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_that_start_together_run_the_same_set_up_once() {
    let (server, repository) = (LocalServer::start(), project_with_lock());
    // The set-up ends when the test writes a file into its workspace.
    let command = format!("{COMMAND}; until test -e go; do sleep 0.05; done");
    let body = request(&repository, "run cat build/made", json!({ "commands": [command] }));
    let first = server.create_sandbox(body.clone()).await;
    server.wait_for_event(&first, |event| event["type"] == "setup.output").await;
    let others = [server.create_sandbox(body.clone()).await, server.create_sandbox(body).await];
    for id in &others {
        let notice = server.wait_for_event(id, |event| event["type"] == "sandbox.notice").await;
        assert!(notice["data"]["text"].as_str().unwrap().contains("runs the same set-up"), "{notice}");
    }
    // Stopped while it waits: it neither starts nor holds up the others.
    server.admin.post(&format!("/sandboxes/{}/stop", others[1]), json!({})).await.expect_status(200);
    assert_eq!(server.wait_until_ended(&others[1]).await["outcome"], "cancelled");
    std::fs::write(server.workspace_dir(&first).join("go"), "").unwrap();
    let mut outputs = Vec::new();
    for id in [&first, &others[0]] {
        let row = server.wait_until_ended(id).await;
        let events = server.admin.all_events(id).await;
        assert_eq!(row["outcome"], "succeeded", "{events:#?}");
        assert_eq!(completion(&events)["cached"], json!(*id == others[0]), "{events:#?}");
        outputs.push(command_output(&events));
    }
    assert_eq!(outputs[0], outputs[1]);
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn downloads_survive_a_changed_key_and_a_failure_stores_nothing() {
    let (server, repository) = (LocalServer::start(), project_with_lock());
    let download =
        "mkdir -p ~/.cache/packages build; test -e ~/.cache/packages/p || echo fetched > ~/.cache/packages/p";
    let failing = json!({ "commands": [download, "exit 1"] });
    for _ in 0..2 {
        let (row, events) = run_to_end(&server, request(&repository, "say hello", failing.clone())).await;
        assert_eq!(row["reason"]["code"], "setup_failed", "{events:#?}");
    }
    let first = json!({ "commands": [download, "echo old > ~/leftover"] });
    let (_, events) = run_to_end(&server, request(&repository, "run cat ~/.cache/packages/p ~/leftover", first)).await;
    assert_eq!(command_output(&events), "fetched\nold\n");
    let second = json!({ "commands": ["cat ~/.cache/packages/p; ls ~/leftover build 2>&1 || true"] });
    let (row, events) = run_to_end(&server, request(&repository, "run true", second)).await;
    assert_eq!(row["outcome"], "succeeded", "{events:#?}");
    let output = super::setup::setup_output(&events, "stdout");
    assert!(output.starts_with("fetched\n") && output.matches("No such file").count() == 2, "{output}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_that_an_agent_wrote_stores_no_layer() {
    let (server, repository) = (LocalServer::start(), project_with_lock());
    let setup = json!({ "commands": [COMMAND] });
    let prompt = "edit package-lock.json {}";
    let (row, events) = run_to_end(&server, request(&repository, prompt, setup)).await;
    assert_eq!(row["outcome"], "succeeded", "{events:#?}");
    assert_eq!(completion(&events)["stored"], true);
    for _ in 0..2 {
        let body = json!({ "session_id": row["session_id"], "prompt": "run cat package-lock.json build/made",
            "setup": { "commands": [COMMAND] } });
        let (row, events) = run_to_end(&server, body).await;
        assert_eq!(row["outcome"], "succeeded", "{events:#?}");
        assert!(command_output(&events).starts_with("{}"), "{events:#?}");
        let completed = completion(&events);
        assert_eq!((&completed["cached"], &completed["stored"]), (&json!(false), &json!(false)), "{completed}");
    }
    server.stop_and_check().await;
}
