//! Continuous mode with real commands and exit codes. A failed check's output goes back to the agent, so a check can
//! instruct the demo agent.

use atoll_test_wait::poll_until;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, assert_log_is_complete, event_data};
use serde_json::{Value, json};
use tokio::task::block_in_place;

/// Fails with code 7 until the file has three lines, and prints the instruction to add one.
const THREE_LINES_CHECK: &str = "test \"$(wc -l < lines)\" -ge 3 || { echo 'run echo more >> lines'; exit 7; }";

fn continuous_request(prompt: &str, continuous: Value) -> Value {
    json!({ "prompt": prompt, "continuous": continuous })
}

fn event_iterations(events: &[Value], event_type: &str) -> Vec<i64> {
    event_data(events, event_type).iter().map(|data| data["iteration"].as_i64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_check_goes_back_to_the_agent_until_it_passes() {
    let server = LocalServer::start();
    let id = server
        .create_sandbox(continuous_request("run echo first > lines", json!({ "checks": ["true", THREE_LINES_CHECK] })))
        .await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["state"], &row["outcome"]), (&json!("completed"), &json!("succeeded")), "{row}");
    let progress = &row["continuous"];
    assert_eq!((&progress["phase"], &progress["iteration"]), (&json!("passed"), &json!(3)), "{progress}");
    let events = server.admin.all_events(&id).await;
    assert_log_is_complete(&events);
    assert_eq!(event_iterations(&events, "continuous.validating"), [1, 2, 3]);
    assert_eq!(event_iterations(&events, "continuous.passed"), [3]);
    let verdicts: Vec<&Value> = event_data(&events, "continuous.checked").iter().map(|data| &data["verdict"]).collect();
    assert_eq!(verdicts, ["failed", "failed", "passed"]);
    let failed = event_data(&events, "continuous.check").into_iter().find(|data| data["verdict"] == "failed").unwrap();
    assert_eq!(failed["exit"], json!({ "kind": "exited", "code": 7 }), "{failed}");
    assert_eq!((&failed["name"], &failed["output"]), (&json!(THREE_LINES_CHECK), &json!("run echo more >> lines\n")));
    let messages = server.admin.list_all(&format!("/sandboxes/{id}/messages"), 200).await;
    assert_eq!(messages.len(), 3, "the prompt and two failure reports");
    let words = messages[1]["content"].as_str().unwrap();
    assert_eq!((&messages[1]["type"], &messages[1]["state"]), (&json!("system"), &json!("acknowledged")));
    for part in [THREE_LINES_CHECK, "exit code 7", "run echo more >> lines", "run 1 of at most 10"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert!(!words.contains("\ntrue\n"), "a passed check must not be named: {words}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_must_be_clean_and_committed_to_pass() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let check = "test -z \"$(git status --porcelain)\" || { echo 'run git add -A && git commit -qm work'; exit 1; }";
    let mut task = continuous_request("edit new.txt hello", json!({ "checks": [check] }));
    task["repo"] = json!({ "path": repository.path_str() });
    let id = server.create_sandbox(task).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = server.admin.all_events(&id).await;
    let first = event_data(&events, "continuous.checked")[0];
    assert_eq!(first["failed"], json!(["clean", "committed", check]), "{first}");
    let dirty = event_data(&events, "continuous.check")[0];
    assert!(dirty["name"] == "clean" && dirty["output"].as_str().unwrap().contains("new.txt"), "{dirty}");
    assert_eq!(event_data(&events, "continuous.checked").last().unwrap()["passed"], 3);
    let branch = event_data(&events, "git.branch_created")[0]["branch"].as_str().unwrap().to_owned();
    assert_eq!(repository.run_git(&["show", &format!("{branch}:new.txt")]), "hello\n");
    assert!(repository.run_git(&["log", "-1", "--format=%s", &branch]).contains("work"), "the agent's own commit");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reached_limit_names_its_reason_and_exports_the_results() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let mut settings =
        continuous_request("edit part.txt half", json!({ "checks": ["false"], "require": [], "iterations": 2 }));
    settings["repo"] = json!({ "path": repository.path_str() });
    let id = server.create_sandbox(settings).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["state"], &row["outcome"]), (&json!("failed"), &json!("failed")), "{row}");
    assert_eq!((&row["reason"]["code"], &row["results"]), (&json!("continuous_iterations"), &json!("taken")), "{row}");
    let events = server.admin.all_events(&id).await;
    let stopped = event_data(&events, "continuous.stopped");
    assert_eq!((stopped.len(), &stopped[0]["reason"]), (1, &json!("iterations")), "{stopped:?}");
    assert_eq!(event_data(&events, "agent.started").len(), 2, "exactly two runs");
    assert_eq!(event_data(&events, "git.branch_created").len(), 1, "partial results must become a branch");

    // A check that takes too long fails. It is killed with all its children.
    let check = "setsid sleep 1000 & sleep 1000";
    let limits = json!({ "checks": [check], "check_timeout_s": 1, "iterations": 1 });
    let id = server.create_sandbox(continuous_request("say done", limits)).await;
    let row = server.wait_until_ended(&id).await;
    let events = server.admin.all_events(&id).await;
    let check = event_data(&events, "continuous.check")[0];
    assert_eq!((&check["verdict"], &check["exit"]["kind"]), (&json!("failed"), &json!("timed_out")), "{check} {row}");

    // The total time limit also applies during a run.
    let id =
        server.create_sandbox(continuous_request("wait 600", json!({ "checks": ["true"], "duration_s": 1 }))).await;
    assert_eq!(server.wait_until_ended(&id).await["reason"]["code"], "continuous_duration");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_runs_are_retried_and_three_in_a_row_stop_the_loop() {
    let server = LocalServer::start();
    // Each run gets the last one's error, and the demo agent follows it as an instruction.
    let id = server
        .create_sandbox(continuous_request(
            "edit before.txt kept\nfail fail fail fail fail",
            json!({ "checks": ["true"] }),
        ))
        .await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["outcome"], &row["reason"]["code"]), (&json!("failed"), &json!("continuous_errors")), "{row}");
    assert!(row["reason"]["detail"].as_str().unwrap().contains("the last one: fail"), "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(event_data(&events, "agent.failed").len(), 3, "{events:#?}");
    assert_eq!(event_data(&events, "continuous.run_failed").len(), 2);
    assert_eq!(event_data(&events, "continuous.stopped")[0]["reason"], "errors");

    // A run that crashes once is retried, with the files of the first attempt.
    let settings = json!({ "checks": ["cat before.txt"] });
    let id = server.create_sandbox(continuous_request("edit before.txt kept\ncrash", settings)).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["outcome"], &row["continuous"]["iteration"]), (&json!("succeeded"), &json!(2)), "{row}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_of_a_user_stops_the_loop_at_once() {
    let server = LocalServer::start();
    let stop = json!({ "content": "enough", "type": "interrupt" });
    // An interrupt while the agent works.
    let id = server.create_sandbox(continuous_request("say busy\nwait 600", json!({ "checks": ["false"] }))).await;
    server.wait_for_event(&id, |event| event["data"]["text"] == "busy").await;
    server.send_message(&id, stop.clone()).await;
    let stopped = server.wait_for_event(&id, |event| event["type"] == "continuous.stopped").await;
    assert_eq!(stopped["data"]["reason"], "interrupted");
    server.wait_for_event(&id, |event| event["type"] == "agent.interrupted").await;
    let row = server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!((&row["state"], &row["continuous"]["stopped"]), (&json!("running"), &json!("interrupted")), "{row}");

    // An interrupt during a check also kills the check's command.
    let check = "echo $$ > pid; tail -f /dev/null";
    let id = server.create_sandbox(continuous_request("say done", json!({ "checks": [check] }))).await;
    server.wait_for_event(&id, |event| event["type"] == "continuous.validating").await;
    let wait_for_pid = "for i in $(seq 600); do test -s pid && exit 0; sleep 0.1; done; exit 1";
    server.run_shell(&id, wait_for_pid).await.expect_success();
    assert_eq!(server.get_sandbox(&id).await["activity"], "working", "the agent is not idle during a check");
    server.send_message(&id, stop).await;
    server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    let wait_for_exit = "for i in $(seq 600); do kill -0 $(cat pid) 2>/dev/null || exit 0; sleep 0.1; done; exit 1";
    server.run_shell(&id, wait_for_exit).await.expect_success();
    let events = server.admin.all_events(&id).await;
    assert!(event_data(&events, "continuous.checked").is_empty(), "the check must have no verdict");
    let row = server.get_sandbox(&id).await;
    assert_eq!(row["state"], "running", "unchecked work is not done: {row}");

    // Stopping the sandbox also stops the loop, and unchecked work does not succeed.
    let id = server.create_sandbox(continuous_request("say done", json!({ "checks": [check] }))).await;
    server.wait_for_event(&id, |event| event["type"] == "continuous.validating").await;
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect_status(200);
    let row = server.wait_until_ended(&id).await;
    assert_eq!(
        (&row["outcome"], &row["continuous"]["stopped"]),
        (&json!("cancelled"), &json!("sandbox_ended")),
        "{row}"
    );
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_repeats_the_unfinished_check() {
    let mut server = LocalServer::start();
    // Passes on its second run.
    let check = "echo made >> rounds; test \"$(wc -l < rounds)\" -ge 2 || tail -f /dev/null";
    let id = server.create_sandbox(continuous_request("say once", json!({ "checks": [check] }))).await;
    server.wait_for_event(&id, |event| event["type"] == "continuous.validating").await;
    let wait_for_round = "for i in $(seq 600); do test -s rounds && exit 0; sleep 0.1; done; exit 1";
    server.run_shell(&id, wait_for_round).await.expect_success();
    block_in_place(|| {
        server.process.kill();
        server.process.restart();
    });
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["outcome"], &row["continuous"]["iteration"]), (&json!("succeeded"), &json!(1)), "{row}");
    let events = server.admin.all_events(&id).await;
    assert_log_is_complete(&events);
    assert_eq!(event_data(&events, "agent.started").len(), 1, "the restart must not start another run");
    assert_eq!(event_data(&events, "continuous.checked").len(), 1, "exactly one verdict");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_check_does_not_pass_and_a_message_restarts_the_checks() {
    let server = LocalServer::start();
    let settings = json!({ "checks": ["true"], "require": ["pull_request"] });
    let id = server.create_sandbox(continuous_request("say done", settings)).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["outcome"], &row["reason"]["code"]), (&json!("failed"), &json!("continuous_undecided")), "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(event_data(&events, "continuous.checked")[0]["unknown"], json!(["pull_request"]));

    // A message during a check: the checks run again after the agent handled it.
    let check = "test -e more || tail -f /dev/null";
    let mut settings = continuous_request("say one", json!({ "checks": [check] }));
    settings["end"] = "keep".into();
    let id = server.create_sandbox(settings).await;
    server.wait_for_event(&id, |event| event["type"] == "continuous.validating").await;
    server.send_message(&id, json!({ "content": "edit more here" })).await;
    server.wait_for_event(&id, |event| event["type"] == "continuous.passed").await;
    let row = server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!((&row["state"], &row["continuous"]["iteration"]), (&json!("running"), &json!(1)), "{row}");
    // Work after the loop passed is checked too.
    server.send_message(&id, json!({ "content": "say two" })).await;
    poll_until("the checks to run again", async || {
        event_data(&server.admin.all_events(&id).await, "continuous.passed").len() >= 2
    })
    .await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_apply_their_settings_and_invalid_combinations_are_rejected() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let repo = json!({ "path": repository.path_str() });
    let explore = json!({ "prompt": "edit note.txt seen", "mode": "exploration", "repo": repo, "tools": ["Edit"] });
    let id = server.create_sandbox(explore).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["outcome"], &row["results"]), (&json!("succeeded"), &json!("none")), "{row}");
    assert!(row["settings"]["system_prompt"].as_str().unwrap().contains("Change no files"), "{row}");
    let events = server.admin.all_events(&id).await;
    assert!(event_data(&events, "git.branch_created").is_empty(), "exploration exports no results");
    let ignored = event_data(&events, "agent.settings_ignored");
    let ignored = ignored[0]["settings"].as_array().unwrap().iter().map(|one| &one["setting"]);
    assert_eq!(ignored.collect::<Vec<_>>(), ["tools", "denied_tools"], "the demo agent supports neither");

    let refuse = async |settings: Value, words: &str| {
        let refused = server.admin.post("/sandboxes", LocalServer::sandbox_request(settings)).await.expect_status(422);
        assert!(refused["detail"].as_str().unwrap().contains(words), "{refused}");
    };
    refuse(json!({ "prompt": "x", "continuous": {} }), "nothing to check").await;
    refuse(json!({ "prompt": "x", "continuous": { "iterations": 0 } }), "iterations").await;
    refuse(json!({ "prompt": "x", "modes": { "validation": {} } }), "project's defaults").await;
    refuse(json!({ "provider": "fake", "prompt": "x", "continuous": { "checks": ["true"] } }), "of this provider")
        .await;
    server.stop_and_check().await;
}
