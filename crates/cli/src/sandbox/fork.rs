//! `atoll sandbox fork`.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::spinner::Spinner;
use atoll_api::ForkSandbox;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox fork sbx_…
  atoll sandbox fork sbx_… \"try it with a hash map instead\" --title 'hash map'

The fork starts with the current files and the conversation of the sandbox. During a turn of the agent
the server refuses (sandbox_busy). The processes of the agent in the sandbox are killed.")]
pub struct Fork {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// Prompt for the fork's agent; without it, the agent waits
    prompt: Option<String>,
    /// Title of the new session
    #[arg(long)]
    title: Option<String>,
}

pub async fn run(fork: &Fork, client: &ConnectedClient, output: &Output) -> Result {
    let id = fork.id.resolve(client).await?;
    let progress = Spinner::start(output, "forking the sandbox");
    let request = ForkSandbox { title: fork.title.clone(), prompt: fork.prompt.clone(), end: None };
    let sandbox = client.fork_sandbox(id, &request).await?;
    drop(progress);
    output.print_result(&sandbox, || format!("{} is a fork of {}", sandbox.id, id))
}
