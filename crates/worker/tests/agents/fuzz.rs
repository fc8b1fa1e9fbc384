//! Feeds malformed lines to every driver in the middle of recorded scenarios. No driver panics, and none drops a line
//! silently: a line becomes output, or `Unparsed`, or is of a kind without effect even in a real agent's transcript.
//!
//! Full scale is 10,000 lines per driver, `make test` uses a tenth; `ATOLL_TEST_SEED` repeats a run.

use crate::golden::{Replay, SCENARIOS};
use crate::record;
use anyhow::{Context, Result, ensure};
use atoll_core::sandbox::ApprovalMode;
use atoll_core::time::Timestamp;
use atoll_dispatcher::program::input::Event;
use atoll_drivers::{self as driver, AgentOutput, RequestAnswer};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const FULL_SCALE_LINES: usize = 10_000;

fn strange_value(rng: &mut StdRng) -> Value {
    match rng.random_range(0..14) {
        0 => Value::Null,
        1 => json!(-1),
        2 => json!(i64::MAX),
        3 => json!(u64::MAX),
        4 => json!(1e308),
        5 => json!(""),
        6 => json!("\u{1b}[2J\u{1b}]0;gone\u{7}\u{0}\u{202e}"),
        7 => json!("x".repeat(rng.random_range(1..200_000))),
        8 => json!([]),
        9 => json!({}),
        10 => json!([1, null, {"type": 2}, [[]]]),
        11 => json!({"type": "strange", "content": [{"type": "strange"}], "id": [1]}),
        12 => (0..rng.random_range(1..200)).fold(json!(1), |inner, _| json!([inner])),
        _ => json!(rng.random::<bool>()),
    }
}

/// Mutates one place in the value.
fn mutate_value(value: &mut Value, rng: &mut StdRng, others: &[Value]) {
    let descends = rng.random_range(0..4) > 0;
    match value {
        Value::Object(all) if descends && !all.is_empty() => {
            let at = rng.random_range(0..all.len());
            let Some(name) = all.keys().nth(at).cloned() else { return };
            match rng.random_range(0..8) {
                0 => drop(all.remove(&name)),
                1 => {
                    let moved = all.remove(&name).unwrap_or_default();
                    all.insert(format!("{name}x"), moved);
                }
                _ => {
                    if let Some(inner) = all.get_mut(&name) {
                        mutate_value(inner, rng, others);
                    }
                }
            }
        }
        Value::Array(all) if descends && !all.is_empty() => {
            let at = rng.random_range(0..all.len());
            mutate_value(&mut all[at], rng, others);
        }
        Value::String(text) if rng.random() => text.push_str("-strange"),
        other if rng.random_range(0..5) == 0 => *other = others[rng.random_range(0..others.len())].clone(),
        other => *other = strange_value(rng),
    }
}

fn mutate_line(rng: &mut StdRng, lines: &[Value]) -> Vec<u8> {
    let one = |rng: &mut StdRng| lines[rng.random_range(0..lines.len())].clone();
    let mut line = one(rng);
    match rng.random_range(0..10) {
        0 => {
            let length = rng.random_range(1..300);
            return (0..length).map(|_| rng.random::<u8>()).filter(|byte| *byte != b'\n').collect();
        }
        1 => {
            let mut bytes = line.to_string().into_bytes();
            bytes.truncate(rng.random_range(1..=bytes.len()));
            return bytes;
        }
        2 => {
            let mut bytes = line.to_string().into_bytes();
            let at = rng.random_range(0..bytes.len());
            bytes[at] = rng.random_range(128..=255);
            return bytes;
        }
        3 => return format!("\u{1b}[31mwarning:\u{1b}[0m {line}").into_bytes(),
        4 => return format!("{line}{}", one(rng)).into_bytes(),
        5 => return strange_value(rng).to_string().into_bytes(),
        _ => {}
    }
    for _ in 0..rng.random_range(1..4) {
        mutate_value(&mut line, rng, lines);
    }
    line.to_string().into_bytes()
}

