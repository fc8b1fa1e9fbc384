//! What is asked of the server, from what stands on the command line.

use super::Run;
use crate::arguments;
use crate::failure::{Failure, Result};
use serde_json::{Map, Value};
use std::io::IsTerminal;
use std::path::Path;

/// The agent that needs neither a program nor a model.
pub const DEMO: &str = "demo";

/// What was given, looked at before anything is started for it.
pub struct Wanted {
    pub prompt: String,
    /// As the server takes it.
    repo: Option<Value>,
}

impl Wanted {
    pub fn read(run: &Run) -> Result<Self> {
        let repo = run.repo.as_deref().map(arguments::repository).transpose()?;
        Ok(Self { repo, prompt: prompt(run.prompt.as_deref())? })
    }

    /// The repository's absolute path.
    pub fn repo(&self) -> Option<&Path> {
        self.repo.as_ref()?["path"].as_str().map(Path::new)
    }
}

/// The prompt's words: the argument, or what is piped in.
fn prompt(given: Option<&str>) -> Result<String> {
    let text = match given {
        Some("-") => stdin()?,
        Some(text) => text.to_owned(),
        None if std::io::stdin().is_terminal() => {
            return Err(Failure::input("there is no prompt: what is the agent to do?")
                .next("atoll run \"say what to do\", or pipe it in: atoll run < prompt.md"));
        }
        None => stdin()?,
    };
    if text.trim().is_empty() {
        return Err(Failure::input("the prompt is empty").next("Say what the agent is to do."));
    }
    Ok(text)
}

fn stdin() -> Result<String> {
    arguments::stdin()
        .map_err(|error| Failure::input(format!("can't read the prompt from the standard input: {error}")))
}

/// The body of the request that makes the sandbox.
pub fn body(run: &Run, wanted: &Wanted, agent: Option<&str>) -> Value {
    let mut body = Map::new();
    let mut put = |field: &str, value: Option<Value>| body.extend(value.map(|value| (field.to_owned(), value)));
    put("prompt", Some(wanted.prompt.as_str().into()));
    put("agent", agent.map(Value::from));
    put("session_id", run.session.map(|id| id.to_string().into()));
    put("provider", run.provider.map(|word| word.as_str().into()));
    put("end", Some(if run.keep { "keep" } else { "when_done" }.into()));
    put("timeout_s", run.timeout.map(Value::from));
    put("network", run.network.body());
    put("limits", run.limits.body());
    put("model", run.model.clone().map(Value::from));
    put("repo", wanted.repo.clone());
    put("protected", (!run.protected.is_empty()).then(|| serde_json::json!(run.protected)));
    let mut resources = Map::new();
    resources.extend(run.memory.map(|memory| ("memory_gb".to_owned(), memory.into())));
    resources.extend(run.cpu.map(|cpu| ("cpu".to_owned(), cpu.into())));
    put("resources", (!resources.is_empty()).then_some(Value::Object(resources)));
    run.working.put(&mut body);
    Value::Object(body)
}
