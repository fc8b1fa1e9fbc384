//! `atoll sandbox show`.

use crate::client::Client;
use crate::failure::Result;
use crate::output::Output;
use crate::render::fields::Fields;
use crate::render::time;
use atoll_core::id::SandboxId;
use serde_json::Value;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox show sbx_…
  atoll sandbox show sbx_… --json | jq .settings")]
pub struct Show {
    id: SandboxId,
}

pub async fn run(show: &Show, client: &Client, output: &Output) -> Result {
    let row = client.get(&format!("/sandboxes/{}", show.id), &[]).await?;
    if output.json { output.object(&row) } else { print(&row, output) }
}

pub fn print(row: &Value, output: &Output) -> Result {
    let said = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let reason = &row["reason"];
    let reason = match (reason["detail"].as_str(), reason["code"].as_str()) {
        (Some(detail), Some(code)) => format!("{detail} ({code})").into(),
        _ => reason.clone(),
    };
    let cost = |part: &str| row["cost"][part].as_f64().unwrap_or(0.0);
    Fields::new()
        .put("id", said("id"))
        .put("state", said("state"))
        .put("activity", said("activity"))
        .maybe("limit", &row["limit_paused"])
        .maybe("outcome", &row["outcome"])
        .maybe("reason", &reason)
        .put("results", said("results"))
        .put("end", said("end"))
        .put("session", said("session_id"))
        .put("project", said("project_id"))
        .put("provider", said("provider"))
        .maybe("provider id", &row["provider_id"])
        .maybe("agent", &row["agent"])
        .maybe("model", &row["settings"]["model"])
        .maybe("labels", &row["labels"])
        .maybe("secrets", &listed(&row["settings"]["secrets"]))
        .maybe("exposed secrets", &listed(&row["exposed_secrets"]))
        .maybe("turn", &row["turn"])
        .put("events", format!("{} to {}", row["first_seq"], row["last_seq"]))
        .put("cost", format!("${:.4} model, ${:.4} compute", cost("model"), cost("compute")))
        .maybe("made by", &row["created_by"])
        .put("made", time::exact(&said("created_at")))
        .put("state since", time::exact(&said("state_since")))
        .maybe("last heartbeat", &shortened(&row["last_heartbeat"]))
        .maybe("ended", &shortened(&row["ended_at"]))
        .print(output)
}

/// Nothing where nothing is named.
fn listed(names: &Value) -> Value {
    let names: Vec<&str> = names.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if names.is_empty() { Value::Null } else { names.join(", ").into() }
}

fn shortened(at: &Value) -> Value {
    at.as_str().map_or(Value::Null, |at| time::exact(at).into())
}
