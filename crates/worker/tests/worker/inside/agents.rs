//! Real agents, run by the worker, against the scripted model: what their drivers and the executor make of it together.
//! `scripts/agents` installs them; without them these tests are skipped, unless `ATOLL_TEST_AGENTS` is set.

use super::Sandbox;
use atoll_model_script::{ScriptedModel, Scripts};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Some take long to start, the more so when several do.
const LONGEST: Duration = Duration::from_secs(120);

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

fn program(agent: &str) -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"));
    let program = target.join("agents/bin").join(agent);
    if !program.exists() {
        let required = std::env::var_os("ATOLL_TEST_AGENTS").is_some_and(|value| !value.is_empty());
        assert!(!required, "{} is missing: run scripts/agents", program.display());
        let line = format!("skipped: inside::agents: {} is missing; scripts/agents installs it\n", program.display());
        drop(std::io::stderr().lock().write_all(line.as_bytes()));
        return None;
    }
    Some(program.canonicalize().unwrap())
}

fn start(agent: &'static str, model: &ScriptedModel, program: &Path, prompt: &str) -> Sandbox {
    let name = match agent {
        "claude" => "claude-sonnet-4-5",
        "gemini" => "gemini-2.5-pro",
        _ => "gpt-5.5",
    };
    Sandbox::with(|fake| {
        fake.with(|state| {
            state.agent = Some(agent);
            state.start.insert("program".to_owned(), json!(program));
            state.start.insert("gateway".to_owned(), json!({"base_url": model.base_url(), "key": "sk-scripted"}));
            state.start.insert("settings".to_owned(), json!({"model": name, "approvals": "full"}));
        });
        fake.queue(prompt);
    })
}

/// All of its stories in one sandbox, as a person would have it.
fn works(agent: &'static str) {
    let Some(program) = program(agent) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let model = runtime.block_on(ScriptedModel::start(Scripts::parse(SCRIPTS).unwrap())).unwrap();
    let mut sandbox = start(agent, &model, &program, "please #script:work");

    sandbox.wait_long_for("agent.tool_use", 2, LONGEST);
    let steered = sandbox.fake.queue("and this too");
    sandbox.wait_long_for("agent.waiting", 1, LONGEST);
    let events = sandbox.fake.events();
    let edited: Vec<&Value> = events.iter().filter(|event| event["type"] == "agent.file_edited").collect();
    let hello = edited.iter().find(|event| event["data"]["file_path"] == "hello.txt").unwrap();
    assert_eq!(hello["turn"], 1, "{hello}");
    // OpenCode tells of a tool when it may have run already.
    assert!(hello["data"]["tool_use_id"].is_string() || agent == "opencode", "{hello}");
    assert!(edited.iter().any(|event| event["data"]["file_path"] == "ran.txt"), "{events:#?}");
    assert_eq!((sandbox.count("agent.started"), sandbox.count("agent.completed")), (1, 1), "{events:#?}");
    let how = |id: &Value| {
        let acks = sandbox.fake.answers("ack");
        let of: Vec<Value> = acks.into_iter().filter(|ack| ack["id"] == *id).collect();
        assert_eq!(of.len(), 1, "{id}: {of:?}");
        of[0]["how"].as_str().unwrap().to_owned()
    };
    assert!(["injected", "restarted"].contains(&&*how(&steered)));

    sandbox.fake.queue("please #script:endless");
    sandbox.wait_long_for("agent.started", 2, LONGEST);
    let stop = sandbox.fake.queue_as("interrupt", "steer", "enough");
    sandbox.wait_long_for("agent.interrupted", 1, LONGEST);
    let late = sandbox.fake.queue("rather #script:late");
    sandbox.wait_long_for("agent.completed", 2, LONGEST);
    sandbox.wait_long_for("agent.waiting", 2, LONGEST);
    assert_eq!((how(&stop), how(&late)), ("injected".to_owned(), "new_turn".to_owned()));
    assert_eq!(std::fs::read_to_string(sandbox.file("late.txt")).unwrap(), "late\n");
    let events = sandbox.fake.events();
    let told = events.iter().find(|event| event["data"]["file_path"] == "late.txt");
    assert!(told.is_some_and(|event| event["turn"] == 3), "{events:#?}");
    assert_eq!(sandbox.count("agent.failed") + sandbox.count("agent.unparsed"), 0, "{events:#?}");
    assert!(sandbox.end().success(), "{}", sandbox.log());
}

#[test]
fn claude_works() {
    works("claude");
}

#[test]
fn codex_works() {
    works("codex");
}

#[test]
fn gemini_works() {
    works("gemini");
}

#[test]
fn opencode_works() {
    works("opencode");
}
