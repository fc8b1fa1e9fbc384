//! `atoll sandbox rm`.

use super::stop::{describe_sandbox, describe_target};
use crate::confirm::Confirm;
use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use atoll_api::RemoveSandboxQuery;
use atoll_core::sandbox::ResultsState;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox rm last
  atoll sandbox rm sbx_… --force            lose results that are not exported
  atoll ls --archived                       lists removed sandboxes

The log stays until retention removes it: `atoll logs` still shows it.")]
pub struct Remove {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// Remove it even if its results are not exported
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    confirm: Confirm,
}

pub async fn run(remove: &Remove, client: &ConnectedClient, output: &Output) -> Result {
    let found = remove.id.find(client).await?;
    if found.state.is_live() {
        let what = format!("ends {} and discards its results", describe_target(&found));
        remove.confirm.require(&what, output).await?;
    } else if remove.force && found.results == ResultsState::Pending {
        let what = format!("discards the results of {}, which are not exported", describe_target(&found));
        remove.confirm.require(&what, output).await?;
    }
    let query = RemoveSandboxQuery { force: remove.force };
    let sandbox = client.remove_sandbox(found.id, &query).await?;
    output.print_result(&sandbox, || format!("{}; removed from lists, its log stays", describe_sandbox(&sandbox)))
}
