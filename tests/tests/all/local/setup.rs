//! A project's set-up in a real sandbox: before its agent, as the agent, with its own network policy.

use super::network::test_sites::HttpSite;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, assert_log_is_complete, event_data};
use serde_json::{Value, json};
use tokio::task::block_in_place;

pub fn request(repository: &SampleRepository, prompt: &str, setup: Value) -> Value {
    json!({ "prompt": prompt, "repo": { "path": repository.path_str() }, "setup": setup })
}

fn position(events: &[Value], event_type: &str) -> usize {
    let found = events.iter().position(|event| event["type"] == event_type);
    found.unwrap_or_else(|| panic!("no {event_type} in {events:#?}"))
}

/// The joined output of the set-up's steps on one stream.
pub fn setup_output(events: &[Value], stream: &str) -> String {
    let output = event_data(events, "setup.output").into_iter().filter(|data| data["stream"] == stream);
    output.map(|data| data["text"].as_str().unwrap()).collect()
}

/// The output of the agent's only command.
pub fn command_output(events: &[Value]) -> String {
    let calls = event_data(events, "agent.tool_completed");
    assert_eq!(calls.len(), 1, "{events:#?}");
    calls[0]["output"].as_str().unwrap().to_owned()
}

/// Runs a sandbox to its end and returns its row and events.
pub async fn run_to_end(server: &LocalServer, body: Value) -> (Value, Vec<Value>) {
    let id = server.create_sandbox(body).await;
    let row = server.wait_until_ended(&id).await;
    let events = server.admin.all_events(&id).await;
    assert_log_is_complete(&events);
    (row, events)
}

