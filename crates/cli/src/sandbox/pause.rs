//! `atoll sandbox pause` and `resume`.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox pause sbx_…                 freeze all processes; memory stays
  atoll sandbox resume sbx_…")]
pub struct Pause {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  atoll sandbox resume sbx_…")]
pub struct Resume {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
}

pub async fn pause_sandbox(pause: &Pause, client: &ConnectedClient, output: &Output) -> Result {
    let sandbox = client.pause_sandbox(pause.id.resolve(client).await?).await?;
    output.print_result(&sandbox, || format!("{} is paused", sandbox.id))
}

pub async fn resume_sandbox(resume: &Resume, client: &ConnectedClient, output: &Output) -> Result {
    let sandbox = client.resume_sandbox(resume.id.resolve(client).await?).await?;
    output.print_result(&sandbox, || format!("{} is resumed", sandbox.id))
}
