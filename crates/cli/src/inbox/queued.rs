//! `atoll message`: change, take back or move a message while it is queued.

use crate::arguments::{Target, text_or_stdin, word};
use crate::client::{Client, Connect};
use crate::failure::Result;
use crate::output::Output;
use crate::render::text;
use atoll_core::id::MessageId;
use atoll_core::message::Delivery;
use serde_json::json;

#[derive(Debug, clap::Args)]
pub struct Message {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Change a queued message
    #[command(
        after_help = "Examples:\n  atoll message edit ses_… msg_… \"use the other parser\"\n  atoll message edit ses_… msg_… --delivery queue"
    )]
    Edit {
        /// The sandbox or session that it was sent to
        id: Target,
        message: MessageId,
        /// The new text; `-` reads it from the standard input
        #[arg(required_unless_present = "delivery")]
        text: Option<String>,
        /// When it reaches the agent: steer (at once) or queue (after its turn)
        #[arg(long, value_parser = word::<Delivery>)]
        delivery: Option<Delivery>,
    },
    /// Take a queued message back
    #[command(after_help = "Examples:\n  atoll message cancel ses_… msg_…")]
    Cancel {
        /// The sandbox or session that it was sent to
        id: Target,
        message: MessageId,
    },
    /// Move a queued message before another one
    #[command(after_help = "Examples:\n  atoll message move ses_… msg_… --before msg_…")]
    Move {
        /// The sandbox or session that it was sent to
        id: Target,
        message: MessageId,
        /// The queued message that comes right after it then
        #[arg(long, value_name = "MESSAGE")]
        before: MessageId,
    },
}

pub async fn run(message: &Message, output: &Output) -> Result {
    let client = Client::find(&message.connect)?;
    let path = |id: &Target, message: &MessageId| format!("{}/messages/{message}", id.path());
    let row = match &message.command {
        Command::Edit { id, message, text, delivery } => {
            let mut change = serde_json::Map::new();
            if let Some(text) = text {
                change.insert("content".into(), text_or_stdin(text).await?.into());
            }
            change.extend(delivery.map(|word| ("delivery".to_owned(), word.as_str().into())));
            client.patch(&path(id, message), &change.into()).await?
        }
        Command::Cancel { id, message } => client.delete(&path(id, message), &[]).await?,
        Command::Move { id, message, before } => client.patch(&path(id, message), &json!({ "before": before })).await?,
    };
    if output.json {
        return output.object(&row);
    }
    let said = |field: &str| text::inline(row[field].as_str().unwrap_or_default());
    output.line(&format!("{} is {} at place {}", said("id"), said("state"), row["position"]))
}
