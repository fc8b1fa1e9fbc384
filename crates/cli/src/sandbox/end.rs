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
  atoll sandbox results sbx_…")]
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
    let taken: Vec<_> = answer["taken"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let said = if taken.is_empty() {
        "nothing was left to take out".to_owned()
    } else {
        format!("taken: {}", taken.join(", "))
    };
    tell(&answer["sandbox"], &format!("; {}", text::inline(&said)), output)
}

fn tell(row: &Value, more: &str, output: &Output) -> Result {
    if output.json {
        return output.object(row);
    }
    let said = |field: &str| text::inline(row[field].as_str().unwrap_or_default());
    let outcome = row["outcome"].as_str().map(|outcome| format!(" ({})", text::inline(outcome))).unwrap_or_default();
    output.line(&format!("{} is {}{outcome}{more}", said("id"), said("state")))
}
