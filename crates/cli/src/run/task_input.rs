//! Translates the arguments of `atoll run` into a request for a sandbox.

use super::Run;
use crate::arguments;
use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use atoll_api::NewSandbox;
use atoll_core::sandbox::EndPolicy;
use std::io::IsTerminal;

/// The built-in agent, which needs no model.
pub const DEMO_AGENT: &str = "demo";

/// The prompt of a run.
pub struct TaskInput {
    /// Absent if the ticket is the task.
    pub prompt: Option<String>,
}

impl TaskInput {
    /// Reads the prompt, and rejects an unusable repository before a server starts.
    pub fn read(run: &Run) -> Result<Self> {
        run.settings.repo_dir().map(arguments::parse_repository).transpose()?;
        if run.prompt.is_none() && run.placement.ticket.is_some() {
            return Ok(Self { prompt: None });
        }
        Ok(Self { prompt: Some(read_prompt(run.prompt.as_deref())?) })
    }
}

/// Reads the prompt from the argument or from piped stdin.
fn read_prompt(argument: Option<&str>) -> Result<String> {
    let text = match argument {
        Some("-") => prompt_from_stdin()?,
        Some(text) => text.to_owned(),
        None if std::io::stdin().is_terminal() => {
            return Err(Failure::input("there is no prompt")
                .with_hint("Run atoll run \"PROMPT\", or pipe it in: atoll run < prompt.md"));
        }
        None => prompt_from_stdin()?,
    };
    if text.trim().is_empty() {
        return Err(Failure::input("the prompt is empty").with_hint("Pass the agent's task as the prompt."));
    }
    Ok(text)
}

fn prompt_from_stdin() -> Result<String> {
    arguments::read_stdin().map_err(|error| Failure::input(format!("cannot read the prompt from stdin: {error}")))
}

/// The request for the sandbox of a run.
pub async fn sandbox_request(
    run: &Run,
    input: &TaskInput,
    agent: Option<&str>,
    client: &ConnectedClient,
) -> Result<NewSandbox> {
    let repository = run.placement.default_repository(&run.settings, client);
    let mut request = NewSandbox {
        prompt: input.prompt.clone(),
        agent: agent.map(str::to_owned),
        end: Some(if run.keep { EndPolicy::Keep } else { EndPolicy::WhenDone }),
        ..run.settings.to_request_in(repository.as_deref())?
    };
    run.placement.add_to_request(&mut request, client).await?;
    Ok(request)
}
