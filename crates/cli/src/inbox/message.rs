//! `atoll message`: edits, cancels or moves a queued message.

use crate::arguments::{parse_word, text_or_stdin};
use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::output::Output;
use crate::references::{Target, TargetRef};
use atoll_api::{ChangeMessage, Message as ApiMessage};
use atoll_core::id::MessageId;
use atoll_core::message::Delivery;

#[derive(Debug, clap::Args)]
pub struct MessageArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Edit a queued message
    #[command(
        after_help = "Examples:\n  atoll message edit ses_… msg_… \"use the other parser\"\n  atoll message edit ses_… msg_… --delivery queue"
    )]
    Edit {
        /// Sandbox or session of the message
        id: TargetRef,
        /// Message id (msg_…)
        message: MessageId,
        /// New text, or `-` for stdin
        #[arg(required_unless_present = "delivery")]
        text: Option<String>,
        /// Delivery: steer (during the turn) or queue (after it)
        #[arg(long, value_parser = parse_word::<Delivery>)]
        delivery: Option<Delivery>,
    },
    /// Cancel a queued message
    #[command(after_help = "Examples:\n  atoll message cancel ses_… msg_…")]
    Cancel {
        /// Sandbox or session of the message
        id: TargetRef,
        /// Message id (msg_…)
        message: MessageId,
    },
    /// Move a queued message before another one
    #[command(after_help = "Examples:\n  atoll message move ses_… msg_… --before msg_…")]
    Move {
        /// Sandbox or session of the message
        id: TargetRef,
        /// Message id (msg_…)
        message: MessageId,
        /// Queued message to move it before
        #[arg(long, value_name = "MESSAGE")]
        before: MessageId,
    },
}

pub async fn run(message: &MessageArgs, output: &Output) -> Result {
    let client = ConnectedClient::find(&message.connect)?;
    let changed = match &message.command {
        Command::Edit { id, message, text, delivery } => {
            let content = match text {
                Some(text) => Some(text_or_stdin(text).await?),
                None => None,
            };
            let change = ChangeMessage { content, delivery: *delivery, before: None };
            change_message(&client, id.resolve(&client).await?, *message, &change).await?
        }
        Command::Cancel { id, message } => match id.resolve(&client).await? {
            Target::Sandbox(id) => client.cancel_message(id, *message).await?,
            Target::Session(id) => client.cancel_session_message(id, *message).await?,
        },
        Command::Move { id, message, before } => {
            let change = ChangeMessage { before: Some(*before), ..ChangeMessage::default() };
            change_message(&client, id.resolve(&client).await?, *message, &change).await?
        }
    };
    output.print_result(&changed, || format!("{} is {} at position {}", changed.id, changed.state, changed.position))
}

async fn change_message(
    client: &ConnectedClient,
    target: Target,
    message: MessageId,
    change: &ChangeMessage,
) -> Result<ApiMessage> {
    Ok(match target {
        Target::Sandbox(id) => client.change_message(id, message, change).await?,
        Target::Session(id) => client.change_session_message(id, message, change).await?,
    })
}
