//! `atoll send`: say something to an agent, and if wanted wait until it has it.

use crate::arguments::{Target, text_or_stdin};
use crate::client::follow::{Follow, Heard};
use crate::client::{Client, Connect};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::text;
use crate::worker_start;
use atoll_core::id::SandboxId;
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll send sbx_… \"use the new parser\"
  atoll send ses_… \"and now the tests\" --queue --wait
  atoll send sbx_… \"stop that\" --interrupt
  git diff | atoll send sbx_… -

With --wait the exit code is 0 when the agent has it, 1 when it could not be delivered or nobody can say.")]
pub struct Send {
    /// A sandbox (sbx_…) or a session (ses_…); a session without a live sandbox gets a new one
    id: Target,
    #[command(flatten)]
    message: Message,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
pub struct Message {
    /// What to say; `-` reads it from the standard input
    text: String,
    /// Wait for the end of the agent's turn instead of reaching it at once
    #[arg(long)]
    queue: bool,
    /// Interrupt what the agent is doing
    #[arg(long, conflicts_with = "queue")]
    interrupt: bool,
    /// Wait until the agent has it, and say how
    #[arg(long)]
    wait: bool,
}

pub async fn run(send: &Send, output: &Output) -> Result {
    let client = Client::find(&send.connect)?;
    to(send.id, &send.message, &client, output).await
}

pub async fn to(target: Target, message: &Message, client: &Client, output: &Output) -> Result {
    let body = json!({
        "content": text_or_stdin(&message.text).await?,
        "type": if message.interrupt { "interrupt" } else { "user_message" },
        "delivery": if message.queue { "queue" } else { "steer" },
    });
    // Before it is sent: whatever becomes of it stands after this place.
    let before = if message.wait { place(target, client).await? } else { None };
    let mut sent = client.post(&format!("{}/messages", target.path()), &body).await?;
    let made: Option<SandboxId> = sent["sandbox"]["id"].as_str().and_then(|id| id.parse().ok());
    if let (Some(id), Some(worker)) = (made, sent.pointer_mut("/sandbox/worker")) {
        worker_start::keep(client, id, worker, None)?;
    }
    tell_sent(&sent, output)?;
    if !message.wait {
        return Ok(());
    }
    output.flush()?;
    let (sandbox, since) = made.map(|id| (id, 0)).or(before).ok_or_else(|| {
        Failure::work("not_delivered", "the session has no sandbox that could take the message")
            .next(format!("It stays queued: `atoll messages {target}` shows it."))
    })?;
    let ended = until_known(&sent, (sandbox, since), client, output).await?;
    verdict(target, &ended, output)
}

/// The sandbox that will hear it, and the end of its log.
async fn place(target: Target, client: &Client) -> Result<Option<(SandboxId, i64)>> {
    let sandbox = match target {
        Target::Sandbox(id) => id,
        Target::Session(_) => {
            let row = client.get(&target.path(), &[]).await?;
            match row["sandbox_id"].as_str().and_then(|id| id.parse().ok()) {
                Some(id) => id,
                None => return Ok(None),
            }
        }
    };
    let row = client.get(&format!("/sandboxes/{sandbox}"), &[]).await?;
    Ok(Some((sandbox, row["last_seq"].as_i64().unwrap_or(0))))
}

fn tell_sent(sent: &Value, output: &Output) -> Result {
    if output.json {
        return output.object(sent);
    }
    let id = text::inline(sent["id"].as_str().unwrap_or_default());
    output.line(&format!("{id} is {}", text::inline(sent["state"].as_str().unwrap_or("queued"))))?;
    let Some(sandbox) = sent.get("sandbox") else { return Ok(()) };
    output.line(&format!(
        "the session got a new sandbox: {}",
        text::inline(sandbox["id"].as_str().unwrap_or_default())
    ))?;
    sandbox.get("worker").map_or(Ok(()), |worker| worker_start::tell(worker, output))
}

/// The message when its fate is known, or when its sandbox has ended without one.
async fn until_known(
    sent: &Value,
    (sandbox, since): (SandboxId, i64),
    client: &Client,
    output: &Output,
) -> Result<Value> {
    let types = ["message.*", "sandbox.completed", "sandbox.failed"].map(str::to_owned);
    let mut follow = Follow::new(client, sandbox, &types, since);
    let mut lost = false;
    loop {
        match follow.next().await? {
            Heard::Event(event) => {
                let own = event.data["message_id"] == sent["id"];
                let over = matches!(event.event_type.as_str(), "message.queued" | "message.edited");
                let ended = event.event_type.starts_with("sandbox.");
                if (own && !over) || ended {
                    return current(sent, client).await;
                }
            }
            Heard::Truncated { .. } => {}
            Heard::Lost(why) => {
                if !std::mem::replace(&mut lost, true) {
                    output.note(&format!("{why}; trying again"));
                }
            }
        }
    }
}

/// The message as it stands now.
async fn current(sent: &Value, client: &Client) -> Result<Value> {
    let path = format!("/sessions/{}/messages", sent["session_id"].as_str().unwrap_or_default());
    let (rows, _) = client.list(&path, &[], None).await?;
    let found = rows.into_iter().find(|row| row["id"] == sent["id"]);
    found.ok_or_else(|| client.not_atoll("the message is not in its session's list"))
}

fn verdict(target: Target, message: &Value, output: &Output) -> Result {
    let said = |field: &str| text::inline(message[field].as_str().unwrap_or_default());
    let (id, state) = (said("id"), said("state"));
    if output.json {
        output.object(message)?;
    }
    if state == "acknowledged" {
        if output.json {
            return Ok(());
        }
        let turn = message["turn"].as_i64().map(|turn| format!(", turn {turn}")).unwrap_or_default();
        return output.line(&format!("{id} reached the agent: {}{turn}", said("how")));
    }
    let reason = message["reason"].as_str().map(|reason| format!(" ({})", text::inline(reason))).unwrap_or_default();
    let (detail, next) = match state.as_str() {
        "delivered_unconfirmed" => (
            format!("{id} was handed over, but nobody confirms that the agent has it{reason}"),
            format!("`atoll logs {target}` shows what the agent did; send it again only if it doesn't know."),
        ),
        "queued" | "leased" => (
            format!("{id} was not delivered: the sandbox has ended; it waits in the session"),
            format!("`atoll session resume {}` gives the session a new sandbox.", said("session_id")),
        ),
        _ => {
            (format!("{id} was not delivered: it is {state}{reason}"), format!("`atoll messages {target}` lists them."))
        }
    };
    Err(Failure::work("not_delivered", detail).next(next))
}
