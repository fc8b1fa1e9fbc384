//! The steps of a script and the parser of script files.
//!
//! A file is YAML (so JSON too): a list of steps, or `scripts:` with several named ones. `docs/model-script.md`
//! describes each step.

use crate::step_forms::{CutForm, ExpectForm, FailForm, PlanItemForm};
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

/// All scripts of a file; there is at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct Scripts(Vec<Script>);

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// A prompt selects it with `#script:NAME`.
    pub name: String,
    /// Base of relative paths for tools that need absolute ones; defaults to the agent's reported directory.
    #[serde(default)]
    pub cwd: Option<String>,
    pub steps: Vec<ScriptStep>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScriptStep {
    Say(String),
    Slow(SlowStep),
    Think(String),
    Write(WriteStep),
    Edit(EditStep),
    Run(String),
    Plan(Vec<PlanItem>),
    Ask(AskStep),
    Use(UseStep),
    /// Several calls in one answer.
    Parallel(Vec<ScriptStep>),
    Expect(ExpectStep),
    Fail(FailStep),
    Cut(CutStep),
    /// Seconds before the first byte of the answer.
    Delay(f64),
    Usage(TokenUsage),
    /// Ends the turn; the next prompt continues after it.
    End,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteStep {
    pub file: String,
    pub content: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditStep {
    pub file: String,
    pub old: String,
    pub new: String,
}

/// Calls a tool by the agent's name for it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UseStep {
    pub tool: String,
    #[serde(default)]
    pub input: Value,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskStep {
    pub question: String,
    #[serde(default)]
    pub options: Vec<String>,
}

/// Text that arrives in pieces, with a pause before each.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowStep {
    pub pieces: Vec<String>,
    /// Seconds.
    pub pause: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "PlanItemForm")]
pub struct PlanItem {
    pub step: String,
    pub status: PlanStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanStatus {
    #[default]
    Pending,
    InProgress,
    Completed,
}

impl PlanStatus {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
        }
    }
}

/// Text that the request must contain outside the model's own output.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "ExpectForm")]
pub struct ExpectStep {
    pub text: String,
    /// Consider only text after the model's last answer.
    pub only_new: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "FailForm")]
pub struct FailStep {
    pub status: u16,
    /// The header `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
    /// The error's type and message, in the API's form …
    pub kind: Option<String>,
    pub message: Option<String>,
    /// … or the literal body.
    pub body: Option<Value>,
    pub times: FailureCount,
}

/// Cuts the stream after this many events.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "CutForm")]
pub struct CutStep {
    pub after_events: usize,
    pub times: FailureCount,
}

/// The number of failures per session before the step succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCount {
    Count(u32),
    Always,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TokenUsage {
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
}

/// Reasons why a file is not a valid script.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    #[error("not valid YAML: {0}")]
    Yaml(String),
    #[error("{0}")]
    InvalidShape(String),
    #[error("the file has no script: write a list of steps, or `scripts:` with a list of {{name, steps}}")]
    Empty,
    #[error("two scripts have the name `{0}`")]
    DuplicateName(String),
    #[error("`{0}` is not a valid script name: use letters, digits, `-`, `_` and `.`")]
    InvalidName(String),
    #[error("script `{script}`, step {step}: {detail}")]
    InvalidStep { script: String, step: usize, detail: String },
}

/// The longest allowed pause.
const MAX_PAUSE_SECONDS: f64 = 3600.0;

impl Scripts {
    /// Parses a file's text.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        let value = atoll_config::parse_yaml(text).map_err(ScriptError::Yaml)?;
        match value {
            Value::Array(steps) => {
                Self::new(vec![Script { name: "main".into(), cwd: None, steps: parse_steps("main", steps)? }])
            }
            Value::Object(mut file) => {
                let scripts = file.remove("scripts").ok_or(ScriptError::Empty)?;
                if let Some(unknown) = file.keys().next() {
                    return Err(ScriptError::InvalidShape(format!("unknown key `{unknown}` beside `scripts:`")));
                }
                let Value::Array(scripts) = scripts else { return Err(ScriptError::Empty) };
                Self::new(scripts.into_iter().map(parse_script).collect::<Result<_, _>>()?)
            }
            _ => Err(ScriptError::Empty),
        }
    }

    /// Creates scripts in code; validates them like those of a file.
    pub fn new(scripts: Vec<Script>) -> Result<Self, ScriptError> {
        if scripts.is_empty() {
            return Err(ScriptError::Empty);
        }
        for (index, script) in scripts.iter().enumerate() {
            if script.name.is_empty() || !script.name.chars().all(is_name_character) {
                return Err(ScriptError::InvalidName(script.name.clone()));
            }
            if scripts[..index].iter().any(|earlier| earlier.name == script.name) {
                return Err(ScriptError::DuplicateName(script.name.clone()));
            }
            for (index, step) in script.steps.iter().enumerate() {
                step.validate().map_err(|detail| ScriptError::InvalidStep {
                    script: script.name.clone(),
                    step: index + 1,
                    detail,
                })?;
            }
        }
        Ok(Self(scripts))
    }

    #[cfg(test)]
    pub(crate) const fn new_unchecked(scripts: Vec<Script>) -> Self {
        Self(scripts)
    }

    pub(crate) fn first(&self) -> Option<&Script> {
        self.0.first()
    }

    pub(crate) fn find_script(&self, name: &str) -> Option<&Script> {
        self.0.iter().find(|script| script.name == name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|script| script.name.as_str())
    }
}

