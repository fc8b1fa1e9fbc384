//! `atoll sandbox stop`.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use atoll_api::{Sandbox, StopSandbox};
use atoll_core::id::SandboxId;
use atoll_core::sandbox::ResultsAction;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox stop sbx_…
  atoll sandbox stop sbx_… --discard        stop without exporting results")]
pub struct Stop {
    /// Sandbox id (sbx_…)
    id: SandboxId,
    /// Discard the results
    #[arg(long)]
    discard: bool,
}

pub async fn run(stop: &Stop, client: &ConnectedClient, output: &Output) -> Result {
    let results = if stop.discard { ResultsAction::Discard } else { ResultsAction::Take };
    let sandbox = client.stop_sandbox(stop.id, &StopSandbox { results }).await?;
    output.print_result(&sandbox, || describe_sandbox(&sandbox))
}

/// One line with the state and the outcome.
pub fn describe_sandbox(sandbox: &Sandbox) -> String {
    let outcome = sandbox.outcome.map(|outcome| format!(" ({outcome})")).unwrap_or_default();
    format!("{} is {}{outcome}", sandbox.id, sandbox.state)
}
