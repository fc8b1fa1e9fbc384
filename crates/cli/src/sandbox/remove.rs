//! `atoll sandbox rm`.

use super::stop::describe_sandbox;
use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use atoll_api::RemoveSandboxQuery;
use atoll_core::id::SandboxId;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox rm sbx_…
  atoll sandbox rm sbx_… --force            lose results that are not exported")]
pub struct Remove {
    /// Sandbox id (sbx_…)
    id: SandboxId,
    /// Remove it even if its results are not exported
    #[arg(long)]
    force: bool,
}

pub async fn run(remove: &Remove, client: &ConnectedClient, output: &Output) -> Result {
    let query = RemoveSandboxQuery { force: remove.force };
    let sandbox = client.remove_sandbox(remove.id, &query).await?;
    output.print_result(&sandbox, || format!("{}; its provider removes it, its log stays", describe_sandbox(&sandbox)))
}