/// Checks that set-up failed, its agent never started, and nothing of the sandbox is left.
async fn assert_set_up_failed<'a>(server: &LocalServer, row: &Value, events: &'a [Value]) -> &'a Value {
    assert_eq!(
        (row["state"].as_str(), row["reason"]["code"].as_str()),
        (Some("failed"), Some("setup_failed")),
        "{row}"
    );
    for event_type in ["sandbox.running", "agent.started", "setup.completed"] {
        assert!(event_data(events, event_type).is_empty(), "{events:#?}");
    }
    server.wait_until_removed(row["id"].as_str().unwrap()).await;
    event_data(events, "setup.failed")[0]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_starts_after_set_up_and_finds_its_files() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let commands = [
        "mkdir -p build && echo \"$MINE in $PWD by $(id -un)\" > build/made && echo out && echo err >&2",
        "sleep 4321 & setsid sleep 4321 >/dev/null 2>&1 &",
        "test \"$CI\" = 1 && test -n \"$npm_config_cache\" && test $npm_config_maxsockets = 15 && cat build/made",
    ];
    let prompt =
        "run cat build/made; echo ci=$CI cache=$npm_config_cache mine=$MINE; cat /proc/[0-9]*/comm | grep sleep";
    let mut body = request(&repository, prompt, json!({ "commands": commands }));
    body["env"] = json!({ "MINE": "x" });
    let (row, events) = run_to_end(&server, body).await;
    assert_eq!(row["outcome"], "succeeded", "{row} {events:#?}");
    let steps = ["git.cloned", "setup.started", "setup.completed", "sandbox.running", "agent.started"];
    let positions: Vec<usize> = steps.iter().map(|step| position(&events, step)).collect();
    assert!(positions.is_sorted(), "{steps:?} are at {positions:?}");
    let started = event_data(&events, "setup.started")[0];
    assert_eq!((&started["source"], &started["steps"]), (&json!("request"), &json!(commands)), "{started}");
    assert_eq!(started["network"], "packages");
    let made = "x in /workspace by agent\n";
    assert_eq!(setup_output(&events, "stdout"), format!("out\n{made}"));
    assert_eq!(setup_output(&events, "stderr"), "err\n");
    let ended = event_data(&events, "setup.step_completed");
    assert_eq!(ended.iter().map(|data| &data["exit"]["code"]).collect::<Vec<_>>(), [0, 0, 0], "{ended:?}");
    assert_eq!(event_data(&events, "setup.completed")[0]["cached"], false);
    let expected = format!("{made}ci= cache=/home/agent/.cache/packages/npm mine=x\n");
    assert_eq!(
        command_output(&events),
        expected,
        "the agent has the variables, but neither those of set-up alone nor its processes"
    );
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_repository_and_the_project_can_define_set_up() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    std::fs::create_dir(repository.path().join(".atoll")).unwrap();
    repository.write(".atoll/setup", "mkdir -p build\necho repository > build/by\n");
    repository.run_git(&["add", "-A"]);
    repository.run_git(&["commit", "-q", "-m", "Set up"]);
    let prompt = "run cat build/by 2>&1";
    let body = json!({ "prompt": prompt, "repo": { "path": repository.path_str() } });
    let (row, events) = run_to_end(&server, body.clone()).await;
    assert_eq!(
        (&row["outcome"], command_output(&events).as_str()),
        (&json!("succeeded"), "repository\n"),
        "{events:#?}"
    );
    assert_eq!(event_data(&events, "setup.started")[0]["source"], "repository");

    let (_, events) = run_to_end(&server, request(&repository, prompt, json!({ "enabled": false }))).await;
    assert!(event_data(&events, "setup.started").is_empty() && command_output(&events).contains("No such file"));
    assert_eq!(event_data(&events, "setup.skipped")[0]["reason"], "the request turns set-up off");

    let project = row["project_id"].as_str().unwrap();
    let defaults = json!({ "defaults": { "setup": { "commands": ["mkdir -p build; echo project > build/by"] } } });
    server.admin.patch(&format!("/projects/{project}"), defaults).await.expect_status(200);
    let (_, events) = run_to_end(&server, body).await;
    assert_eq!(command_output(&events), "project\n");
    assert_eq!(event_data(&events, "setup.started")[0]["source"], "project");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_set_up_ends_the_creation_and_leaves_nothing() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let setup = json!({ "commands": ["echo fine", "sleep 600 & echo broken >&2; exit 3", "echo never"] });
    let (row, events) = run_to_end(&server, request(&repository, "say hello", setup)).await;
    let failed = assert_set_up_failed(&server, &row, &events).await;
    assert_eq!((&failed["step"], &failed["exit"]["code"], &failed["tail"]), (&json!(2), &json!(3), &json!("broken")));
    let detail = row["reason"]["detail"].as_str().unwrap();
    assert!(detail.ends_with("failed with exit code 3: broken"), "{detail}");

    let setup = json!({ "commands": ["frobnicate --fast"] });
    let (row, events) = run_to_end(&server, request(&repository, "say hello", setup)).await;
    let failed = assert_set_up_failed(&server, &row, &events).await;
    assert!(failed["remedy"].as_str().unwrap().starts_with("this machine lacks frobnicate: install it"), "{failed}");

    let setup = json!({ "commands": ["sleep 600"], "timeout_s": 1 });
    let (row, events) = run_to_end(&server, request(&repository, "say hello", setup)).await;
    let failed = assert_set_up_failed(&server, &row, &events).await;
    assert_eq!(failed["exit"]["kind"], "timed_out");
    assert!(row["reason"]["detail"].as_str().unwrap().contains("took longer than 1 s"), "{row}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_can_be_stopped_during_set_up() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let body = request(&repository, "say hello", json!({ "commands": ["echo begun; sleep 600"] }));
    let id = server.create_sandbox(body).await;
    server.wait_for_event(&id, |event| event["type"] == "setup.output").await;
    assert_eq!(server.get_sandbox(&id).await["state"], "creating");
    let exec = server.admin.post(&format!("/sandboxes/{id}/exec"), json!({ "shell": "true" })).await;
    assert_eq!(exec.body["code"], "sandbox_starting", "no command runs beside set-up");
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect_status(200);
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "cancelled", "{row}");
    server.wait_until_removed(&id).await;
    let events = server.admin.all_events(&id).await;
    assert!(event_data(&events, "setup.failed").is_empty(), "{events:#?}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_during_set_up_starts_it_over_in_a_clean_sandbox() {
    let (mut server, repository) = (LocalServer::start(), SampleRepository::create());
    let command = "mkdir -p build; echo x >> build/count; echo begun; sleep 6; echo y >> build/count";
    let body = request(&repository, "run cat build/count", json!({ "commands": [command] }));
    let id = server.create_sandbox(body).await;
    server.wait_for_event(&id, |event| event["type"] == "setup.output").await;
    block_in_place(|| {
        server.process.kill();
        server.process.restart();
    });
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = server.admin.all_events(&id).await;
    assert_log_is_complete(&events);
    assert_eq!(event_data(&events, "setup.started").len(), 2, "{events:#?}");
    assert_eq!(event_data(&events, "setup.completed").len(), 1, "{events:#?}");
    let notices = event_data(&events, "sandbox.notice");
    assert!(notices.iter().any(|data| data["text"].as_str().unwrap().contains("ended during set-up")), "{notices:?}");
    assert_eq!(event_data(&events, "agent.started").len(), 1, "{events:#?}");
    assert_eq!(command_output(&events), "x\ny\n", "set-up must not continue over the files of an earlier one");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_up_has_its_own_network_policy() {
    let site = HttpSite::start().await;
    let place = format!("localhost:{}", site.port);
    let server = LocalServer::start_with_config(&format!("network: {{allow_private: [\"{place}\"]}}\n"));
    let repository = SampleRepository::create();
    let fetch = format!("curl -s -o /dev/null -w '%{{http_code}}' --noproxy '' http://{place}/");
    let setup = json!({
        "commands": [format!("mkdir -p build; {fetch} > build/during")],
        "network": { "policy": "allow", "allow": [place] },
    });
    let prompt = format!("run echo $(cat build/during) $({fetch})");
    let (row, events) = run_to_end(&server, request(&repository, &prompt, setup)).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    assert_eq!(command_output(&events), "200 403\n", "the agent has its own policy, which is none");
    assert_eq!(row["settings"]["network"], Value::Null, "{row}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_refused_again_and_again_ends_set_up_by_name() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let command = "while true; do curl -s https://packages.example.org/; done";
    let body = request(&repository, "say hello", json!({ "commands": [command] }));
    let (row, events) = run_to_end(&server, body).await;
    let failed = assert_set_up_failed(&server, &row, &events).await;
    assert!(failed["error"].as_str().unwrap().contains("refused connections to packages.example.org"), "{failed}");
    let remedy = failed["remedy"].as_str().unwrap();
    assert!(remedy.starts_with("allow packages.example.org with `setup.allow`"), "{remedy}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_shows_set_up_and_exits_with_2_if_it_fails() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let run = |setup: &[&str]| {
        let mut command = atoll_tests::process::program_command("atoll");
        command.args(["run", "say hello", "--agent", "demo", "--repo", repository.path_str(), "--server"]);
        command.arg(&server.process.url).env("ATOLL_TOKEN", server.process.admin_token()).args(setup);
        let output = block_in_place(|| command.output().unwrap());
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = run(&["--setup", "echo one; exit 3"]);
    assert_eq!(code, Some(2), "{text}");
    for line in ["set-up by request: echo one; exit 3", "↳ one", "set-up failed: step 1", "(setup_failed)"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let (code, text) = run(&["--setup", "echo two"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("✓ echo two (") && text.contains("✓ set-up is done ("), "{text}");
    assert!(!text.contains("setup.") && !text.contains("{\""), "plain lines only: {text}");
    let (code, text) = run(&["--no-setup"]);
    assert!(code == Some(0) && text.contains("no set-up: the request turns set-up off"), "{text}");
    for row in server.admin.list_all("/sandboxes", 200).await {
        server.track_sandbox(row["id"].as_str().unwrap());
    }
    server.stop_and_check().await;
}
