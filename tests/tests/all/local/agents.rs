//! Agent programs: discovery on the host, mounts in the sandbox, and errors for missing programs or keys.

use super::isolation_tier::run_doctor;
use atoll_tests::local::{LocalServer, agent_messages, create_temp_dir, host_state, is_root, report_skipped};
use atoll_tests::process::{find_program, program_command};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Implements as much of Claude Code's protocol as its driver needs. Reports its path and if it can change itself.
const FAKE_CLAUDE_SCRIPT: &str = r#"#!/bin/sh
while read -r line; do
    case $line in
    *'"type":"user"'*)
        uuid=$(printf '%s' "$line" | sed 's/.*"uuid":"\([^"]*\)".*/\1/')
        can=reads; if (echo >>"$0") 2>/dev/null || rm -f "$0" 2>/dev/null; then can=writes; fi
        echo '{"type":"system","subtype":"init","session_id":"s1","claude_code_version":"9.9.9","model":"m","tools":[]}'
        echo '{"type":"user","isReplay":true,"uuid":"'"$uuid"'","session_id":"s1","message":{"role":"user","content":"x"}}'
        echo '{"type":"assistant","session_id":"s1","message":{"id":"m1","role":"assistant","content":[{"type":"text","text":"'"$0 $can"'"}]}}'
        echo '{"type":"result","subtype":"success","is_error":false,"num_turns":1,"result":"done","session_id":"s1","total_cost_usd":0}'
        ;;
    esac
done
"#;

/// Implements as much of the Agent Client Protocol as its driver needs, and stores its sessions in `~/.sh-agent`. It says
/// its arguments, a variable, and if it resumed the session. The argument `flood` makes it announce many tool calls.
const FAKE_ACP_SCRIPT: &str = r#"#!/bin/sh
resumed=no
while read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
    respond() { echo '{"jsonrpc":"2.0","id":'"$id"',"result":'"$1"'}'; }
    case $line in
    *'"method":"initialize"'*) respond '{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}' ;;
    *'"method":"session/new"'*)
        mkdir -p "$HOME/.sh-agent"; touch "$HOME/.sh-agent/talk-1"
        respond '{"sessionId":"talk-1"}'
        ;;
    *'"method":"session/load"'*)
        if [ -e "$HOME/.sh-agent/talk-1" ]; then resumed=yes; fi
        respond '{}'
        ;;
    *'"method":"session/prompt"'*)
        if [ "$1" = flood ]; then
            awk 'BEGIN {
                padding = sprintf("%2000s", "")
                for (i = 0; i < 50000; i++)
                    print "{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"talk-1\"," \
                        "\"update\":{\"sessionUpdate\":\"tool_call\",\"status\":\"pending\",\"toolCallId\":\"t" i "\"," \
                        "\"title\":\"" padding "\"}}}"
            }'
        fi
        text="$* $MODE resumed=$resumed"
        echo '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"talk-1","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'"$text"'"}}}}'
        respond '{"stopReason":"end_turn"}'
        ;;
    esac
done
"#;

/// Creates a program in a directory that only the owner can enter.
fn create_private_program(text: &str) -> (TempDir, PathBuf) {
    let dir = create_temp_dir("atoll-agent-");
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    let program = home.join("claude");
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&home, Permissions::from_mode(0o700)).unwrap();
    (dir, program)
}

fn agent_config(program: &Path) -> String {
    format!("agents: {{claude: {{path: {}}}}}\n", program.display())
}

fn env_with_key() -> [(String, String); 2] {
    [("ANTHROPIC_API_KEY".into(), "sk-ant-nothing".into()), ("PATH".into(), "/usr/bin:/bin".into())]
}

/// No key, and no agent program in `PATH`.
fn env_without_key() -> [(String, String); 2] {
    [("ANTHROPIC_API_KEY".into(), String::new()), ("PATH".into(), "/usr/bin:/bin".into())]
}

