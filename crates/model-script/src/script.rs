//! What a script may say, and how its file is read.
//!
//! A file is YAML (so JSON too): a list of steps, or `scripts:` with several named ones. `docs/model-script.md`
//! describes each step.

use crate::forms::{CutForm, ExpectForm, FailForm, PlanItemForm};
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;

/// All scripts of a file; there is at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct Scripts(Vec<Script>);

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// A prompt chooses it by `#script:NAME`.
    pub name: String,
    /// Where relative files lie, for tools that want absolute ones; else what the agent says of itself.
    #[serde(default)]
    pub cwd: Option<String>,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    Say(String),
    Slow(Slow),
    Think(String),
    Write(Write),
    Edit(Edit),
    Run(String),
    Plan(Vec<PlanItem>),
    Ask(Ask),
    Use(Use),
    /// Several calls in one answer.
    Parallel(Vec<Step>),
    Expect(Expect),
    Fail(Fail),
    Cut(Cut),
    /// Seconds before the first byte of the answer.
    Delay(f64),
    Usage(Usage),
    /// Ends the turn; the next prompt goes on after it.
    End,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    pub file: String,
    pub content: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    pub file: String,
    pub old: String,
    pub new: String,
}

/// A tool by the name that the agent gives it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Use {
    pub tool: String,
    #[serde(default)]
    pub input: Value,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    pub question: String,
    #[serde(default)]
    pub options: Vec<String>,
}

/// Text that arrives in pieces, with a pause before each.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slow {
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

/// What the request must hold, in what it tells the model: not in the model's own words.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "ExpectForm")]
pub struct Expect {
    pub text: String,
    /// Only what came after the model's last answer counts.
    pub new: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "FailForm")]
pub struct Fail {
    pub status: u16,
    /// The header `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
    /// The error's type and sentence, in the form of the API at hand …
    pub kind: Option<String>,
    pub message: Option<String>,
    /// … or the whole body as it is.
    pub body: Option<Value>,
    pub times: Times,
}

/// The stream breaks off after so many events.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "CutForm")]
pub struct Cut {
    pub after: usize,
    pub times: Times,
}

/// How often a failure happens to one session before the step goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    Count(u32),
    Always,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Usage {
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
}

/// Why a file is no script.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("it is not YAML: {0}")]
    Yaml(String),
    #[error("{0}")]
    Shape(String),
    #[error("there is no script in it: write a list of steps, or `scripts:` with a list of {{name, steps}}")]
    Empty,
    #[error("two scripts have the name `{0}`")]
    Twice(String),
    #[error("`{0}` is no name for a script: use letters, digits, `-`, `_` and `.`")]
    Name(String),
    #[error("script `{script}`, step {step}: {detail}")]
    Step { script: String, step: usize, detail: String },
}

/// The longest pause that a script may ask for.
const LONGEST_SECONDS: f64 = 3600.0;

impl Scripts {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        let value = atoll_config::yaml_value(text).map_err(Malformed::Yaml)?;
        match value {
            Value::Array(steps) => {
                Self::new(vec![Script { name: "main".into(), cwd: None, steps: all("main", steps)? }])
            }
            Value::Object(mut file) => {
                let scripts = file.remove("scripts").ok_or(Malformed::Empty)?;
                if let Some(unknown) = file.keys().next() {
                    return Err(Malformed::Shape(format!(
                        "`{unknown}` stands beside `scripts:` and means nothing there"
                    )));
                }
                let Value::Array(scripts) = scripts else { return Err(Malformed::Empty) };
                Self::new(scripts.into_iter().map(one).collect::<Result<_, _>>()?)
            }
            _ => Err(Malformed::Empty),
        }
    }

    /// Scripts that a program has made; they are checked like those of a file.
    pub fn new(scripts: Vec<Script>) -> Result<Self, Malformed> {
        if scripts.is_empty() {
            return Err(Malformed::Empty);
        }
        for (index, script) in scripts.iter().enumerate() {
            if script.name.is_empty() || !script.name.chars().all(in_name) {
                return Err(Malformed::Name(script.name.clone()));
            }
            if scripts[..index].iter().any(|earlier| earlier.name == script.name) {
                return Err(Malformed::Twice(script.name.clone()));
            }
            for (index, step) in script.steps.iter().enumerate() {
                step.check().map_err(|detail| Malformed::Step {
                    script: script.name.clone(),
                    step: index + 1,
                    detail,
                })?;
            }
        }
        Ok(Self(scripts))
    }

    #[cfg(test)]
    pub(crate) const fn unchecked(scripts: Vec<Script>) -> Self {
        Self(scripts)
    }

    pub(crate) fn first(&self) -> Option<&Script> {
        self.0.first()
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Script> {
        self.0.iter().find(|script| script.name == name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|script| script.name.as_str())
    }
}

/// What the name of a script is made of, in the file and behind `#script:`.
pub(crate) fn in_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.')
}

fn one(value: Value) -> Result<Script, Malformed> {
    let Value::Object(mut fields) = value else {
        return Err(Malformed::Shape("each of `scripts` is a map with `name` and `steps`".into()));
    };
    let Some(Value::String(name)) = fields.remove("name") else {
        return Err(Malformed::Shape("each of `scripts` needs a `name`".into()));
    };
    let Some(Value::Array(steps)) = fields.remove("steps") else {
        return Err(Malformed::Shape(format!("script `{name}` needs a list of `steps`")));
    };
    let cwd = match fields.remove("cwd") {
        None | Some(Value::Null) => None,
        Some(Value::String(cwd)) => Some(cwd),
        Some(_) => return Err(Malformed::Shape(format!("`cwd` of script `{name}` is not a path"))),
    };
    if let Some(unknown) = fields.keys().next() {
        return Err(Malformed::Shape(format!("script `{name}` has no `{unknown}`: there are name, cwd and steps")));
    }
    Ok(Script { steps: all(&name, steps)?, name, cwd })
}

fn all(script: &str, steps: Vec<Value>) -> Result<Vec<Step>, Malformed> {
    let steps = steps.into_iter().enumerate().map(|(index, step)| {
        serde_json::from_value(step).map_err(|error| Malformed::Step {
            script: script.to_owned(),
            step: index + 1,
            detail: error.to_string(),
        })
    });
    steps.collect()
}

impl Step {
    /// Whether it asks the agent for something, which then answers.
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

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Delay(seconds) => sane(*seconds),
            Self::Slow(slow) => sane(slow.pause),
            Self::Fail(fail) if !(400..600).contains(&fail.status) => {
                Err(format!("{} is not the status of a failure: use 400 to 599", fail.status))
            }
            Self::Parallel(calls) if calls.is_empty() => Err("`parallel` needs at least one call".into()),
            Self::Plan(items) if items.is_empty() => Err("`plan` needs at least one item".into()),
            Self::Parallel(calls) => {
                match calls.iter().find(|step| !step.is_call() || matches!(step, Self::Parallel(_))) {
                    Some(_) => Err("`parallel` takes only write, edit, run, plan, ask and use".into()),
                    None => calls.iter().try_for_each(Self::check),
                }
            }
            _ => Ok(()),
        }
    }
}

fn sane(seconds: f64) -> Result<(), String> {
    if (0.0..=LONGEST_SECONDS).contains(&seconds) {
        Ok(())
    } else {
        Err(format!("{seconds} is no number of seconds between 0 and {LONGEST_SECONDS}"))
    }
}

/// Seconds that `sane` has seen; anything else is no time at all.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

#[cfg(test)]
#[path = "script_tests.rs"]
mod tests;
