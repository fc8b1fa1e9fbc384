//! `atoll sandbox results`.

use super::stop::describe_sandbox;
use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::render::text;
use crate::spinner::Spinner;
use atoll_api::ExportedResult;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox results sbx_…

The results become a branch of the sandbox's repository. A sandbox that completes exports them itself;
this command exports those of a failed sandbox. A running sandbox commits its current work to the session's
branch between two tool calls, and continues.")]
pub struct Results {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
}

pub async fn run(results: &Results, client: &ConnectedClient, output: &Output) -> Result {
    let id = results.id.resolve(client).await?;
    let progress = Spinner::start(output, "exporting the results");
    let exported = client.export_results(id).await?;
    drop(progress);
    output.print_result(&exported, || {
        let results: Vec<_> = exported.taken.iter().map(describe_result).collect();
        let results =
            if results.is_empty() { "there were no results to export".to_owned() } else { results.join(", ") };
        format!("{}; {results}", describe_sandbox(&exported.sandbox))
    })
}

fn describe_result(result: &ExportedResult) -> String {
    let ExportedResult::Branch { branch, commit, repo } = result;
    let commit: String = commit.chars().take(8).collect();
    let repo = repo.as_ref().map(|repo| format!(" in {repo}")).unwrap_or_default();
    text::escape_line(&format!("the results are on branch {branch} ({commit}){repo}"))
}
