//! `atoll messages`: what was said to an agent, and what became of it.

use crate::arguments::{Target, word};
use crate::client::{Client, Connect};
use crate::failure::Result;
use crate::output::Output;
use crate::render::{table, text, time};
use atoll_core::message::MessageState;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll messages ses_…
  atoll messages sbx_… --state queued --json")]
pub struct Messages {
    /// A sandbox (sbx_…) or a session (ses_…)
    id: Target,
    /// Only in this state: queued, leased, acknowledged, cancelled, undeliverable or delivered_unconfirmed
    #[arg(long, value_parser = word::<MessageState>)]
    state: Option<MessageState>,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(messages: &Messages, output: &Output) -> Result {
    let client = Client::find(&messages.connect)?;
    let query: Vec<_> = messages.state.map(|state| ("state", state.to_string())).into_iter().collect();
    let (rows, _) = client.list(&format!("{}/messages", messages.id.path()), &query, None).await?;
    if output.json {
        return rows.iter().try_for_each(|row| output.object(row));
    }
    let now = time::now();
    let cells = rows.iter().map(|row| {
        let said = |field: &str| row[field].as_str().unwrap_or_default();
        let manner = if said("type") == "user_message" { said("delivery") } else { said("type") };
        vec![
            table::cell(row["position"].to_string()),
            table::cell(said("id")),
            table::state(said("state")),
            table::cell(row["how"].as_str().or(row["reason"].as_str()).unwrap_or("-")),
            table::cell(manner),
            table::cell(time::age(said("created_at"), now)),
            table::cell(text::clipped(said("content"), 200)),
        ]
    });
    table::print(output, &["#", "ID", "STATE", "HOW", "DELIVERY", "AGE", "TEXT"], &cells.collect::<Vec<_>>())
}
