//! Agents' programs: found on this machine, shown to the sandbox, started there; what is missing is said before.

use super::tier::doctor;
use atoll_tests::local::{Ground, directory, is_root, said, skipped};
use atoll_tests::process::{command, program};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// As much of Claude Code as its driver wants to hear: it says where it is, and whether it could change itself.
const CLAUDE: &str = r#"#!/bin/sh
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

/// A program in a directory that nobody else may enter.
fn hidden(text: &str) -> (TempDir, PathBuf) {
    let dir = directory("atoll-agent-");
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    let program = home.join("claude");
    fs::write(&program, text).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&home, Permissions::from_mode(0o700)).unwrap();
    (dir, program)
}

fn configured(program: &Path) -> String {
    format!("agents: {{claude: {{path: {}}}}}\n", program.display())
}

fn with_key() -> [(String, String); 2] {
    [("ANTHROPIC_API_KEY".into(), "sk-ant-nothing".into()), ("PATH".into(), "/usr/bin:/bin".into())]
}

/// Neither a key nor a program.
fn bare() -> [(String, String); 2] {
    [("ANTHROPIC_API_KEY".into(), String::new()), ("PATH".into(), "/usr/bin:/bin".into())]
}

async fn agent(ground: &Ground, name: &str) -> Value {
    let all = ground.admin.get("/agents").await.expect(200);
    all["items"].as_array().unwrap().iter().find(|item| item["name"] == name).unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_this_machine_is_shown_to_its_sandbox_and_started_there() {
    let (_dir, program) = hidden(CLAUDE);
    let ground = Ground::start_in(&configured(&program), &with_key());
    let listed = agent(&ground, "claude").await;
    assert_eq!(listed["usable"], true, "{listed}");
    assert_eq!((&listed["path"], &listed["tested"]), (&json!(program), &json!(false)));
    assert_eq!((&listed["abilities"]["steer"], &listed["missing"]), (&json!(true), &json!([])));

    // It is also the one that is taken where none is named.
    for named in [json!("claude"), Value::Null] {
        let id = ground.make(json!({ "agent": named, "prompt": "do it" })).await;
        let row = ground.ended(&id).await;
        assert_eq!((&row["state"], &row["agent"]), (&json!("completed"), &json!("claude")), "{row}");
        let events = ground.admin.all_events(&id).await;
        assert_eq!(said(&events), ["/opt/atoll/agents/claude/bin/claude reads"], "{events:#?}");
    }
    assert_eq!(fs::read_to_string(&program).unwrap(), CLAUDE);

    // Another sandbox sees nothing of it, and a fork of one that has it has it too.
    let demo = ground.kept(json!({})).await;
    assert_eq!(ground.shell(&demo, "ls /opt/atoll").await.well().trim(), "worker");
    let kept = ground.kept(json!({ "agent": "claude" })).await;
    let seen =
        ground.shell(&kept, "find /opt/atoll/agents -type f; cat /opt/atoll/agents/claude/bin/claude | wc -l").await;
    let lines = CLAUDE.lines().count();
    assert_eq!(seen.well(), format!("/opt/atoll/agents/claude/bin/claude\n{lines}\n"));
    let fork = ground.admin.post(&format!("/sandboxes/{kept}/fork"), json!({ "prompt": "go on" })).await.expect(201);
    let fork = fork["id"].as_str().unwrap().to_owned();
    ground.remember(&fork);
    ground.event(&fork, |event| event["type"] == "agent.message").await;
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_said_before_a_sandbox_is_made() {
    let ground = Ground::start_in("", &bare());
    let refused = |body: Value| ground.admin.post("/sandboxes", body);
    let missing = refused(json!({ "provider": "local", "agent": "claude", "prompt": "x" })).await.expect(409);
    assert_eq!(missing["code"], "agent_missing");
    assert!(missing["detail"].as_str().unwrap().contains("`atoll agents install claude`"), "{missing}");
    let none = refused(json!({ "provider": "local", "prompt": "x" })).await.expect(409);
    assert_eq!(none["code"], "no_agent");
    let unknown = refused(json!({ "provider": "local", "agent": "nobody", "prompt": "x" })).await.expect(409);
    assert_eq!(unknown["code"], "no_agent");
    let listed = agent(&ground, "claude").await;
    assert_eq!((&listed["usable"], &listed["path"]), (&json!(false), &Value::Null));
    assert_eq!(listed["missing"].as_array().unwrap().len(), 2, "the program and the key: {listed}");
    let demo = agent(&ground, "demo").await;
    assert_eq!((&demo["usable"], &demo["origin"]), (&json!(true), &json!("builtin")));
    assert_eq!(ground.admin.get("/sandboxes").await.expect(200)["items"], json!([]), "nothing was made");

    // Without a prompt there is one, and the first message is what is refused.
    let waiting = ground.make(json!({ "agent": null })).await;
    let unheard = ground.admin.post(&format!("/sandboxes/{waiting}/messages"), json!({ "content": "x" })).await;
    assert_eq!(unheard.expect(409)["code"], "no_agent");
    ground.leave().await;

    let (_dir, program) = hidden(CLAUDE);
    let ground = Ground::start_in(&configured(&program), &bare());
    let keyless = ground.admin.post("/sandboxes", json!({ "provider": "local", "agent": "claude", "prompt": "x" }));
    let keyless = keyless.await.expect(409);
    assert_eq!(keyless["code"], "agent_key_missing");
    assert!(keyless["detail"].as_str().unwrap().contains("ANTHROPIC_API_KEY"), "{keyless}");
    // Who brings one of their own needs none of the server's.
    let id = ground.make(json!({ "agent": "claude", "prompt": "x", "env": { "ANTHROPIC_API_KEY": "own" } })).await;
    assert_eq!(ground.ended(&id).await["state"], "completed");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_root_any_more_shows_what_it_can_reach_and_nothing_else() {
    if !is_root() {
        return skipped("agents of a server that gave up root", "needs root");
    }
    let (_dir, program) = hidden(CLAUDE);
    let ground = Ground::start_in(&format!("server: {{user: '54330'}}\n{}", configured(&program)), &with_key());
    // It can't even look there.
    let refused = ground.admin.post("/sandboxes", Ground::request(json!({ "agent": "claude", "prompt": "x" }))).await;
    assert_eq!(refused.expect(409)["code"], "agent_missing");
    fs::set_permissions(program.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    let id = ground.make(json!({ "agent": "claude", "prompt": "x" })).await;
    assert_eq!(ground.ended(&id).await["state"], "completed");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_claude_code_starts_in_a_sandbox() {
    let bin = program("atoll").parent().and_then(Path::parent).unwrap().join("agents/bin");
    if !bin.join("claude").exists() {
        return skipped("the real Claude Code in a sandbox", "it is not installed: scripts/agents");
    }
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let environment = [("ANTHROPIC_API_KEY".to_owned(), "sk-ant-nothing".to_owned()), ("PATH".to_owned(), path)];
    let ground = Ground::start_in("", &environment);
    let listed = agent(&ground, "claude").await;
    assert_eq!((&listed["usable"], &listed["tested"], &listed["origin"]), (&json!(true), &json!(true), &json!("path")));
    let id = ground.make(json!({ "agent": "claude", "prompt": "say hello", "end": "keep" })).await;
    let started = ground.event(&id, |event| event["type"] == "agent.started").await;
    assert_eq!(started["data"]["version"], listed["version"], "{started}");
    ground.leave().await;
}

#[test]
fn a_run_takes_the_agent_that_is_here_and_says_so() {
    let (dir, program) = hidden(CLAUDE);
    let file = dir.path().join("atoll.yaml");
    fs::write(&file, configured(&program)).unwrap();
    let mut run = command("atoll");
    run.args(["run", "do it", "--provider", "local", "--config"]).arg(&file);
    run.arg("--data-dir").arg(dir.path().join("data")).env("HOME", dir.path()).envs(with_key());
    let output = run.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(said.contains(&format!("using claude ({}): --agent names another", program.display())), "{said}");
    assert!(said.contains("/opt/atoll/agents/claude/bin/claude reads"), "{said}");
}

/// The same that `atoll agents` says of those that are here, one line for each.
#[test]
fn doctor_tells_which_agents_are_here() {
    let (_dir, program) = hidden("#!/bin/sh\n");
    fs::write(program.with_file_name("package.json"), r#"{"version": "9.9.9"}"#).unwrap();
    let told = |environment: [(String, String); 2], config: &str| -> Vec<Value> {
        let mut atoll = command("atoll");
        atoll.envs(environment);
        let (_, checks) = doctor(atoll, config);
        checks.into_iter().filter(|check| check["check"] == "agent").collect()
    };
    let config = configured(&program);
    let claude = |checks: Vec<Value>| {
        let found = checks.iter().find(|check| check["detail"].as_str().unwrap().starts_with("claude"));
        found.unwrap_or_else(|| panic!("{checks:?}")).clone()
    };
    let well = claude(told(with_key(), &config));
    let detail = format!("claude 9.9.9 (untested), a key is there: {}", program.display());
    assert_eq!((&well["status"], &well["detail"]), (&json!("ok"), &json!(detail)), "{well}");
    let lacks = claude(told(bare(), &config));
    assert!(lacks["status"] == "warn" && lacks["detail"].as_str().unwrap().contains("no key"), "{lacks}");
    assert!(lacks["remedy"].as_str().unwrap().contains("ANTHROPIC_API_KEY"), "{lacks}");
    for check in told(bare(), "{}") {
        assert!(!check["detail"].to_string().contains("demo"), "it is always here: {check}");
    }
}