async fn get_agent(server: &LocalServer, name: &str) -> Value {
    let all = server.admin.get("/agents").await.expect_status(200);
    all["items"].as_array().unwrap().iter().find(|item| item["name"] == name).unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_the_host_is_mounted_read_only_and_started_in_the_sandbox() {
    let (_dir, program) = create_private_program(FAKE_CLAUDE_SCRIPT);
    let server = LocalServer::start_with_env(&agent_config(&program), &env_with_key());
    let listed = get_agent(&server, "claude").await;
    assert_eq!(listed["usable"], true, "{listed}");
    assert_eq!((&listed["path"], &listed["tested"]), (&json!(program), &json!(false)));
    assert_eq!((&listed["abilities"]["steer"], &listed["missing"]), (&json!(true), &json!([])));

    // It is also the default if the request names no agent.
    for named in [json!("claude"), Value::Null] {
        let id = server.create_sandbox(json!({ "agent": named, "prompt": "do it" })).await;
        let row = server.wait_until_ended(&id).await;
        assert_eq!((&row["state"], &row["agent"]), (&json!("completed"), &json!("claude")), "{row}");
        let events = server.admin.all_events(&id).await;
        assert_eq!(agent_messages(&events), ["/opt/atoll/agents/claude/bin/claude reads"], "{events:#?}");
    }
    assert_eq!(fs::read_to_string(&program).unwrap(), FAKE_CLAUDE_SCRIPT);

    // Only sandboxes that use the agent have it. A fork inherits it.
    let demo = server.create_idle_sandbox(json!({})).await;
    assert_eq!(server.run_shell(&demo, "ls /opt/atoll").await.expect_success().trim(), "worker");
    let parent = server.create_idle_sandbox(json!({ "agent": "claude" })).await;
    let listing = server
        .run_shell(&parent, "find /opt/atoll/agents -type f; cat /opt/atoll/agents/claude/bin/claude | wc -l")
        .await;
    let lines = FAKE_CLAUDE_SCRIPT.lines().count();
    assert_eq!(listing.expect_success(), format!("/opt/atoll/agents/claude/bin/claude\n{lines}\n"));
    let fork =
        server.admin.post(&format!("/sandboxes/{parent}/fork"), json!({ "prompt": "go on" })).await.expect_status(201);
    let fork = fork["id"].as_str().unwrap().to_owned();
    server.track_sandbox(&fork);
    server.wait_for_event(&fork, |event| event["type"] == "agent.message").await;
    server.stop_and_check().await;
}

/// Two agents share a program and differ in arguments and environment. The one with a `session_dir` resumes.
#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_adds_agents_of_the_agent_client_protocol() {
    let (_dir, program) = create_private_program(FAKE_ACP_SCRIPT);
    let program = program.display();
    let config = format!(
        "acp_agents:\n  first: {{program: {program}, arguments: [one, two], environment: {{MODE: loud}}, \
         session_dir: .sh-agent}}\n  second: {{program: {program}, environment: {{MODE: quiet}}}}\n"
    );
    let server = LocalServer::start_with_env(&config, &env_without_key());
    let listed = get_agent(&server, "first").await;
    assert_eq!((&listed["usable"], &listed["origin"]), (&json!(true), &json!("configured")), "{listed}");
    for (agent, said, later) in [
        ("first", "one two loud resumed=no", "one two loud resumed=yes"),
        ("second", " quiet resumed=no", " quiet resumed=no"),
    ] {
        let id = server.create_sandbox(json!({ "agent": agent, "prompt": "begin" })).await;
        let row = server.wait_until_ended(&id).await;
        assert_eq!((&row["state"], &row["agent"]), (&json!("completed"), &json!(agent)), "{row}");
        let events = server.admin.all_events(&id).await;
        assert_eq!(agent_messages(&events), [said], "{events:#?}");
        let next = json!({ "session_id": row["session_id"], "agent": agent, "prompt": "go on" });
        let id = server.create_sandbox(next).await;
        assert_eq!(server.wait_until_ended(&id).await["state"], "completed");
        let events = server.admin.all_events(&id).await;
        assert_eq!(agent_messages(&events), [later], "{events:#?}");
    }
    server.stop_and_check().await;
}

