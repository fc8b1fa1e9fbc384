//! `atoll sandbox snapshot`.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::spinner::Spinner;
use atoll_api::NewSnapshot;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox snapshot sbx_… with-dependencies
  atoll sandbox new \"fix it\" --snapshot with-dependencies
  atoll snapshot ls")]
pub struct TakeSnapshotArgs {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// Name, 1 to 32 of a-z, 0-9, `.`, `_` and `-`
    name: String,
}

pub async fn run(snapshot: &TakeSnapshotArgs, client: &ConnectedClient, output: &Output) -> Result {
    let id = snapshot.id.resolve(client).await?;
    let progress = Spinner::start(output, "creating the snapshot");
    let name = &snapshot.name;
    let request = NewSnapshot { name: name.clone() };
    let created = client.create_snapshot(id, &request).await?;
    drop(progress);
    output.print_result(&created, || format!("created {name}; use it with `atoll sandbox new --snapshot {name}`"))
}