/// The kind of a line, as far as drivers distinguish them.
pub fn line_kind(line: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (params, update, event) = (&line["params"], &line["params"]["update"], &line["event"]["data"]);
    let part = &event["properties"]["part"];
    let parts = [
        word(&line["type"]),
        word(&line["subtype"]),
        word(&line["event"]["type"]),
        word(&line["method"]),
        word(&params["item"]["type"]),
        word(&update["sessionUpdate"]),
        word(&event["type"]),
        word(&part["type"]),
        word(&part["state"]["status"]),
    ];
    let known: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
    if known.is_empty() {
        if line["result"].is_null() { "other" } else { "result" }.to_owned()
    } else {
        known.join(" ")
    }
}

/// Returns true for lines that may have no effect, even if they are malformed.
fn may_be_silent(line: &Value) -> bool {
    let blank = |text: &Value| text.as_str().is_some_and(|text| text.trim().is_empty());
    let (item, update) = (&line["params"]["item"], &line["params"]["update"]);
    // Events of a subagent's thread: the driver reports only its tools.
    const SUBAGENT_METHODS: &[&str] =
        &["turn/started", "turn/completed", "turn/plan/updated", "item/agentMessage/delta"];
    if line["method"].as_str().is_some_and(|method| SUBAGENT_METHODS.contains(&method))
        && line["params"]["threadId"].is_string()
    {
        return true;
    }
    // A repeated tool call or part.
    let part = &line["event"]["data"]["properties"]["part"];
    if update["toolCallId"].is_string() || part["id"].is_string() {
        return true;
    }
    // A response: only errors matter.
    if line["method"].is_null() && line["id"].is_u64() {
        return true;
    }
    // An echo of our message.
    if item["type"] == "userMessage" {
        return true;
    }
    // Hidden or incomplete reasoning.
    if item["type"] == "reasoning" || update["sessionUpdate"] == "agent_thought_chunk" {
        return true;
    }
    // Empty text.
    let texts = [&item["text"], &update["content"]["text"], &line["event"]["data"]["properties"]["part"]["text"]];
    texts.into_iter().any(blank)
}

pub struct Corpus {
    agent: String,
    pub scenarios: Vec<Vec<Value>>,
    lines: Vec<Value>,
    /// Kinds of lines that are valid and have no effect.
    silent_kinds: BTreeSet<String>,
}

impl Corpus {
    /// Loads the lines for the driver of `agent`.
    pub fn for_agent(agent: &str) -> Result<Self> {
        let mut corpus =
            Self { agent: agent.to_owned(), scenarios: Vec::new(), lines: Vec::new(), silent_kinds: BTreeSet::new() };
        let source = match agent {
            "demo" => {
                corpus.add_scenario(demo_scenario())?;
                return Ok(corpus);
            }
            "acp" => "gemini",
            agent => agent,
        };
        for scenario in SCENARIOS {
            let text = std::fs::read_to_string(record::transcript_path(source, scenario)?)?;
            corpus.add_scenario(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)?;
        }
        Ok(corpus)
    }

    fn add_scenario(&mut self, scenario: Vec<Value>) -> Result<()> {
        let mut replay = Replay::new(&self.agent, ApprovalMode::Full)?;
        for step in &scenario {
            let line = &step["line"];
            let output_count = replay.run_step(step)?;
            if !line.is_null() {
                self.lines.push(line.clone());
                if output_count == 0 {
                    self.silent_kinds.insert(line_kind(line));
                }
            }
        }
        self.scenarios.push(scenario);
        Ok(())
    }

    fn fuzz_driver(&self) -> Result<()> {
        let seed =
            std::env::var("ATOLL_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
        let mut stderr = std::io::stderr().lock();
        drop(std::io::Write::write_all(&mut stderr, format!("{}: ATOLL_TEST_SEED={seed}\n", self.agent).as_bytes()));
        drop(stderr);
        let mut rng = StdRng::seed_from_u64(seed);
        let scale = std::env::var("ATOLL_TEST_SCALE").ok().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.1);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
        let count = (FULL_SCALE_LINES as f64 * scale).ceil() as usize;
        let mut left: Vec<&Value> = Vec::new();
        let mut replay = Replay::new(&self.agent, ApprovalMode::Full)?;
        for number in 0..count {
            if left.is_empty() || rng.random_range(0..200) == 0 {
                left = self.scenarios[rng.random_range(0..self.scenarios.len())].iter().rev().collect();
                replay = Replay::new(&self.agent, ApprovalMode::Full)?;
            }
            for _ in 0..rng.random_range(0..2) {
                if let Some(step) = left.pop() {
                    replay.run_step(step)?;
                }
            }
            let line = mutate_line(&mut rng, &self.lines);
            if !line.trim_ascii().is_empty() {
                self.check_line(&mut replay, &line).with_context(|| {
                    let excerpt = String::from_utf8_lossy(&line[..line.len().min(2_000)]).into_owned();
                    format!("{} {seed}: line {number}: {excerpt}", self.agent)
                })?;
            }
        }
        Ok(())
    }

