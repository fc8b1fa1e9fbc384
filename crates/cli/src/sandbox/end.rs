//! `atoll sandbox stop`, `rm` and `results`.

use crate::client::Client;
use crate::failure::Result;
use crate::output::Output;
use crate::render::text;
use atoll_core::id::SandboxId;
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox stop sbx_…
  atoll sandbox stop sbx_… --discard        end it at once, whatever it has")]
pub struct Stop {
    id: SandboxId,
    /// Do not take the results out
    #[arg(long)]
    discard: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox rm sbx_…
  atoll sandbox rm sbx_… --force            also if its results are lost by it")]
pub struct Remove {
    id: SandboxId,
    /// Also when results are not out yet: they are lost
    #[arg(long)]
    force: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox results sbx_…

With a repository the work becomes a branch of it, whatever state the sandbox is in.")]
pub struct Results {
    id: SandboxId,
}

pub async fn stop(stop: &Stop, client: &Client, output: &Output) -> Result {
    let results = if stop.discard { "discard" } else { "take" };
    let row = client.post(&format!("/sandboxes/{}/stop", stop.id), &json!({ "results": results })).await?;
    tell(&row, "", output)
}

pub async fn remove(remove: &Remove, client: &Client, output: &Output) -> Result {
    let query = [("force", remove.force.to_string())];
    let row = client.delete(&format!("/sandboxes/{}", remove.id), &query).await?;
    tell(&row, "; it is removed at its provider, its log stays", output)
}

pub async fn results(results: &Results, client: &Client, output: &Output) -> Result {
    let answer = client.post(&format!("/sandboxes/{}/results", results.id), &json!({})).await?;
    if output.json {
        return output.object(&answer);
    }
    let taken: Vec<_> = answer["taken"].as_array().into_iter().flatten().map(of_taken).collect();
    let said = if taken.is_empty() { "nothing was left to take out".to_owned() } else { taken.join(", ") };
    tell(&answer["sandbox"], &format!("; {said}"), output)
}

/// What came out, and where it is.
fn of_taken(taken: &Value) -> String {
    let said = |field: &str| text::inline(taken[field].as_str().unwrap_or("?"));
    match taken["kind"].as_str() {
        Some("branch") => {
            let commit: String = said("commit").chars().take(8).collect();
            let repo = taken["repo"].as_str().map(|repo| format!(" in {}", text::inline(repo))).unwrap_or_default();
            format!("the work is on branch {} ({commit}){repo}", said("branch"))
        }
        _ => text::inline(&taken.to_string()),
    }
}

fn tell(row: &Value, more: &str, output: &Output) -> Result {
    if output.json {
        return output.object(row);
    }
    let said = |field: &str| text::inline(row[field].as_str().unwrap_or_default());
    let outcome = row["outcome"].as_str().map(|outcome| format!(" ({})", text::inline(outcome))).unwrap_or_default();
    output.line(&format!("{} is {}{outcome}{more}", said("id"), said("state")))
}
