//! Lines that no agent should say, put before every driver in the middle of what real agents do: nothing breaks, and no
//! line is dropped without a word. A line either becomes something (an event, words that are streamed, an answer), or
//! is told as not understood, or is of a kind that also says nothing when the real agent says it.
//!
//! 10,000 lines for each driver at full scale, a tenth in `make test`; `ATOLL_TEST_SEED` makes the same ones again.

use crate::golden::{Play, STORIES};
use crate::record;
use anyhow::{Context, Result, ensure};
use atoll_core::sandbox::Approvals;
use atoll_core::time::Timestamp;
use atoll_worker::driver::{self, Answer, Said};
use atoll_worker::input::Event;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const LINES: usize = 10_000;

/// Whatever a value is replaced with.
fn strange(rng: &mut StdRng) -> Value {
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

/// One place somewhere in it is otherwise.
fn twist(value: &mut Value, rng: &mut StdRng, others: &[Value]) {
    let goes_down = rng.random_range(0..4) > 0;
    match value {
        Value::Object(all) if goes_down && !all.is_empty() => {
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
                        twist(inner, rng, others);
                    }
                }
            }
        }
        Value::Array(all) if goes_down && !all.is_empty() => {
            let at = rng.random_range(0..all.len());
            twist(&mut all[at], rng, others);
        }
        Value::String(text) if rng.random() => text.push_str("-strange"),
        other if rng.random_range(0..5) == 0 => *other = others[rng.random_range(0..others.len())].clone(),
        other => *other = strange(rng),
    }
}

fn fuzzed(rng: &mut StdRng, lines: &[Value]) -> Vec<u8> {
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
        5 => return strange(rng).to_string().into_bytes(),
        _ => {}
    }
    for _ in 0..rng.random_range(1..4) {
        twist(&mut line, rng, lines);
    }
    line.to_string().into_bytes()
}

