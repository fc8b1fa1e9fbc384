//! `atoll sandbox ls`.

use crate::arguments::word;
use crate::client::Client;
use crate::failure::Result;
use crate::output::Output;
use crate::render::{table, time};
use atoll_core::id::{ProjectId, SessionId};
use atoll_core::sandbox::{Activity, ProviderKind, SandboxState};
use serde_json::Value;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox ls
  atoll sandbox ls --state running --label team=web
  atoll sandbox ls --all --json | jq -r .id")]
pub struct List {
    /// Only in this state: pending, creating, running, completing, completed or failed
    #[arg(long, value_parser = word::<SandboxState>)]
    state: Option<SandboxState>,
    /// Only with this activity, for example working or waiting_message
    #[arg(long, value_parser = word::<Activity>)]
    activity: Option<Activity>,
    /// Only with this label, whatever its value or with this one
    #[arg(long, value_name = "KEY[=VALUE]")]
    label: Option<String>,
    /// Only of this project
    #[arg(long, value_name = "ID")]
    project: Option<ProjectId>,
    /// Only of this session
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// Only of this provider
    #[arg(long, value_parser = word::<ProviderKind>)]
    provider: Option<ProviderKind>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// All of them
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub async fn run(list: &List, client: &Client, output: &Output) -> Result {
    let filters = [
        ("state", list.state.map(|word| word.to_string())),
        ("activity", list.activity.map(|word| word.to_string())),
        ("label", list.label.clone()),
        ("project", list.project.map(|id| id.to_string())),
        ("session", list.session.map(|id| id.to_string())),
        ("provider", list.provider.map(|word| word.to_string())),
    ];
    let query: Vec<_> = filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let (rows, more) = client.list("/sandboxes", &query, (!list.all).then_some(list.limit)).await?;
    if output.json {
        return rows.iter().try_for_each(|row| output.object(row));
    }
    let now = time::now();
    let cells: Vec<_> = rows.iter().map(|row| cells(row, now)).collect();
    table::print(output, &["ID", "STATE", "ACTIVITY", "PROVIDER", "AGENT", "AGE", "LABELS"], &cells)?;
    if more {
        output.note("there are more: --all lists them");
    }
    Ok(())
}

fn cells(row: &Value, now: atoll_core::time::Timestamp) -> Vec<table::Cell> {
    let said = |field: &str| row[field].as_str().unwrap_or_default();
    let activity = match row["outcome"].as_str() {
        Some(outcome) => outcome.to_owned(),
        None => said("activity").to_owned(),
    };
    let labels = row["labels"].as_object().into_iter().flatten();
    let labels = labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
    vec![
        table::cell(said("id")),
        table::state(said("state")),
        table::state(&activity),
        table::cell(said("provider")),
        table::cell(row["agent"].as_str().unwrap_or("-")),
        table::cell(time::age(said("created_at"), now)),
        table::cell(labels.collect::<Vec<_>>().join(" ")),
    ]
}
