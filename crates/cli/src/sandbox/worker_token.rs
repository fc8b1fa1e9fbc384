//! `atoll sandbox worker-token`.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::worker_command;
use atoll_core::id::SandboxId;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox worker-token sbx_…
  atoll sandbox worker-token sbx_… --out /run/secrets/worker")]
pub struct WorkerToken {
    /// Sandbox id (sbx_…)
    id: SandboxId,
    /// New file for the token [default: worker-ID.token in the data directory]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub async fn run(token: &WorkerToken, client: &ConnectedClient, output: &Output) -> Result {
    worker_command::require_new_file(token.out.as_deref())?;
    let start = client.create_worker_token(token.id).await?;
    let saved = worker_command::save_worker_token(client, token.id, &start, token.out.as_deref())?;
    if output.json { output.print_response(&saved) } else { saved.print(output) }
}
