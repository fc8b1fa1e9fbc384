//! `atoll sandbox transcript`: prints the transcript.

use super::download;
use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use atoll_api::{TranscriptForm, TranscriptQuery};
use atoll_client::Method;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox transcript sbx_… > transcript.json
  atoll sandbox transcript sbx_… | jq -r '.entries[] | select(.kind == \"assistant\") | .data.text'
  atoll sandbox transcript sbx_… --native > claude.jsonl

The portable form is the same for every agent. The native form is the agent's own file, as last saved.")]
pub struct Transcript {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// Print the agent's own file
    #[arg(long)]
    native: bool,
}

pub async fn run(transcript: &Transcript, client: &ConnectedClient, output: &Output) -> Result {
    let id = transcript.id.resolve(client).await?;
    let form = if transcript.native { TranscriptForm::Native } else { TranscriptForm::Portable };
    let path = format!("/sandboxes/{id}/transcript");
    let response = client.send(client.request(Method::GET, &path, &TranscriptQuery { form })).await?;
    download::print_download(client, response, output).await
}
