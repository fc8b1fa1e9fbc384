//! `atoll messages`: lists the messages of a session.

use crate::arguments::parse_word;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::output::Output;
use crate::pages::{PAGE_SIZE, collect_all};
use crate::references::{Target, TargetRef};
use crate::render::{table, text, time};
use atoll_api::{Message, MessageListQuery};
use atoll_core::message::{MessageState, MessageType};
use atoll_core::time::Timestamp;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll messages ses_…
  atoll messages sbx_… --state queued --json")]
pub struct Messages {
    /// Sandbox or session: id, end of the id, name, branch or `last`
    id: TargetRef,
    /// Filter by state: queued, leased, acknowledged, cancelled, undeliverable or delivered_unconfirmed
    #[arg(long, value_parser = parse_word::<MessageState>)]
    state: Option<MessageState>,
    #[command(flatten)]
    connect: Connect,
}

pub async fn run(messages: &Messages, output: &Output) -> Result {
    let client = ConnectedClient::find(&messages.connect)?;
    let messages = all_messages(&client, messages.id.resolve(&client).await?, messages.state).await?;
    let now = time::now();
    let heads = ["#", "ID", "STATE", "HOW", "DELIVERY", "AGE", "TEXT"];
    table::print_list(output, &messages, &heads, |message| table_row(message, now))
}

/// All messages of a sandbox or a session.
pub async fn all_messages(
    client: &ConnectedClient,
    target: Target,
    state: Option<MessageState>,
) -> Result<Vec<Message>> {
    collect_all(async |cursor| {
        let query = MessageListQuery { state, limit: Some(PAGE_SIZE), cursor };
        match target {
            Target::Sandbox(id) => client.list_messages(id, &query).await,
            Target::Session(id) => client.list_session_messages(id, &query).await,
        }
    })
    .await
}

fn table_row(message: &Message, now: Timestamp) -> Vec<table::Cell> {
    let delivery = match message.message_type {
        MessageType::UserMessage => message.delivery.as_str(),
        other => other.as_str(),
    };
    let how = message.how.map(|how| how.as_str()).or(message.reason.as_deref()).unwrap_or("-");
    vec![
        table::cell(message.position.to_string()),
        table::cell(message.id.to_string()),
        table::state_cell(message.state.as_str()),
        table::cell(how),
        table::cell(delivery),
        table::cell(time::format_age(message.created_at, now)),
        table::cell(text::escape_clipped(&message.content, 200)),
    ]
}