/// What kind of line it is, as far as a driver tells them apart.
fn kind(line: &Value) -> String {
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

/// What nobody needs to be told, also if it is not quite as it should be.
fn says_nothing(line: &Value) -> bool {
    let blank = |text: &Value| text.as_str().is_some_and(|text| text.trim().is_empty());
    let (item, update) = (&line["params"]["item"], &line["params"]["update"]);
    // Another agent's conversation, that it works with: only its tools are told.
    const OTHERS: &[&str] = &["turn/started", "turn/completed", "turn/plan/updated", "item/agentMessage/delta"];
    if line["method"].as_str().is_some_and(|method| OTHERS.contains(&method)) && line["params"]["threadId"].is_string()
    {
        return true;
    }
    // A tool or a part that was told before, and is told again.
    let part = &line["event"]["data"]["properties"]["part"];
    if update["toolCallId"].is_string() || part["id"].is_string() {
        return true;
    }
    // An answer to a word that only a refusal would matter to, or none.
    if line["method"].is_null() && line["id"].is_u64() {
        return true;
    }
    // What it was told itself.
    if item["type"] == "userMessage" {
        return true;
    }
    // A thought that is not shown, and one that is not whole yet.
    if item["type"] == "reasoning" || update["sessionUpdate"] == "agent_thought_chunk" {
        return true;
    }
    // Nothing was said, or thought.
    let texts = [&item["text"], &update["content"]["text"], &line["event"]["data"]["properties"]["part"]["text"]];
    texts.into_iter().any(blank)
}

struct Stories {
    agent: &'static str,
    all: Vec<Vec<Value>>,
    /// Every line of them.
    lines: Vec<Value>,
    /// Kinds of lines that say nothing though they are as they should be.
    quiet: BTreeSet<String>,
}

impl Stories {
    /// A driver of `agent`, by the transcripts of `source`.
    fn read(agent: &'static str, source: &str) -> Result<Self> {
        let mut stories = Self { agent, all: Vec::new(), lines: Vec::new(), quiet: BTreeSet::new() };
        for story in STORIES {
            let text = std::fs::read_to_string(record::file(source, story)?)?;
            stories.take(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)?;
        }
        Ok(stories)
    }

    fn take(&mut self, story: Vec<Value>) -> Result<()> {
        let mut play = Play::new(self.agent, Approvals::Full)?;
        for step in &story {
            let line = &step["heard"];
            let said = play.step(step)?;
            if !line.is_null() {
                self.lines.push(line.clone());
                if said == 0 {
                    self.quiet.insert(kind(line));
                }
            }
        }
        self.all.push(story);
        Ok(())
    }

    fn fuzz(&self) -> Result<()> {
        let seed =
            std::env::var("ATOLL_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand::random);
        let mut shown = std::io::stderr().lock();
        drop(std::io::Write::write_all(&mut shown, format!("{}: ATOLL_TEST_SEED={seed}\n", self.agent).as_bytes()));
        drop(shown);
        let mut rng = StdRng::seed_from_u64(seed);
        let scale = std::env::var("ATOLL_TEST_SCALE").ok().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.1);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
        let count = (LINES as f64 * scale).ceil() as usize;
        let mut left: Vec<&Value> = Vec::new();
        let mut play = Play::new(self.agent, Approvals::Full)?;
        for number in 0..count {
            if left.is_empty() || rng.random_range(0..200) == 0 {
                left = self.all[rng.random_range(0..self.all.len())].iter().rev().collect();
                play = Play::new(self.agent, Approvals::Full)?;
            }
            for _ in 0..rng.random_range(0..2) {
                if let Some(step) = left.pop() {
                    play.step(step)?;
                }
            }
            let line = fuzzed(&mut rng, &self.lines);
            if !line.trim_ascii().is_empty() {
                self.one(&mut play, &line).with_context(|| {
                    let shown = String::from_utf8_lossy(&line[..line.len().min(2_000)]).into_owned();
                    format!("{} {seed}: line {number}: {shown}", self.agent)
                })?;
            }
        }
        Ok(())
    }

    fn one(&self, play: &mut Play, line: &[u8]) -> Result<()> {
        let driver = &mut play.driver;
        let said = driver.line(line);
        // Not all that is well-formed can be read: it may be nested too deeply.
        let is_object = serde_json::from_slice::<&RawValue>(line).is_ok_and(|raw| raw.get().starts_with('{'));
        let parsed = serde_json::from_slice::<Value>(line).ok().filter(Value::is_object);
        match &parsed {
            None if is_object => {}
            None => ensure!(matches!(said[..], [Said::Unparsed { .. }]), "nonsense was taken for {said:?}"),
            Some(parsed) if said.is_empty() => {
                let kind = kind(parsed);
                // Whoever goes on with a conversation is told all of it again.
                let is_again = play.is_resumed && parsed["params"]["update"].is_object();
                let may_be = is_again || self.quiet.contains(&kind) || says_nothing(parsed);
                ensure!(may_be, "`{kind}` was dropped without a word");
            }
            Some(_) => {}
        }
        for said in said {
            match said {
                Said::Unparsed { reason } => {
                    let told = Event::unparsed(line, line.len(), &reason, Timestamp::from_micros(0));
                    let told = told.context("it can't be told that it was not understood")?;
                    ensure!(told.data.get().len() < 64 << 10, "the excerpt is too long");
                }
                Said::Asks(ask) => drop(driver.answer(&ask.id, Answer::Deny { reason: "no".to_owned() })),
                Said::ToolRan { tool_use_id } => drop(driver.tool_seen(&tool_use_id)),
                _ => {}
            }
        }
        Ok(())
    }
}

#[test]
fn claude() -> Result<()> {
    Stories::read("claude", "claude")?.fuzz()
}

#[test]
fn codex() -> Result<()> {
    Stories::read("codex", "codex")?.fuzz()
}

#[test]
fn gemini() -> Result<()> {
    Stories::read("gemini", "gemini")?.fuzz()
}

#[test]
fn acp() -> Result<()> {
    Stories::read("acp", "gemini")?.fuzz()
}

#[test]
fn opencode() -> Result<()> {
    Stories::read("opencode", "opencode")?.fuzz()
}

#[test]
fn demo() -> Result<()> {
    let id = atoll_core::id::MessageId::from_uuid(uuid::Uuid::from_u128(1));
    let tool = json!({"tool": "Bash", "tool_use_id": "t1", "input": {"command": "ls"}});
    let lines = [
        json!({"event": "agent.started", "data": {"agent": "demo"}}),
        json!({"receipt": {"id": id, "how": "new_turn"}}),
        json!({"event": "agent.message", "data": {"text": "hello"}}),
        json!({"event": "agent.tool_use", "data": tool}),
        json!({"event": "agent.tool_completed", "data": {"tool_use_id": "t1", "output": "a"}}),
        json!({"event": "agent.completed", "data": {"stop_reason": "end_turn"}}),
        json!({"idle": {}}),
    ];
    let mut stories = Stories { agent: "demo", all: Vec::new(), lines: Vec::new(), quiet: BTreeSet::new() };
    stories.take(lines.into_iter().map(|line| json!({ "heard": line })).collect())?;
    assert!(stories.quiet.is_empty(), "{:?}", stories.quiet);
    stories.fuzz()
}

#[test]
fn every_driver_is_here() {
    let here = ["acp", "claude", "codex", "demo", "gemini", "opencode"];
    assert_eq!(driver::NAMES, here);
}
