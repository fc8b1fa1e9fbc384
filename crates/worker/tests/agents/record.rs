//! What an agent said, kept as a transcript that is the same wherever it was recorded: without paths, names and times
//! of the machine. `ATOLL_TEST_RECORD=1` writes the transcripts of the stories that run; `golden` plays them.

use anyhow::{Context, Result};
use atoll_core::id::MessageId;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A number this large is a time.
const TIMES: f64 = 1_600_000_000.0;
/// Names of fields that hold a time or how long something took.
const TIMED: &[&str] = &["duration", "Ms", "_ms", "time", "Time", "elapsed", "start", "end", "created", "updated"];
/// What names begin with that an agent makes up anew each time.
const NAMED: &[&str] = &["ses_", "msg_", "prt_", "evt_", "per_", "que_", "call_", "toolu_", "pty_", "req_"];

/// What an agent tells of everything that it could do: long, its maker's own words, and of no interest here.
const LONG: &[&str] = &["commands", "agents", "skills", "slash_commands", "models", "availableCommands", "account"];
/// Paths whose end is made up anew each time.
const MADE_UP: &[&str] = &["/place/home/.codex/sessions/", "/tmp/cc-socks/"];

/// The directory of the transcripts.
pub fn transcripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/transcripts")
}

/// The version of an agent's program that these tests are made for.
pub fn version(agent: &str) -> Result<String> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/agents/package.json");
    let package: Value = serde_json::from_slice(&std::fs::read(package)?)?;
    let name = match agent {
        "claude" => "@anthropic-ai/claude-code-linux-x64",
        "codex" => "@openai/codex-linux-x64",
        "gemini" => "@google/gemini-cli",
        _ => "opencode-linux-x64",
    };
    let version = package["dependencies"][name].as_str().context("the version is pinned")?;
    let version = version.rsplit('@').next().unwrap_or(version);
    Ok(version.trim_end_matches("-linux-x64").to_owned())
}

pub fn file(agent: &str, story: &str) -> Result<PathBuf> {
    Ok(transcripts().join(format!("{agent}-{}", version(agent)?)).join(format!("{story}.jsonl")))
}

pub struct Recorder {
    file: PathBuf,
    place: PathBuf,
    steps: Vec<Value>,
    names: BTreeMap<String, String>,
}

impl Recorder {
    pub fn wanted(agent: &str, test: &str, place: &Path) -> Result<Option<Self>> {
        if std::env::var_os("ATOLL_TEST_RECORD").is_none() {
            return Ok(None);
        }
        let story = test.strip_prefix(&format!("{agent}_")).unwrap_or(test);
        let file = file(agent, story)?;
        Ok(Some(Self { file, place: place.canonicalize()?, steps: Vec::new(), names: BTreeMap::new() }))
    }

    pub fn step(&mut self, step: Value) {
        self.steps.push(step);
    }

    pub fn heard(&mut self, line: &[u8]) {
        let line: Value =
            serde_json::from_slice(line).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(line).into_owned()));
        self.steps.push(json!({ "heard": line }));
    }

    pub fn told(&mut self, id: MessageId, text: &str, interrupt: bool, in_turn: bool) {
        for name in [id.to_string(), id.uuid().to_string()] {
            self.names.insert(name.clone(), name);
        }
        self.steps
            .push(json!({ "told": { "id": id.uuid(), "text": text, "interrupt": interrupt, "in_turn": in_turn } }));
    }

    pub fn write(mut self) -> Result<()> {
        let steps = std::mem::take(&mut self.steps);
        let mut text = String::new();
        for step in steps {
            text.push_str(&self.scrubbed(step, "").to_string());
            text.push('\n');
        }
        std::fs::create_dir_all(self.file.parent().context("a directory")?)?;
        std::fs::write(&self.file, text)?;
        Ok(())
    }

    fn scrubbed(&mut self, value: Value, field: &str) -> Value {
        match value {
            Value::Array(_) if LONG.contains(&field) => json!([]),
            Value::Object(_) if LONG.contains(&field) => json!({}),
            Value::String(text) => self.words(&text).into(),
            Value::Array(all) => all.into_iter().map(|one| self.scrubbed(one, field)).collect(),
            Value::Object(all) => {
                let one = |(name, value): (String, Value)| {
                    let value = self.scrubbed(value, &name);
                    (self.words(&name), value)
                };
                Value::Object(all.into_iter().map(one).collect())
            }
            Value::Number(number) => {
                let is_time = number.as_f64().is_some_and(|number| number > TIMES);
                let is_time = is_time || TIMED.iter().any(|word| field.contains(word));
                if is_time { 0.into() } else { Value::Number(number) }
            }
            other @ (Value::Null | Value::Bool(_)) => other,
        }
    }

    fn words(&mut self, text: &str) -> String {
        let mut text = text.replace(&*self.place.to_string_lossy(), "/place");
        text = text.replace(self.place.to_string_lossy().trim_start_matches('/'), "place");
        // Some make a name of the path that they work in.
        let dashed = self.place.to_string_lossy().replace(['/', '.'], "-");
        text = text.replace(&dashed, "-place");
        if let Some(beginning) = MADE_UP.iter().find(|beginning| text.starts_with(**beginning)) {
            return format!("{beginning}file");
        }
        let mut written = String::new();
        let is_of_a_name = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
        for part in text.split_inclusive(|letter| !is_of_a_name(letter)) {
            let name = part.trim_end_matches(|letter| !is_of_a_name(letter));
            let after = &part[name.len()..];
            if written.ends_with("127.0.0.1:") && name.parse::<u16>().is_ok() {
                written.push('1');
            } else {
                written.push_str(&self.name(name));
            }
            written.push_str(after);
        }
        written
    }

    fn name(&mut self, name: &str) -> String {
        let number = self.names.len();
        let is_uuid = name.len() == 36 && name.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
        let is_day = name.len() > 11 && name.starts_with("20") && name.as_bytes()[10] == b'T';
        let prefix = NAMED.iter().find(|prefix| {
            name.starts_with(**prefix) && name.len() > 15 && name.contains(|letter: char| letter.is_ascii_digit())
        });
        let new = match prefix {
            _ if is_day => return "2026-01-01T00".to_owned(),
            _ if is_uuid => format!("00000000-0000-4000-9000-{number:012}"),
            Some(prefix) => format!("{prefix}{number:012}"),
            None => return name.to_owned(),
        };
        self.names.entry(name.to_owned()).or_insert(new).clone()
    }
}
