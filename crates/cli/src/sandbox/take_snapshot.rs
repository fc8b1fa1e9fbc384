//! `atoll sandbox snapshot`.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use atoll_api::NewSnapshot;
use atoll_core::id::SandboxId;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox snapshot sbx_… with-dependencies
  atoll sandbox new \"fix it\" --snapshot with-dependencies
  atoll snapshot ls")]
pub struct TakeSnapshotArgs {
    /// Sandbox id (sbx_…)
    id: SandboxId,
    /// Name, 1 to 32 of a-z, 0-9, `.`, `_` and `-`
    name: String,
}

pub async fn run(snapshot: &TakeSnapshotArgs, client: &ConnectedClient, output: &Output) -> Result {
    let name = &snapshot.name;
    let request = NewSnapshot { name: name.clone() };
    let created = client.create_snapshot(snapshot.id, &request).await?;
    output.print_result(&created, || format!("created {name}; use it with `atoll sandbox new --snapshot {name}`"))
}
