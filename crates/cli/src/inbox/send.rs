//! `atoll send`: sends a message to an agent and optionally waits for its delivery.

use super::messages::all_messages;
use crate::arguments::text_or_stdin;
use crate::connect::{Connect, ConnectedClient};
use crate::event_log::log_event::{LogEvent, reported_message};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::references::{Target, TargetRef};
use crate::render::text;
use crate::sandbox::create::CreatedSandbox;
use crate::sandbox::readiness::await_creation;
use atoll_api::{Message as ApiMessage, NewMessage, SentToSession};
use atoll_client::EventStreamItem;
use atoll_core::event::kind;
use atoll_core::id::SandboxId;
use atoll_core::message::{Delivery, MessageState, MessageType};
use serde::Serialize;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll send sbx_… \"use the new parser\"
  atoll send ses_… \"and now the tests\" --queue --wait
  atoll send sbx_… \"stop that\" --interrupt
  git diff | atoll send sbx_… -

With --wait, the exit code is 0 when the agent has the message, and 1 when its delivery failed or is
unconfirmed.")]
pub struct Send {
    /// Sandbox or session (ses_…); a session without a sandbox gets a new one
    id: TargetRef,
    #[command(flatten)]
    message: MessageOptions,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
pub struct MessageOptions {
    /// Text, or `-` for stdin
    text: String,
    /// Deliver the message after the current turn
    #[arg(long)]
    queue: bool,
    /// Interrupt the agent
    #[arg(long, conflicts_with = "queue")]
    interrupt: bool,
    /// Wait until the agent has the message
    #[arg(long)]
    wait: bool,
}

pub async fn run(send: &Send, output: &Output) -> Result {
    let client = ConnectedClient::find(&send.connect)?;
    send_message(send.id.resolve(&client).await?, &send.message, &client, output).await
}

/// A sent message, with the sandbox that the server created for it.
#[derive(Debug, Serialize)]
struct SentMessage {
    #[serde(flatten)]
    message: ApiMessage,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<CreatedSandbox>,
}

pub async fn send_message(
    target: Target,
    message: &MessageOptions,
    client: &ConnectedClient,
    output: &Output,
) -> Result {
    let new = NewMessage {
        content: text_or_stdin(&message.text).await?,
        message_type: if message.interrupt { MessageType::Interrupt } else { MessageType::UserMessage },
        delivery: if message.queue { Delivery::Queue } else { Delivery::Steer },
    };
    // The position before the message: its delivery report comes after it.
    let before = if message.wait { log_position(target, client).await? } else { None };
    let sent = match target {
        Target::Sandbox(id) => SentToSession { message: client.send_message(id, &new).await?, sandbox: None },
        Target::Session(id) => client.send_session_message(id, &new).await?,
    };
    let sandbox = sent.sandbox.map(|sandbox| CreatedSandbox::save(sandbox, None, client)).transpose()?;
    let sent = SentMessage { message: sent.message, sandbox };
    print_sent(&sent, output)?;
    output.flush()?;
    // The message is stored already; report a sandbox that cannot be created.
    if let Target::Sandbox(id) = target {
        await_creation(id, client, output).await?;
    }
    if !message.wait {
        return Ok(());
    }
    let created = sent.sandbox.as_ref().map(|created| (created.sandbox.id, 0));
    let position = created.or(before).ok_or_else(|| {
        Failure::work("not_delivered", "the session has no sandbox that could take the message")
            .with_hint(format!("The message stays queued; see `atoll messages {target}`."))
    })?;
    let message = wait_for_delivery(&sent.message, position, client, output).await?;
    print_delivery(target, &message, output)
}

/// The target's live sandbox and the last seq of its log.
async fn log_position(target: Target, client: &ConnectedClient) -> Result<Option<(SandboxId, i64)>> {
    let sandbox = match target {
        Target::Sandbox(id) => Some(id),
        Target::Session(id) => client.get_session(id).await?.sandbox_id,
    };
    let Some(id) = sandbox else { return Ok(None) };
    Ok(Some((id, client.get_sandbox(id).await?.last_seq)))
}

fn print_sent(sent: &SentMessage, output: &Output) -> Result {
    if output.json {
        return output.print_response(sent);
    }
    output.print_line(&format!("{} is {}", sent.message.id, sent.message.state))?;
    let Some(created) = &sent.sandbox else { return Ok(()) };
    output.print_line(&format!("the session has a new sandbox: {}", created.sandbox.id))?;
    created.worker.as_ref().map_or(Ok(()), |worker| worker.print(output))
}

/// Waits for the message's delivery report, or for the sandbox's end.
async fn wait_for_delivery(
    sent: &ApiMessage,
    (sandbox, since): (SandboxId, i64),
    client: &ConnectedClient,
    output: &Output,
) -> Result<ApiMessage> {
    let types = ["message.*", kind::SANDBOX_COMPLETED, kind::SANDBOX_FAILED].map(str::to_owned);
    let mut follower = client.follow_events(sandbox, &types, since);
    let mut is_lost = false;
    loop {
        match follower.next().await? {
            EventStreamItem::Event(event) => {
                let event = LogEvent::from(*event);
                if reported_message(&event.data) == Some(sent.id) || event.is_sandbox_end() {
                    return current_message(sent, client).await;
                }
            }
            EventStreamItem::Truncated { .. } => {}
            EventStreamItem::Disconnected { cause } => {
                if !std::mem::replace(&mut is_lost, true) {
                    output.print_note(&format!("{cause}; reconnecting"));
                }
            }
        }
    }
}

async fn current_message(sent: &ApiMessage, client: &ConnectedClient) -> Result<ApiMessage> {
    let messages = all_messages(client, Target::Session(sent.session_id), None).await?;
    let found = messages.into_iter().find(|message| message.id == sent.id);
    found.ok_or_else(|| Failure::setup("not_atoll", "the message is not in its session's list"))
}

fn print_delivery(target: Target, message: &ApiMessage, output: &Output) -> Result {
    let id = message.id;
    if output.json {
        output.print_response(message)?;
    }
    if message.state == MessageState::Acknowledged {
        if output.json {
            return Ok(());
        }
        let turn = message.turn.map(|turn| format!(", turn {turn}")).unwrap_or_default();
        let how = message.how.map(|how| how.as_str()).unwrap_or_default();
        return output.print_line(&format!("{id} reached the agent: {how}{turn}"));
    }
    let reason = message.reason.as_ref().map(|reason| format!(" ({})", text::escape_line(reason))).unwrap_or_default();
    let (detail, hint) = match message.state {
        MessageState::DeliveredUnconfirmed => (
            format!("{id} was delivered, but not confirmed{reason}"),
            format!("Check `atoll logs {target}` before you send it again."),
        ),
        MessageState::Queued | MessageState::Leased => (
            format!("{id} was not delivered: the sandbox has ended; the message stays queued"),
            format!("Create a new sandbox with `atoll session resume {}`.", message.session_id),
        ),
        state => (
            format!("{id} was not delivered: it is {state}{reason}"),
            format!("`atoll messages {target}` lists the messages."),
        ),
    };
    Err(Failure::work("not_delivered", detail).with_hint(hint))
}
