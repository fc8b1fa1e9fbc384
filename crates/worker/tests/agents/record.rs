//! Records agent output as a transcript without paths, ids and times of the machine. `ATOLL_TEST_RECORD=1` writes the
//! transcripts of the scenarios that run; `golden` replays them.

use anyhow::{Context, Result};
use atoll_core::id::MessageId;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Larger numbers are times.
const MIN_TIMESTAMP: f64 = 1_600_000_000.0;
/// Parts of names of fields that contain a time or a duration.
const TIME_FIELDS: &[&str] =
    &["duration", "Ms", "_ms", "time", "Time", "elapsed", "start", "end", "created", "updated"];
/// Prefixes of ids that agents generate.
const GENERATED_ID_PREFIXES: &[&str] =
    &["ses_", "msg_", "prt_", "evt_", "per_", "que_", "call_", "toolu_", "pty_", "req_"];

/// Long fields that drivers ignore.
const OMITTED_FIELDS: &[&str] =
    &["commands", "agents", "skills", "slash_commands", "models", "availableCommands", "account"];
/// Prefixes of generated paths.
const GENERATED_PATHS: &[&str] = &["/place/home/.codex/sessions/", "/tmp/cc-socks/"];

pub fn transcripts_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/transcripts")
}

/// The pinned version of the agent's program.
pub fn pinned_version(agent: &str) -> Result<String> {
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

pub fn transcript_path(agent: &str, scenario: &str) -> Result<PathBuf> {
    Ok(transcripts_dir().join(format!("{agent}-{}", pinned_version(agent)?)).join(format!("{scenario}.jsonl")))
}

pub struct Recorder {
    file: PathBuf,
    root: PathBuf,
    steps: Vec<Value>,
    stable_ids: BTreeMap<String, String>,
}

impl Recorder {
    pub fn from_env(agent: &str, test: &str, place: &Path) -> Result<Option<Self>> {
        if std::env::var_os("ATOLL_TEST_RECORD").is_none() {
            return Ok(None);
        }
        let scenario = test.strip_prefix(&format!("{agent}_")).unwrap_or(test);
        let file = transcript_path(agent, scenario)?;
        Ok(Some(Self { file, root: place.canonicalize()?, steps: Vec::new(), stable_ids: BTreeMap::new() }))
    }

    pub fn record_step(&mut self, step: Value) {
        self.steps.push(step);
    }

    pub fn record_line(&mut self, line: &[u8]) {
        let line: Value =
            serde_json::from_slice(line).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(line).into_owned()));
        self.steps.push(json!({ "line": line }));
    }

    pub fn record_message(&mut self, id: MessageId, text: &str, interrupt: bool, in_turn: bool) {
        for name in [id.to_string(), id.uuid().to_string()] {
            self.stable_ids.insert(name.clone(), name);
        }
        self.steps
            .push(json!({ "message": { "id": id.uuid(), "text": text, "interrupt": interrupt, "in_turn": in_turn } }));
    }

    pub fn write_transcript(mut self) -> Result<()> {
        let steps = std::mem::take(&mut self.steps);
        let mut text = String::new();
        for step in steps {
            text.push_str(&self.scrub_value(step, "").to_string());
            text.push('\n');
        }
        std::fs::create_dir_all(self.file.parent().context("a directory")?)?;
        std::fs::write(&self.file, text)?;
        Ok(())
    }

    fn scrub_value(&mut self, value: Value, field: &str) -> Value {
        match value {
            Value::Array(_) if OMITTED_FIELDS.contains(&field) => json!([]),
            Value::Object(_) if OMITTED_FIELDS.contains(&field) => json!({}),
            Value::String(text) => self.scrub_text(&text).into(),
            Value::Array(all) => all.into_iter().map(|one| self.scrub_value(one, field)).collect(),
            Value::Object(all) => {
                let one = |(name, value): (String, Value)| {
                    let value = self.scrub_value(value, &name);
                    (self.scrub_text(&name), value)
                };
                Value::Object(all.into_iter().map(one).collect())
            }
            Value::Number(number) => {
                let is_time = number.as_f64().is_some_and(|number| number > MIN_TIMESTAMP);
                let is_time = is_time || TIME_FIELDS.iter().any(|word| field.contains(word));
                if is_time { 0.into() } else { Value::Number(number) }
            }
            other @ (Value::Null | Value::Bool(_)) => other,
        }
    }

    fn scrub_text(&mut self, text: &str) -> String {
        let mut text = text.replace(&*self.root.to_string_lossy(), "/place");
        text = text.replace(self.root.to_string_lossy().trim_start_matches('/'), "place");
        // Some agents derive a directory name from the path.
        let dashed = self.root.to_string_lossy().replace(['/', '.'], "-");
        text = text.replace(&dashed, "-place");
        if let Some(beginning) = GENERATED_PATHS.iter().find(|beginning| text.starts_with(**beginning)) {
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
                written.push_str(&self.stable_id(name));
            }
            written.push_str(after);
        }
        written
    }

    fn stable_id(&mut self, name: &str) -> String {
        let number = self.stable_ids.len();
        let is_uuid = name.len() == 36 && name.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
        let is_day = name.len() > 11 && name.starts_with("20") && name.as_bytes()[10] == b'T';
        let prefix = GENERATED_ID_PREFIXES.iter().find(|prefix| {
            name.starts_with(**prefix) && name.len() > 15 && name.contains(|letter: char| letter.is_ascii_digit())
        });
        let new = match prefix {
            _ if is_day => return "2026-01-01T00".to_owned(),
            _ if is_uuid => format!("00000000-0000-4000-9000-{number:012}"),
            Some(prefix) => format!("{prefix}{number:012}"),
            None => return name.to_owned(),
        };
        self.stable_ids.entry(name.to_owned()).or_insert(new).clone()
    }
}
