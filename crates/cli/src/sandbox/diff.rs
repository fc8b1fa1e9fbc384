//! `atoll sandbox diff`: what the agent has changed.

use crate::client::Client;
use crate::failure::Result;
use crate::output::Output;
use crate::render::patch::{self, Changed};
use atoll_core::id::SandboxId;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox diff sbx_…
  atoll sandbox diff sbx_… --stat
  atoll sandbox diff sbx_… --path src | git apply

It compares the workspace, committed or not, with the commit that the work began at.")]
pub struct Diff {
    id: SandboxId,
    /// Only which files, and how much of each
    #[arg(long)]
    stat: bool,
    /// Only this file or directory
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    /// Compare with another commit
    #[arg(long, value_name = "COMMIT")]
    base: Option<String>,
}

pub async fn run(diff: &Diff, client: &Client, output: &Output) -> Result {
    let path = format!("/sandboxes/{}/diff", diff.id);
    let given = [("path", &diff.path), ("base", &diff.base)];
    let query: Vec<_> = given.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
    if output.json {
        return output.object(&client.get(&path, &query).await?);
    }
    if diff.stat {
        let files = Changed::list(&client.get(&path, &query).await?["files"]);
        if files.is_empty() {
            output.note("nothing has changed");
        }
        return patch::summary(&files).iter().try_for_each(|line| output.line(&line.painted(output.colour)));
    }
    let patch = client.get_as("text/x-diff", &path, &query).await?;
    if patch.is_empty() {
        output.note("nothing has changed");
    }
    // To a terminal harmless, to a pipe as it is, so that it can be applied.
    if output.width.is_none() {
        return output.bytes(&patch);
    }
    let lines = patch::lines(&String::from_utf8_lossy(&patch));
    lines.iter().try_for_each(|line| output.line(&line.painted(output.colour)))
}
