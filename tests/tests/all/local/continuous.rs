//! Working until it is done: real commands with real exit codes, and what fails comes back to the agent. What a check
//! prints is in what the agent is told, so the demo agent can be made to do as the check says.

use atoll_tests::local::repository::Repository;
use atoll_tests::local::{Ground, assert_whole, told};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::block_in_place;

/// Fails with code 7 until there are three lines, and says how to make one more.
const THREE_LINES: &str = "test \"$(wc -l < lines)\" -ge 3 || { echo 'run echo more >> lines'; exit 7; }";

fn task(prompt: &str, continuous: Value) -> Value {
    json!({ "prompt": prompt, "continuous": continuous })
}

fn iterations(events: &[Value], event_type: &str) -> Vec<i64> {
    told(events, event_type).iter().map(|data| data["iteration"].as_i64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_goes_back_to_the_agent_until_it_passes() {
    let ground = Ground::start();
    let id = ground.make(task("run echo first > lines", json!({ "checks": ["true", THREE_LINES] }))).await;
    let row = ground.ended(&id).await;
    assert_eq!((&row["state"], &row["outcome"]), (&json!("completed"), &json!("succeeded")), "{row}");
    let progress = &row["continuous"];
    assert_eq!((&progress["phase"], &progress["iteration"]), (&json!("passed"), &json!(3)), "{progress}");
    let events = ground.admin.all_events(&id).await;
    assert_whole(&events);
    assert_eq!(iterations(&events, "continuous.validating"), [1, 2, 3]);
    assert_eq!(iterations(&events, "continuous.passed"), [3]);
    let verdicts: Vec<&Value> = told(&events, "continuous.checked").iter().map(|data| &data["verdict"]).collect();
    assert_eq!(verdicts, ["failed", "failed", "passed"]);
    let failed = told(&events, "continuous.check").into_iter().find(|data| data["verdict"] == "failed").unwrap();
    assert_eq!(failed["exit"], json!({ "kind": "exited", "code": 7 }), "{failed}");
    assert_eq!((&failed["name"], &failed["output"]), (&json!(THREE_LINES), &json!("run echo more >> lines\n")));
    let messages = ground.admin.everything(&format!("/sandboxes/{id}/messages"), 200).await;
    assert_eq!(messages.len(), 3, "the prompt, and what failed, twice");
    let words = messages[1]["content"].as_str().unwrap();
    assert_eq!((&messages[1]["type"], &messages[1]["state"]), (&json!("system"), &json!("acknowledged")));
    for part in [THREE_LINES, "exit code 7", "run echo more >> lines", "run 1 of at most 10"] {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert!(!words.contains("\ntrue\n"), "what passed is not named: {words}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_branch_is_clean_and_committed_before_it_is_done() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let check = "test -z \"$(git status --porcelain)\" || { echo 'run git add -A && git commit -qm work'; exit 1; }";
    let mut task = task("edit new.txt hello", json!({ "checks": [check] }));
    task["repo"] = json!({ "path": repository.text() });
    let id = ground.make(task).await;
    let row = ground.ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = ground.admin.all_events(&id).await;
    let first = told(&events, "continuous.checked")[0];
    assert_eq!(first["failed"], json!(["clean", "committed", check]), "{first}");
    let dirty = told(&events, "continuous.check")[0];
    assert!(dirty["name"] == "clean" && dirty["output"].as_str().unwrap().contains("new.txt"), "{dirty}");
    assert_eq!(told(&events, "continuous.checked").last().unwrap()["passed"], 3);
    let branch = told(&events, "git.branch_created")[0]["branch"].as_str().unwrap().to_owned();
    assert_eq!(repository.git(&["show", &format!("{branch}:new.txt")]), "hello\n");
    assert!(repository.git(&["log", "-1", "--format=%s", &branch]).contains("work"), "the agent's own commit");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_ends_it_with_its_reason_and_the_work_comes_out() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let mut settings = task("edit part.txt half", json!({ "checks": ["false"], "require": [], "iterations": 2 }));
    settings["repo"] = json!({ "path": repository.text() });
    let id = ground.make(settings).await;
    let row = ground.ended(&id).await;
    assert_eq!((&row["state"], &row["outcome"]), (&json!("failed"), &json!("failed")), "{row}");
    assert_eq!((&row["reason"]["code"], &row["results"]), (&json!("continuous_iterations"), &json!("taken")), "{row}");
    let events = ground.admin.all_events(&id).await;
    let stopped = told(&events, "continuous.stopped");
    assert_eq!((stopped.len(), &stopped[0]["reason"]), (1, &json!("iterations")), "{stopped:?}");
    assert_eq!(told(&events, "agent.started").len(), 2, "two runs and no more");
    assert_eq!(told(&events, "git.branch_created").len(), 1, "what there is of it is a branch");

    // A check that takes too long is killed, with all that it started, and has failed.
    let check = "setsid sleep 1000 & sleep 1000";
    let limits = json!({ "checks": [check], "check_timeout_s": 1, "iterations": 1 });
    let id = ground.make(task("say done", limits)).await;
    let row = ground.ended(&id).await;
    let events = ground.admin.all_events(&id).await;
    let check = told(&events, "continuous.check")[0];
    assert_eq!((&check["verdict"], &check["exit"]["kind"]), (&json!("failed"), &json!("timed_out")), "{check} {row}");

    // The time that it has in all, in the middle of a run.
    let id = ground.make(task("wait 600", json!({ "checks": ["true"], "duration_s": 1 }))).await;
    assert_eq!(ground.ended(&id).await["reason"]["code"], "continuous_duration");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_fail_are_begun_again_and_too_many_in_a_row_end_it() {
    let ground = Ground::start();
    // Each run is told the last one's error, and obeys it.
    let id = ground.make(task("edit before.txt kept\nfail fail fail fail fail", json!({ "checks": ["true"] }))).await;
    let row = ground.ended(&id).await;
    assert_eq!((&row["outcome"], &row["reason"]["code"]), (&json!("failed"), &json!("continuous_errors")), "{row}");
    assert!(row["reason"]["detail"].as_str().unwrap().contains("the last one: fail"), "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_eq!(told(&events, "agent.failed").len(), 3, "{events:#?}");
    assert_eq!(told(&events, "continuous.run_failed").len(), 2);
    assert_eq!(told(&events, "continuous.stopped")[0]["reason"], "errors");

    // One that crashes once goes on, and what it had done is still there.
    let settings = json!({ "checks": ["cat before.txt"] });
    let id = ground.make(task("edit before.txt kept\ncrash", settings)).await;
    let row = ground.ended(&id).await;
    assert_eq!((&row["outcome"], &row["continuous"]["iteration"]), (&json!("succeeded"), &json!(2)), "{row}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_s_interrupt_ends_it_at_once() {
    let ground = Ground::start();
    let stop = json!({ "content": "enough", "type": "interrupt" });
    // While the agent works.
    let id = ground.make(task("say busy\nwait 600", json!({ "checks": ["false"] }))).await;
    ground.event(&id, |event| event["data"]["text"] == "busy").await;
    ground.send(&id, stop.clone()).await;
    let stopped = ground.event(&id, |event| event["type"] == "continuous.stopped").await;
    assert_eq!(stopped["data"]["reason"], "interrupted");
    ground.event(&id, |event| event["type"] == "agent.interrupted").await;
    let row = ground.until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!((&row["state"], &row["continuous"]["stopped"]), (&json!("running"), &json!("interrupted")), "{row}");

    // While its work is checked: the command goes, too.
    let check = "echo $$ > pid; tail -f /dev/null";
    let id = ground.make(task("say done", json!({ "checks": [check] }))).await;
    ground.event(&id, |event| event["type"] == "continuous.validating").await;
    let there = "for i in $(seq 600); do test -s pid && exit 0; sleep 0.1; done; exit 1";
    ground.shell(&id, there).await.well();
    assert_eq!(ground.row(&id).await["activity"], "working", "it is not idle while its work is checked");
    ground.send(&id, stop).await;
    ground.until(&id, |row| row["activity"] == "waiting_message").await;
    let gone = "for i in $(seq 600); do kill -0 $(cat pid) 2>/dev/null || exit 0; sleep 0.1; done; exit 1";
    ground.shell(&id, gone).await.well();
    let events = ground.admin.all_events(&id).await;
    assert!(told(&events, "continuous.checked").is_empty(), "nobody waited for it");
    let row = ground.row(&id).await;
    assert_eq!(row["state"], "running", "what was not checked is not done: {row}");

    // Whoever stops the sandbox stops it as well, and what was not checked did not succeed.
    let id = ground.make(task("say done", json!({ "checks": [check] }))).await;
    ground.event(&id, |event| event["type"] == "continuous.validating").await;
    ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect(200);
    let row = ground.ended(&id).await;
    assert_eq!(
        (&row["outcome"], &row["continuous"]["stopped"]),
        (&json!("cancelled"), &json!("sandbox_ended")),
        "{row}"
    );
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_in_the_middle_goes_on_where_it_was() {
    let mut ground = Ground::start();
    // Passes when it is made for the second time.
    let check = "echo made >> rounds; test \"$(wc -l < rounds)\" -ge 2 || tail -f /dev/null";
    let id = ground.make(task("say once", json!({ "checks": [check] }))).await;
    ground.event(&id, |event| event["type"] == "continuous.validating").await;
    let there = "for i in $(seq 600); do test -s rounds && exit 0; sleep 0.1; done; exit 1";
    ground.shell(&id, there).await.well();
    block_in_place(|| {
        ground.server.kill();
        ground.server.start_again();
    });
    let row = ground.ended(&id).await;
    assert_eq!((&row["outcome"], &row["continuous"]["iteration"]), (&json!("succeeded"), &json!(1)), "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_whole(&events);
    assert_eq!(told(&events, "agent.started").len(), 1, "no run was begun for it");
    assert_eq!(told(&events, "continuous.checked").len(), 1, "decided once");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_is_not_passed_and_a_message_in_between_is_work_of_its_own() {
    let ground = Ground::start();
    let settings = json!({ "checks": ["true"], "require": ["pull_request"] });
    let id = ground.make(task("say done", settings)).await;
    let row = ground.ended(&id).await;
    assert_eq!((&row["outcome"], &row["reason"]["code"]), (&json!("failed"), &json!("continuous_undecided")), "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_eq!(told(&events, "continuous.checked")[0]["unknown"], json!(["pull_request"]));

    // Somebody says more while the work is checked: it is checked after that.
    let check = "test -e more || tail -f /dev/null";
    let mut settings = task("say one", json!({ "checks": [check] }));
    settings["end"] = "keep".into();
    let id = ground.make(settings).await;
    ground.event(&id, |event| event["type"] == "continuous.validating").await;
    ground.send(&id, json!({ "content": "edit more here" })).await;
    ground.event(&id, |event| event["type"] == "continuous.passed").await;
    let row = ground.until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!((&row["state"], &row["continuous"]["iteration"]), (&json!("running"), &json!(1)), "{row}");
    // What is done later is checked, too.
    ground.send(&id, json!({ "content": "say two" })).await;
    tokio::time::timeout(Duration::from_secs(60), async {
        while told(&ground.admin.all_events(&id).await, "continuous.passed").len() < 2 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
    .expect("it is checked again");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_choose_and_what_can_t_be_is_refused() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let repo = json!({ "path": repository.text() });
    let explore = json!({ "prompt": "edit note.txt seen", "mode": "exploration", "repo": repo, "tools": ["Edit"] });
    let id = ground.make(explore).await;
    let row = ground.ended(&id).await;
    assert_eq!((&row["outcome"], &row["results"]), (&json!("succeeded"), &json!("none")), "{row}");
    assert!(row["settings"]["system_prompt"].as_str().unwrap().contains("Change no files"), "{row}");
    let events = ground.admin.all_events(&id).await;
    assert!(told(&events, "git.branch_created").is_empty(), "it delivers nothing");
    let ignored = told(&events, "agent.settings_ignored");
    let ignored = ignored[0]["settings"].as_array().unwrap().iter().map(|one| &one["setting"]);
    assert_eq!(ignored.collect::<Vec<_>>(), ["tools", "denied_tools"], "the demo can't follow them, and says so");

    let refuse = async |settings: Value, words: &str| {
        let refused = ground.admin.post("/sandboxes", Ground::request(settings)).await.expect(422);
        assert!(refused["detail"].as_str().unwrap().contains(words), "{refused}");
    };
    refuse(json!({ "prompt": "x", "continuous": {} }), "nothing to check").await;
    refuse(json!({ "prompt": "x", "continuous": { "iterations": 0 } }), "iterations").await;
    refuse(json!({ "prompt": "x", "modes": { "validation": {} } }), "project's defaults").await;
    refuse(json!({ "provider": "fake", "prompt": "x", "continuous": { "checks": ["true"] } }), "provider fake").await;
    ground.leave().await;
}
