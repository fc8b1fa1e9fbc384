//! Real agents, run by the worker against the scripted model: tests the drivers together with the executor.
//! `scripts/agents` installs the agents; without them the tests are skipped, unless `ATOLL_TEST_AGENTS` is set.

use super::WorkerSandbox;
use atoll_model_script::{ScriptedModel, Scripts};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

const SCRIPTS: &str = r#"
scripts:
  - name: work
    steps:
      - say: I make a file.
      - write: {file: hello.txt, content: "hello\nworld\n"}
      - run: touch begun && sleep 2 && echo ran > ran.txt
      - expect: {text: and this too}
      - say: I saw both.
  - name: endless
    steps:
      - slow: {pieces: [and, on, and, on], pause: 2}
      - run: sleep 60
  - name: late
    steps:
      - run: echo late > late.txt
      - say: That was it.
"#;

fn find_agent_program(agent: &str) -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"));
    let program = target.join("agents/bin").join(agent);
    if !program.exists() {
        let required = std::env::var_os("ATOLL_TEST_AGENTS").is_some_and(|value| !value.is_empty());
        assert!(!required, "{} is missing: run scripts/agents", program.display());
        let line =
            format!("skipped: in_sandbox::real_agents: {} is missing; scripts/agents installs it\n", program.display());
        drop(std::io::stderr().lock().write_all(line.as_bytes()));
        return None;
    }
    Some(program.canonicalize().unwrap())
}

fn start_agent(agent: &'static str, model: &ScriptedModel, program: &Path, prompt: &str) -> WorkerSandbox {
    let name = match agent {
        "claude" => "claude-sonnet-4-5",
        "gemini" => "gemini-2.5-pro",
        _ => "gpt-5.5",
    };
    WorkerSandbox::start_with(|fake| {
        fake.with_state(|state| {
            state.agent = Some(agent);
            state.start_fields.insert("program".to_owned(), json!(program));
            state
                .start_fields
                .insert("gateway".to_owned(), json!({"base_url": model.base_url(), "key": "sk-scripted"}));
            state.start_fields.insert("settings".to_owned(), json!({"model": name, "approvals": "full"}));
        });
        fake.queue_message(prompt);
    })
}

/// Runs all scenarios in one sandbox, like a user's session.
fn run_all_scenarios(agent: &'static str) {
    let Some(program) = find_agent_program(agent) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let model = runtime.block_on(ScriptedModel::start(Scripts::parse(SCRIPTS).unwrap())).unwrap();
    let mut sandbox = start_agent(agent, &model, &program, "please #script:work");

    sandbox.wait_for_events("agent.tool_use", 2);
    let steered = sandbox.server.queue_message("and this too");
    sandbox.wait_for_events("agent.waiting", 1);
    let events = sandbox.server.events();
    let edited: Vec<&Value> = events.iter().filter(|event| event["type"] == "agent.file_edited").collect();
    let hello = edited.iter().find(|event| event["data"]["file_path"] == "hello.txt").unwrap();
    assert_eq!(hello["turn"], 1, "{hello}");
    // OpenCode may report a tool call only after it ran.
    assert!(hello["data"]["tool_use_id"].is_string() || agent == "opencode", "{hello}");
    assert!(edited.iter().any(|event| event["data"]["file_path"] == "ran.txt"), "{events:#?}");
    assert_eq!((sandbox.count_events("agent.started"), sandbox.count_events("agent.completed")), (1, 1), "{events:#?}");
    let how = |id: &Value| {
        let acks = sandbox.server.message_answers("ack");
        let matching: Vec<Value> = acks.into_iter().filter(|ack| ack["id"] == *id).collect();
        assert_eq!(matching.len(), 1, "{id}: {matching:?}");
        matching[0]["how"].as_str().unwrap().to_owned()
    };
    assert!(["injected", "restarted"].contains(&&*how(&steered)));

    sandbox.server.queue_message("please #script:endless");
    sandbox.wait_for_events("agent.started", 2);
    let stop = sandbox.server.queue_message_as("interrupt", "steer", "enough");
    sandbox.wait_for_events("agent.interrupted", 1);
    let late = sandbox.server.queue_message("rather #script:late");
    sandbox.wait_for_events("agent.completed", 2);
    sandbox.wait_for_events("agent.waiting", 2);
    assert_eq!((how(&stop), how(&late)), ("injected".to_owned(), "new_turn".to_owned()));
    assert_eq!(std::fs::read_to_string(sandbox.workspace_path("late.txt")).unwrap(), "late\n");
    let events = sandbox.server.events();
    let edit = events.iter().find(|event| event["data"]["file_path"] == "late.txt");
    assert!(edit.is_some_and(|event| event["turn"] == 3), "{events:#?}");
    assert_eq!(sandbox.count_events("agent.failed") + sandbox.count_events("agent.unparsed"), 0, "{events:#?}");
    assert!(sandbox.complete_and_wait().success(), "{}", sandbox.worker_log());
}

#[test]
fn claude_completes_all_scenarios() {
    run_all_scenarios("claude");
}

#[test]
fn codex_completes_all_scenarios() {
    run_all_scenarios("codex");
}

#[test]
fn gemini_completes_all_scenarios() {
    run_all_scenarios("gemini");
}

#[test]
fn opencode_completes_all_scenarios() {
    run_all_scenarios("opencode");
}