    fn check_line(&self, replay: &mut Replay, line: &[u8]) -> Result<()> {
        let driver = &mut replay.driver;
        let outputs = driver.handle_line(line);
        // Valid JSON may be too deeply nested to parse.
        let is_object = serde_json::from_slice::<&RawValue>(line).is_ok_and(|raw| raw.get().starts_with('{'));
        let parsed = serde_json::from_slice::<Value>(line).ok().filter(Value::is_object);
        match &parsed {
            None if is_object => {}
            None => {
                ensure!(matches!(outputs[..], [AgentOutput::Unparsed { .. }]), "a malformed line yields {outputs:?}")
            }
            Some(parsed) if outputs.is_empty() => {
                let kind = line_kind(parsed);
                // `session/load` replays the old conversation.
                let is_replayed = replay.is_resumed && parsed["params"]["update"].is_object();
                let is_allowed = is_replayed || self.silent_kinds.contains(&kind) || may_be_silent(parsed);
                ensure!(is_allowed, "`{kind}` was dropped silently");
            }
            Some(_) => {}
        }
        for output in outputs {
            match output {
                AgentOutput::Unparsed { reason } => {
                    let event = Event::unparsed(line, line.len(), &reason, Timestamp::from_micros(0));
                    let event = event.context("failed to build agent.unparsed")?;
                    ensure!(event.data.get().len() < 64 << 10, "the excerpt is too long");
                }
                AgentOutput::Request(request) => {
                    drop(driver.answer_request(&request.id, RequestAnswer::Deny { reason: "no".to_owned() }))
                }
                AgentOutput::AwaitingScan { tool_use_id } => drop(driver.confirm_scan(&tool_use_id)),
                _ => {}
            }
        }
        Ok(())
    }
}

#[test]
fn claude_driver_survives_malformed_lines() -> Result<()> {
    Corpus::for_agent("claude")?.fuzz_driver()
}

#[test]
fn codex_driver_survives_malformed_lines() -> Result<()> {
    Corpus::for_agent("codex")?.fuzz_driver()
}

#[test]
fn gemini_driver_survives_malformed_lines() -> Result<()> {
    Corpus::for_agent("gemini")?.fuzz_driver()
}

#[test]
fn acp_driver_survives_malformed_lines() -> Result<()> {
    Corpus::for_agent("acp")?.fuzz_driver()
}

#[test]
fn opencode_driver_survives_malformed_lines() -> Result<()> {
    Corpus::for_agent("opencode")?.fuzz_driver()
}

/// The demo agent's lines: it has no recorded transcripts.
fn demo_scenario() -> Vec<Value> {
    let id = atoll_core::id::MessageId::from_uuid(uuid::Uuid::from_u128(1));
    let tool = json!({"tool": "Bash", "tool_use_id": "t1", "input": {"command": "ls"}});
    let lines = [
        json!({"event": "agent.started", "data": {"agent": "demo"}}),
        json!({"acknowledged": {"id": id, "how": "new_turn"}}),
        json!({"event": "agent.message", "data": {"text": "hello"}}),
        json!({"event": "agent.tool_use", "data": tool}),
        json!({"event": "agent.tool_completed", "data": {"tool_use_id": "t1", "output": "a"}}),
        json!({"event": "agent.completed", "data": {"stop_reason": "end_turn"}}),
        json!({"idle": {}}),
    ];
    lines.into_iter().map(|line| json!({ "line": line })).collect()
}

#[test]
fn demo_driver_survives_malformed_lines() -> Result<()> {
    let corpus = Corpus::for_agent("demo")?;
    assert!(corpus.silent_kinds.is_empty(), "{:?}", corpus.silent_kinds);
    corpus.fuzz_driver()
}

#[test]
fn covers_every_driver() {
    let fuzzed = ["acp", "claude", "codex", "demo", "gemini", "opencode"];
    assert_eq!(driver::AGENT_NAMES, fuzzed);
}
