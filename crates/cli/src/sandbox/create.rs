//! `atoll sandbox new`.

use super::readiness::{require_created, wait_until_created};
use crate::arguments::{parse_word, text_or_stdin};
use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::short_reference;
use crate::render::text;
use crate::setting_flags::{PlacementFlags, SettingFlags};
use crate::worker_command::{self, SavedWorkerToken};
use atoll_api::{NewSandbox, Sandbox};
use atoll_core::sandbox::EndPolicy;
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox new \"fix the flaky test\" --agent demo --name flaky
  atoll sandbox new --agent demo --end keep --label team=web
  atoll sandbox new --provider external --title \"CI run 7\"      start the worker yourself
  atoll sandbox new --session ses_… \"go on\"
  atoll sandbox new - < prompt.md

The command waits until the sandbox runs. With the provider `external`, you start the worker: the command
writes the worker's token to a private file and prints the command line that starts the worker.")]
pub struct New {
    /// Prompt, or `-` for stdin; without it, the agent waits
    prompt: Option<String>,
    /// End of the sandbox: when_done or keep [default: when_done with a prompt, otherwise keep]
    #[arg(long, value_name = "WHEN", value_parser = parse_word::<EndPolicy>)]
    end: Option<EndPolicy>,
    /// Return at once; do not wait until the sandbox runs
    #[arg(long)]
    detach: bool,
    /// New file for the worker's token [default: worker-ID.token in the data directory]
    #[arg(long, value_name = "FILE")]
    token_file_out: Option<PathBuf>,
    #[command(flatten)]
    placement: PlacementFlags,
    #[command(flatten)]
    settings: SettingFlags,
}

impl New {
    async fn request(&self, prompt: Option<String>, client: &ConnectedClient) -> Result<NewSandbox> {
        let repository = self.placement.default_repository(&self.settings, client);
        let mut request = NewSandbox { prompt, end: self.end, ..self.settings.to_request_in(repository.as_deref())? };
        self.placement.add_to_request(&mut request, client).await?;
        Ok(request)
    }
}

pub async fn run(new: &New, client: &ConnectedClient, output: &Output) -> Result {
    worker_command::require_new_file(new.token_file_out.as_deref())?;
    let prompt = match &new.prompt {
        Some(text) => Some(text_or_stdin(text).await?),
        None => None,
    };
    let mut sandbox = client.create_sandbox(&new.request(prompt, client).await?).await?;
    if !new.detach && sandbox.worker.is_none() {
        sandbox = wait_until_created(sandbox.id, client, output).await?;
        require_created(&sandbox)?;
    }
    print_created(sandbox, new.token_file_out.as_deref(), client, output)
}

/// A new sandbox, with the saved token of an external worker in place of the token.
#[derive(Debug, Serialize)]
pub struct CreatedSandbox {
    #[serde(flatten)]
    pub sandbox: Sandbox,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<SavedWorkerToken>,
}

impl CreatedSandbox {
    /// Saves the token of an external worker.
    pub fn save(mut sandbox: Sandbox, out: Option<&Path>, client: &ConnectedClient) -> Result<Self> {
        let start = sandbox.worker.take();
        let save = |start| worker_command::save_worker_token(client, sandbox.id, &start, out);
        let worker = start.map(save).transpose()?;
        Ok(Self { sandbox, worker })
    }
}

/// The repository and the commit that a sandbox starts from.
pub fn describe_repository(sandbox: &Sandbox) -> Option<String> {
    let repo = sandbox.settings.repo.as_ref()?;
    let place = repo.path.as_ref().or(repo.url.as_ref())?;
    let commit: String = repo.base.as_deref().unwrap_or_default().chars().take(8).collect();
    let at = if commit.is_empty() { String::new() } else { format!(" at {commit}") };
    Some(text::escape_line(&format!("repository {place}{at}")))
}

pub fn print_created(sandbox: Sandbox, out: Option<&Path>, client: &ConnectedClient, output: &Output) -> Result {
    let created = CreatedSandbox::save(sandbox, out, client)?;
    if output.json {
        return output.print_response(&created);
    }
    let Sandbox { id, state, session_id, .. } = &created.sandbox;
    output.print_line(&format!("{id} is {state} in session {session_id}"))?;
    if let Some(repo) = describe_repository(&created.sandbox) {
        output.print_line(&repo)?;
    }
    let short = short_reference(&created.sandbox);
    match &created.worker {
        Some(worker) => worker.print(output),
        None => output.print_line(&format!("follow it with: atoll logs {short} --follow")),
    }
}
