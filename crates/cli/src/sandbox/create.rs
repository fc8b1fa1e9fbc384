//! `atoll sandbox new`.

use super::limits::LimitFlags;
use super::network::NetworkFlags;
use crate::agent_flags::AgentFlags;
use crate::arguments::{parse_pair, parse_repository, parse_word, provider_parser, text_or_stdin};
use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::worker_command::{self, SavedWorkerToken};
use atoll_api::{NewSandbox, Sandbox};
use atoll_core::id::{ProjectId, SessionId};
use atoll_core::sandbox::{EndPolicy, ProviderKind};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox new \"fix the flaky test\" --repo . --agent demo
  atoll sandbox new --agent demo --end keep --label team=web
  atoll sandbox new --provider external --title \"CI run 7\"      start the worker yourself
  atoll sandbox new --session ses_… \"go on\"
  atoll sandbox new - < prompt.md

With the provider `external`, you start the worker: the command writes the worker's token to a private
file and prints the command line that starts the worker.")]
pub struct New {
    /// Prompt, or `-` for stdin; without it, the agent waits
    prompt: Option<String>,
    /// Git repository on the server's machine
    #[arg(long, value_name = "PATH")]
    repo: Option<PathBuf>,
    /// Provider [default: the server's]
    #[arg(long, value_parser = provider_parser())]
    provider: Option<ProviderKind>,
    /// Agent to run
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Model of the agent
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Start from this image
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// Start from this snapshot
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
    /// Title of the session
    #[arg(long)]
    title: Option<String>,
    /// End of the sandbox: when_done or keep [default: when_done with a prompt, otherwise keep]
    #[arg(long, value_name = "WHEN", value_parser = parse_word::<EndPolicy>)]
    end: Option<EndPolicy>,
    /// Add a label (repeatable)
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_pair)]
    labels: Vec<(String, String)>,
    /// Set an environment variable (repeatable)
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_pair)]
    env: Vec<(String, String)>,
    /// Allow a secret, by name (repeatable)
    #[arg(long = "secret", value_name = "NAME")]
    secrets: Vec<String>,
    /// Protect a path of the workspace from changes (repeatable)
    #[arg(long = "protect", value_name = "PATH")]
    protected: Vec<String>,
    /// Project of the sandbox [default: the default project]
    #[arg(long, value_name = "ID")]
    project: Option<ProjectId>,
    /// Continue this session
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// Stop after this many seconds
    #[arg(long, alias = "timeout-s", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,
    #[command(flatten)]
    working: AgentFlags,
    #[command(flatten)]
    network: NetworkFlags,
    #[command(flatten)]
    limits: LimitFlags,
    /// New file for the worker's token [default: worker-ID.token in the data directory]
    #[arg(long, value_name = "FILE")]
    token_file_out: Option<PathBuf>,
}

impl New {
    fn request(&self, prompt: Option<String>) -> Result<NewSandbox> {
        let mut request = NewSandbox {
            prompt,
            provider: self.provider,
            agent: self.agent.clone(),
            model: self.model.clone(),
            image: self.image.clone(),
            snapshot: self.snapshot.clone(),
            title: self.title.clone(),
            end: self.end,
            labels: self.labels.iter().cloned().collect(),
            env: self.env.iter().cloned().collect(),
            secrets: (!self.secrets.is_empty()).then(|| self.secrets.clone()),
            protected: self.protected.clone(),
            project_id: self.project,
            session_id: self.session,
            timeout_s: self.timeout,
            network: self.network.settings(),
            limits: self.limits.settings(),
            repo: self.repo.as_deref().map(parse_repository).transpose()?,
            ..NewSandbox::default()
        };
        self.working.add_to_request(&mut request);
        Ok(request)
    }
}

pub async fn run(new: &New, client: &ConnectedClient, output: &Output) -> Result {
    worker_command::require_new_file(new.token_file_out.as_deref())?;
    let prompt = match &new.prompt {
        Some(text) => Some(text_or_stdin(text).await?),
        None => None,
    };
    let sandbox = client.create_sandbox(&new.request(prompt)?).await?;
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

pub fn print_created(sandbox: Sandbox, out: Option<&Path>, client: &ConnectedClient, output: &Output) -> Result {
    let created = CreatedSandbox::save(sandbox, out, client)?;
    if output.json {
        return output.print_response(&created);
    }
    let Sandbox { id, state, session_id, .. } = &created.sandbox;
    output.print_line(&format!("{id} is {state} in session {session_id}"))?;
    match &created.worker {
        Some(worker) => worker.print(output),
        None => output.print_line(&format!("follow it with: atoll logs {id} --follow")),
    }
}
