//! `atoll sandbox transcript`: what was said and done, to keep or to read elsewhere.

use crate::client::Client;
use crate::failure::Result;
use crate::output::Output;
use crate::render::text;
use atoll_core::id::SandboxId;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox transcript sbx_… > transcript.json
  atoll sandbox transcript sbx_… | jq -r '.entries[] | select(.kind == \"assistant\") | .data.text'
  atoll sandbox transcript sbx_… --native > claude.jsonl

The portable form is the same for every agent. The native one is the agent's own file, as it was last saved.")]
pub struct Transcript {
    id: SandboxId,
    /// The agent's own file, as it keeps it
    #[arg(long)]
    native: bool,
}

pub async fn run(transcript: &Transcript, client: &Client, output: &Output) -> Result {
    let form = if transcript.native { "native" } else { "portable" };
    let path = format!("/sandboxes/{}/transcript", transcript.id);
    let mut answer = client.stream(&path, &[("form", form.to_owned())]).await?;
    let mut left = Vec::new();
    while let Some(piece) = client.piece(&mut answer).await? {
        // To a terminal harmless, to a pipe as it is.
        if output.width.is_none() {
            output.bytes(&piece)?;
            continue;
        }
        left.extend_from_slice(&piece);
        while let Some(end) = left.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = left.drain(..=end).collect();
            output.line(&text::inline(String::from_utf8_lossy(&line).trim_end()))?;
        }
    }
    if left.is_empty() { Ok(()) } else { output.line(&text::inline(&String::from_utf8_lossy(&left))) }
}
