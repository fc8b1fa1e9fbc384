//! `atoll sandbox diff`: shows the agent's changes.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::render::patch::{diffstat, patch_lines};
use atoll_api::{Diff as ApiDiff, DiffQuery};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox diff sbx_…
  atoll sandbox diff sbx_… --stat
  atoll sandbox diff sbx_… src | git apply
  atoll sandbox diff sbx_… --turn 2

The diff compares the workspace, including uncommitted changes, with the commit that the work started at.
Of an ended sandbox, it shows the changes on its branch. With --turn it shows the edits of one turn.")]
pub struct DiffArgs {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// Print a diffstat
    #[arg(long)]
    stat: bool,
    /// Limit the diff to this file or directory
    #[arg(value_name = "PATH")]
    path: Option<String>,
    /// Compare with this commit
    #[arg(long, value_name = "COMMIT")]
    base: Option<String>,
    /// Show the edits of this turn
    #[arg(long, value_name = "N", conflicts_with = "base")]
    turn: Option<i64>,
}

pub async fn run(diff: &DiffArgs, client: &ConnectedClient, output: &Output) -> Result {
    let id = diff.id.resolve(client).await?;
    let mut query =
        DiffQuery { base: diff.base.clone(), path: diff.path.clone(), turn: diff.turn, ..DiffQuery::default() };
    if output.json || diff.stat {
        let mut all = client.get_diff(id, &query).await?;
        while let Some(next) = all.next_cursor.take() {
            query.cursor = Some(next);
            let mut page = client.get_diff(id, &query).await?;
            all.files.append(&mut page.files);
            all.next_cursor = page.next_cursor;
        }
        return print_diffstat(&all, output);
    }
    let patch = client.get_patch(id, &query).await?;
    if patch.is_empty() {
        output.print_note("nothing changed");
    }
    print_patch(&patch, output)
}

fn print_patch(patch: &[u8], output: &Output) -> Result {
    // Escape the patch for a terminal; leave it unchanged for a pipe, so that `git apply` accepts it.
    if output.width.is_none() {
        return output.write_bytes(patch);
    }
    let lines = patch_lines(&String::from_utf8_lossy(patch));
    lines.iter().try_for_each(|line| output.print_line(&line.to_ansi(output.colour)))
}

fn print_diffstat(diff: &ApiDiff, output: &Output) -> Result {
    if output.json {
        return output.print_response(diff);
    }
    if diff.files.is_empty() {
        output.print_note("nothing changed");
    }
    diffstat(&diff.files).iter().try_for_each(|line| output.print_line(&line.to_ansi(output.colour)))
}
