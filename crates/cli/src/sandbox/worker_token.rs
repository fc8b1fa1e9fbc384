//! `atoll sandbox worker-token`.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::worker_command;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox worker-token sbx_…
  atoll sandbox worker-token sbx_… --out /run/secrets/worker")]
pub struct WorkerToken {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// New file for the token [default: worker-ID.token in the data directory]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub async fn run(token: &WorkerToken, client: &ConnectedClient, output: &Output) -> Result {
    let id = token.id.resolve(client).await?;
    worker_command::require_new_file(token.out.as_deref())?;
    let start = client.create_worker_token(id).await?;
    let saved = worker_command::save_worker_token(client, id, &start, token.out.as_deref())?;
    if output.json { output.print_response(&saved) } else { saved.print(output) }
}
