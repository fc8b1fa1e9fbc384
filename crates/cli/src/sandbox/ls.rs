//! `atoll sandbox ls`.

use crate::arguments::parse_word;
use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::pages::collect_up_to;
use crate::references::SessionRef;
use crate::render::{table, time};
use atoll_api::{Sandbox, SandboxListQuery};
use atoll_core::id::ProjectId;
use atoll_core::sandbox::{Activity, ProviderKind, SandboxState};
use atoll_core::time::Timestamp;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox ls
  atoll sandbox ls --state running --label team=web
  atoll sandbox ls --all --json | jq -r .id")]
pub struct List {
    /// Filter by state: pending, creating, running, completing, completed or failed
    #[arg(long, value_parser = parse_word::<SandboxState>)]
    state: Option<SandboxState>,
    /// Filter by activity, such as working or waiting_message
    #[arg(long, value_parser = parse_word::<Activity>)]
    activity: Option<Activity>,
    /// Filter by label
    #[arg(long, value_name = "KEY[=VALUE]")]
    label: Option<String>,
    /// Filter by project
    #[arg(long, value_name = "ID")]
    project: Option<ProjectId>,
    /// Filter by session
    #[arg(long, value_name = "SESSION")]
    session: Option<SessionRef>,
    /// Filter by provider
    #[arg(long, value_parser = parse_word::<ProviderKind>)]
    provider: Option<ProviderKind>,
    /// Include removed sandboxes
    #[arg(long)]
    archived: bool,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// List all rows
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub async fn run(list: &List, client: &ConnectedClient, output: &Output) -> Result {
    let session = match &list.session {
        Some(session) => Some(session.resolve(client).await?),
        None => None,
    };
    let query = SandboxListQuery {
        state: list.state,
        activity: list.activity,
        provider: list.provider,
        project: list.project,
        session,
        label: list.label.clone(),
        archived: list.archived,
        ..SandboxListQuery::default()
    };
    let load = async |limit, cursor| {
        client.list_sandboxes(&SandboxListQuery { limit: Some(limit), cursor, ..query.clone() }).await
    };
    let (sandboxes, has_more) = collect_up_to((!list.all).then_some(list.limit), load).await?;
    let now = time::now();
    let heads = ["ID", "STATE", "ACTIVITY", "PROVIDER", "AGENT", "AGE", "LABELS"];
    table::print_list(output, &sandboxes, &heads, |sandbox| table_row(sandbox, now))?;
    if has_more && !output.json {
        output.print_note("more rows exist; list them with --all");
    }
    Ok(())
}

fn table_row(sandbox: &Sandbox, now: Timestamp) -> Vec<table::Cell> {
    let activity = sandbox.outcome.map_or_else(|| sandbox.activity.as_str(), |outcome| outcome.as_str());
    let labels: Vec<_> = sandbox.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    vec![
        table::cell(sandbox.id.to_string()),
        table::state_cell(sandbox.state.as_str()),
        table::state_cell(activity),
        table::cell(sandbox.provider.as_str()),
        table::cell(sandbox.agent.as_deref().unwrap_or("-")),
        table::cell(time::format_age(sandbox.created_at, now)),
        table::cell(labels.join(" ")),
    ]
}
