//! `atoll sandbox diff`: shows the agent's changes.

use crate::connect::ConnectedClient;
use crate::event_log::log_event::LogEvent;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::render::patch::{ChangedFile, diffstat, patch_lines};
use atoll_api::events::EventData;
use atoll_api::{Diff as ApiDiff, DiffQuery, EventOrder, EventsQuery};
use atoll_core::event::kind;
use atoll_core::id::SandboxId;
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox diff sbx_…
  atoll sandbox diff sbx_… --stat
  atoll sandbox diff sbx_… --path src | git apply
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
    #[arg(long, value_name = "PATH")]
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
    match print_workspace_diff(id, diff, client, output).await {
        // The files are gone with the sandbox: the branch has its work.
        Err(failure)
            if diff.turn.is_none() && (failure.has_code("sandbox_gone") || failure.has_code("shutting_down")) =>
        {
            print_branch_diff(id, diff, client, output).await.unwrap_or(Err(failure))
        }
        done => done,
    }
}

/// Shows the difference of the exported branch, with git on this machine; `None` if it cannot.
async fn print_branch_diff(
    id: SandboxId,
    diff: &DiffArgs,
    client: &ConnectedClient,
    output: &Output,
) -> Option<Result> {
    client.address.local.as_ref().filter(|_| !output.json)?;
    let types = Some(format!("{},{}", kind::GIT_BRANCH_CREATED, kind::GIT_NOTHING_CHANGED));
    let query = EventsQuery { types, limit: Some(1), order: EventOrder::Desc, ..EventsQuery::default() };
    let newest = client.list_events(id, &query).await.ok()?.items.into_iter().next()?;
    let branch = match LogEvent::from(newest).data {
        EventData::GitBranchCreated(branch) => branch,
        EventData::GitNothingChanged(_) => {
            output.print_note("nothing changed");
            return Some(Ok(()));
        }
        _ => return None,
    };
    let repo = client.get_sandbox(id).await.ok()?.settings.repo?.path?;
    let base = diff.base.clone().unwrap_or_else(|| branch.base.clone());
    let patch = git_diff(Path::new(&repo), &base, &branch.commit, diff).await?;
    if patch.is_empty() {
        output.print_note("nothing changed");
    }
    Some(print_patch(&patch, output))
}

/// Runs git with the user's rights; agents cannot choose the arguments.
async fn git_diff(repo: &Path, base: &str, commit: &str, diff: &DiffArgs) -> Option<Vec<u8>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(repo).args(["diff", "--no-color", "--no-ext-diff", "--no-textconv"]);
    if diff.stat {
        git.arg("--stat");
    }
    git.arg("--end-of-options").arg(format!("{base}..{commit}")).arg("--").args(&diff.path);
    git.env("GIT_OPTIONAL_LOCKS", "0").env("GIT_TERMINAL_PROMPT", "0").stdin(Stdio::null());
    let done = git.output().await.ok()?;
    done.status.success().then_some(done.stdout)
}

async fn print_workspace_diff(id: SandboxId, diff: &DiffArgs, client: &ConnectedClient, output: &Output) -> Result {
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
    let files: Vec<_> = diff.files.iter().map(ChangedFile::from).collect();
    if files.is_empty() {
        output.print_note("nothing changed");
    }
    diffstat(&files).iter().try_for_each(|line| output.print_line(&line.to_ansi(output.colour)))
}