/// The announced tool calls have more bytes than the worker may use.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_tool_calls_does_not_kill_the_worker() {
    let (_dir, program) = create_private_program(FAKE_ACP_SCRIPT);
    let config = format!("acp_agents: {{flooder: {{program: {}, arguments: [flood]}}}}\n", program.display());
    let server = LocalServer::start_with_env(&config, &env_without_key());
    let id = server.create_sandbox(json!({ "agent": "flooder", "prompt": "begin" })).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["state"], "completed", "{row}");
    assert_eq!(agent_messages(&server.admin.all_events(&id).await), ["flood  resumed=no"]);

    // With less memory than the driver's bounds allow, the kernel kills the worker, and the sandbox says why.
    let id = server.create_sandbox(json!({ "agent": "flooder", "end": "keep" })).await;
    server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    if host_state::limit_worker_memory(&id, 512 << 10) {
        server.send_message(&id, json!({ "content": "begin" })).await;
        let row = server.wait_until_ended(&id).await;
        assert_eq!((&row["state"], &row["reason"]["code"]), (&json!("failed"), &json!("worker_died")), "{row}");
        assert!(row["reason"]["detail"].as_str().unwrap().contains("its own memory limit"), "{row}");
    } else {
        report_skipped("a worker that reaches its memory limit", "no memory limit by cgroup");
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_program_or_key_is_reported_before_a_sandbox_is_created() {
    let server = LocalServer::start_with_env("", &env_without_key());
    let create = |body: Value| server.admin.post("/sandboxes", body);
    let missing = create(json!({ "provider": "local", "agent": "claude", "prompt": "x" })).await.expect_status(409);
    assert_eq!(missing["code"], "agent_missing");
    assert!(missing["detail"].as_str().unwrap().contains("`atoll agents install claude`"), "{missing}");
    let none = create(json!({ "provider": "local", "prompt": "x" })).await.expect_status(409);
    assert_eq!(none["code"], "no_agent");
    let unknown = create(json!({ "provider": "local", "agent": "nobody", "prompt": "x" })).await.expect_status(409);
    assert_eq!(unknown["code"], "no_agent");
    let listed = get_agent(&server, "claude").await;
    assert_eq!((&listed["usable"], &listed["path"]), (&json!(false), &Value::Null));
    assert_eq!(listed["missing"].as_array().unwrap().len(), 2, "the program and the key: {listed}");
    let demo = get_agent(&server, "demo").await;
    assert_eq!((&demo["usable"], &demo["origin"]), (&json!(true), &json!("builtin")));
    assert_eq!(server.admin.get("/sandboxes").await.expect_status(200)["items"], json!([]), "no sandbox must exist");

    // Without a prompt the sandbox starts, and the server rejects the first message.
    let waiting = server.create_sandbox(json!({ "agent": null })).await;
    let rejected = server.admin.post(&format!("/sandboxes/{waiting}/messages"), json!({ "content": "x" })).await;
    assert_eq!(rejected.expect_status(409)["code"], "no_agent");
    server.stop_and_check().await;

    let (_dir, program) = create_private_program(FAKE_CLAUDE_SCRIPT);
    let server = LocalServer::start_with_env(&agent_config(&program), &env_without_key());
    let keyless = server.admin.post("/sandboxes", json!({ "provider": "local", "agent": "claude", "prompt": "x" }));
    let keyless = keyless.await.expect_status(409);
    assert_eq!(keyless["code"], "agent_key_missing");
    assert!(keyless["detail"].as_str().unwrap().contains("ANTHROPIC_API_KEY"), "{keyless}");
    // A sandbox with its own key does not need the server's.
    let id =
        server.create_sandbox(json!({ "agent": "claude", "prompt": "x", "env": { "ANTHROPIC_API_KEY": "own" } })).await;
    assert_eq!(server.wait_until_ended(&id).await["state"], "completed");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unprivileged_server_uses_only_agents_that_it_can_read() {
    if !is_root() {
        return report_skipped("agents of a server that gave up root", "needs root");
    }
    let (_dir, program) = create_private_program(FAKE_CLAUDE_SCRIPT);
    let server =
        LocalServer::start_with_env(&format!("server: {{user: '54330'}}\n{}", agent_config(&program)), &env_with_key());
    let refused = server
        .admin
        .post("/sandboxes", LocalServer::sandbox_request(json!({ "agent": "claude", "prompt": "x" })))
        .await;
    assert_eq!(refused.expect_status(409)["code"], "agent_missing");
    fs::set_permissions(program.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let id = server.create_sandbox(json!({ "agent": "claude", "prompt": "x" })).await;
    assert_eq!(server.wait_until_ended(&id).await["state"], "completed");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_claude_code_starts_in_a_sandbox() {
    let bin = find_program("atoll").parent().and_then(Path::parent).unwrap().join("agents/bin");
    if !bin.join("claude").exists() {
        return report_skipped("the real Claude Code in a sandbox", "it is not installed: scripts/agents");
    }
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let environment = [("ANTHROPIC_API_KEY".to_owned(), "sk-ant-nothing".to_owned()), ("PATH".to_owned(), path)];
    let server = LocalServer::start_with_env("", &environment);
    let listed = get_agent(&server, "claude").await;
    assert_eq!((&listed["usable"], &listed["tested"], &listed["origin"]), (&json!(true), &json!(true), &json!("path")));
    let id = server.create_sandbox(json!({ "agent": "claude", "prompt": "say hello", "end": "keep" })).await;
    let started = server.wait_for_event(&id, |event| event["type"] == "agent.started").await;
    assert_eq!(started["data"]["version"], listed["version"], "{started}");
    server.stop_and_check().await;
}

/// The user can still choose another setting: there is no sandbox yet.
#[test]
fn a_run_reports_unattended_approvals_before_it_creates_the_sandbox() {
    let (dir, program) = create_private_program(FAKE_CLAUDE_SCRIPT);
    let file = dir.path().join("atoll.yaml");
    fs::write(&file, agent_config(&program)).unwrap();
    let mut run = program_command("atoll");
    run.args(["run", "do it", "--provider", "local", "--approvals", "edits", "--config"]).arg(&file);
    run.arg("--data-dir").arg(dir.path().join("data")).env("HOME", dir.path()).envs(env_with_key());
    let done = run.output().unwrap();
    let shown = String::from_utf8_lossy(&done.stdout).into_owned();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{shown}{errors}");
    let notice = shown.find("no terminal to answer on").unwrap_or_else(|| panic!("no notice: {shown}{errors}"));
    assert!(notice < shown.find("sbx_").unwrap(), "{shown}");
    assert_eq!(shown.matches("no terminal to answer on").count(), 1, "{shown}");
}

#[test]
fn a_run_uses_and_names_the_installed_agent() {
    let (dir, program) = create_private_program(FAKE_CLAUDE_SCRIPT);
    let file = dir.path().join("atoll.yaml");
    fs::write(&file, agent_config(&program)).unwrap();
    let mut run = program_command("atoll");
    run.args(["run", "do it", "--provider", "local", "--config"]).arg(&file);
    run.arg("--data-dir").arg(dir.path().join("data")).env("HOME", dir.path()).envs(env_with_key());
    let output = run.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(stdout.contains(&format!("using claude ({}); choose another with --agent", program.display())), "{stdout}");
    assert!(stdout.contains("/opt/atoll/agents/claude/bin/claude reads"), "{stdout}");
}

/// Doctor prints one line per agent, in the words of `atoll agents`.
#[test]
fn doctor_lists_the_installed_agents() {
    let (_dir, program) = create_private_program("#!/bin/sh\n");
    fs::write(program.with_file_name("package.json"), r#"{"version": "9.9.9"}"#).unwrap();
    let agent_checks = |environment: [(String, String); 2], config: &str| -> Vec<Value> {
        let mut atoll = program_command("atoll");
        atoll.envs(environment);
        let (_, checks) = run_doctor(atoll, config);
        checks.into_iter().filter(|check| check["check"] == "agent").collect()
    };
    let config = agent_config(&program);
    let claude = |checks: Vec<Value>| {
        let found = checks.iter().find(|check| check["detail"].as_str().unwrap().starts_with("claude"));
        found.unwrap_or_else(|| panic!("{checks:?}")).clone()
    };
    let usable = claude(agent_checks(env_with_key(), &config));
    let detail = format!("claude 9.9.9 (untested), has a key: {}", program.display());
    assert_eq!((&usable["status"], &usable["detail"]), (&json!("ok"), &json!(detail)), "{usable}");
    let keyless = claude(agent_checks(env_without_key(), &config));
    assert!(keyless["status"] == "warn" && keyless["detail"].as_str().unwrap().contains("no key"), "{keyless}");
    assert!(keyless["remedy"].as_str().unwrap().contains("ANTHROPIC_API_KEY"), "{keyless}");
    for check in agent_checks(env_without_key(), "{}") {
        assert!(!check["detail"].to_string().contains("demo"), "the demo agent is always present: {check}");
    }
}