/// True if the character may be in a script's name.
pub(crate) fn is_name_character(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.')
}

fn parse_script(value: Value) -> Result<Script, ScriptError> {
    let Value::Object(mut fields) = value else {
        return Err(ScriptError::InvalidShape("each of `scripts` is a map with `name` and `steps`".into()));
    };
    let Some(Value::String(name)) = fields.remove("name") else {
        return Err(ScriptError::InvalidShape("each of `scripts` needs a `name`".into()));
    };
    let Some(Value::Array(steps)) = fields.remove("steps") else {
        return Err(ScriptError::InvalidShape(format!("script `{name}` needs a list of `steps`")));
    };
    let cwd = match fields.remove("cwd") {
        None | Some(Value::Null) => None,
        Some(Value::String(cwd)) => Some(cwd),
        Some(_) => return Err(ScriptError::InvalidShape(format!("`cwd` of script `{name}` is not a path"))),
    };
    if let Some(unknown) = fields.keys().next() {
        return Err(ScriptError::InvalidShape(format!(
            "script `{name}`: unknown key `{unknown}`; expected name, cwd or steps"
        )));
    }
    Ok(Script { steps: parse_steps(&name, steps)?, name, cwd })
}

fn parse_steps(script: &str, steps: Vec<Value>) -> Result<Vec<ScriptStep>, ScriptError> {
    let steps = steps.into_iter().enumerate().map(|(index, step)| {
        serde_json::from_value(step).map_err(|error| ScriptError::InvalidStep {
            script: script.to_owned(),
            step: index + 1,
            detail: error.to_string(),
        })
    });
    steps.collect()
}

impl ScriptStep {
    /// True if the step calls a tool.
    pub(crate) const fn is_call(&self) -> bool {
        match self {
            Self::Write(_)
            | Self::Edit(_)
            | Self::Run(_)
            | Self::Plan(_)
            | Self::Ask(_)
            | Self::Use(_)
            | Self::Parallel(_) => true,
            Self::Say(_)
            | Self::Slow(_)
            | Self::Think(_)
            | Self::Expect(_)
            | Self::Fail(_)
            | Self::Cut(_)
            | Self::Delay(_)
            | Self::Usage(_)
            | Self::End => false,
        }
    }

    fn validate(&self) -> Result<(), String> {
        match self {
            Self::Delay(seconds) => check_pause(*seconds),
            Self::Slow(slow) => check_pause(slow.pause),
            Self::Fail(fail) if !(400..600).contains(&fail.status) => {
                Err(format!("{} is not an error status: use 400 to 599", fail.status))
            }
            Self::Parallel(calls) if calls.is_empty() => Err("`parallel` needs at least one call".into()),
            Self::Plan(items) if items.is_empty() => Err("`plan` needs at least one item".into()),
            Self::Parallel(calls) => {
                match calls.iter().find(|step| !step.is_call() || matches!(step, Self::Parallel(_))) {
                    Some(_) => Err("`parallel` takes only write, edit, run, plan, ask and use".into()),
                    None => calls.iter().try_for_each(Self::validate),
                }
            }
            _ => Ok(()),
        }
    }
}

fn check_pause(seconds: f64) -> Result<(), String> {
    if (0.0..=MAX_PAUSE_SECONDS).contains(&seconds) {
        Ok(())
    } else {
        Err(format!("{seconds} is not between 0 and {MAX_PAUSE_SECONDS}"))
    }
}

/// Converts validated seconds; invalid values become zero.
pub(crate) fn pause_duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
#[path = "script_tests.rs"]
mod tests;
