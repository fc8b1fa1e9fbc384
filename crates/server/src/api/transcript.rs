//! `/sandboxes/{id}/transcript`: what was said and done, in a form of Atoll's own, or the agent's own file.

use super::blobs::content;
use crate::auth::{Caller, access};
use crate::extract::{Id, Params};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::event::{Event, TypePattern, kind};
use atoll_core::id::{MessageId, SandboxId, SessionId};
use atoll_core::principal::Action;
use atoll_store::blobs::{self, Stored};
use atoll_store::events::{self, Filter, Order};
use atoll_store::sandboxes::{self, Sandbox};
use atoll_store::{Tx, messages, sessions};
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Of the portable form; a change that a reader of it could stumble over makes it another number.
pub const VERSION: u32 = 1;
/// Events that are looked at for one piece of the answer.
const PIECE: usize = 500;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Atoll's own, the same for every agent; drawn from the log.
    #[default]
    Portable,
    /// The agent's own file, as it was last saved.
    Native,
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TranscriptQuery {
    #[serde(default)]
    #[param(inline)]
    form: Form,
}

/// What was said and done in a sandbox.
///
/// `portable` is a JSON document: `format`, `version`, what it is of, and `entries`, oldest first. `native` is the file
/// that the agent itself keeps, where it keeps one.
#[utoipa::path(get, path = "/sandboxes/{id}/transcript", tag = "events",
    params(("id" = SandboxId, Path), TranscriptQuery),
    responses((status = 200, body = Object)))]
pub async fn get(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(query): Params<TranscriptQuery>,
) -> Result<Response> {
    match query.form {
        Form::Portable => portable(app, caller, id).await,
        Form::Native => native(&app, caller, id).await,
    }
}

async fn portable(app: Arc<App>, caller: Caller, id: SandboxId) -> Result<Response> {
    let found = app.read(move |tx| {
        Box::pin(async move {
            let session = access::sandbox(tx, &caller, id, Action::See).await?;
            let row = sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
            let session = sessions::get(tx, session).await?.ok_or_else(|| Problem::not_found("session"))?;
            Ok((row, session))
        })
    });
    let (row, session) = found.await?;
    let head = json!({
        "format": "atoll-transcript", "version": VERSION, "sandbox_id": id, "session_id": session.id,
        "title": session.title, "agent": row.agent, "native_id": session.native_id,
        "from_the_beginning": row.first_seq == 1, "created_at": row.created_at, "made_at": app.clock.now(),
    });
    // The list is written piece by piece behind the rest.
    let mut head = head.to_string();
    head.truncate(head.len() - 1);
    head.push_str(",\"entries\":[");
    let state = Some(Piece { app, row, at: 0, head: Some(head), is_first: true });
    let pieces = stream::try_unfold(state, |state| async move {
        let Some(state) = state else { return Ok::<_, std::io::Error>(None) };
        let (text, rest) = state.next().await.map_err(|problem| std::io::Error::other(format!("{problem:?}")))?;
        Ok(Some((text, rest)))
    });
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from_stream(pieces)).into_response())
}

/// How far the answer is written.
struct Piece {
    app: Arc<App>,
    row: Sandbox,
    at: i64,
    head: Option<String>,
    is_first: bool,
}

impl Piece {
    async fn next(mut self) -> Result<(String, Option<Self>)> {
        let (sandbox, at) = ((self.row.id, self.row.session_id), self.at);
        let read = self.app.read(move |tx| Box::pin(async move { entries(tx, sandbox, at).await }));
        let (entries, looked_at) = read.await?;
        let mut text = self.head.take().unwrap_or_default();
        for entry in entries {
            if !std::mem::take(&mut self.is_first) {
                text.push(',');
            }
            text.push('\n');
            text.push_str(&entry.to_string());
        }
        match looked_at {
            Some(at) => {
                self.at = at;
                Ok((text, Some(self)))
            }
            None => {
                text.push_str("\n]}\n");
                Ok((text, None))
            }
        }
    }
}

async fn entries(tx: &mut dyn Tx, sandbox: (SandboxId, SessionId), after: i64) -> Result<(Vec<Value>, Option<i64>)> {
    let filter = Filter { without_noise: true, ..Filter::default() };
    let page = events::page(tx, sandbox, &filter, Order::OldestFirst, after, PIECE).await?;
    let mut entries = Vec::new();
    for event in page.events {
        let Some(word) = word_for(event.event_type.as_str()) else { continue };
        let data = if word == "user" { words(tx, sandbox.1, &event).await? } else { json!(event.data) };
        let mut entry = json!({ "seq": event.seq, "at": event.at, "kind": word, "data": data });
        if let Some(turn) = event.turn {
            entry["turn"] = turn.into();
        }
        entries.push(entry);
    }
    Ok((entries, page.looked_at))
}

/// What an event is in a transcript, if it belongs there.
fn word_for(event_type: &str) -> Option<&'static str> {
    Some(match event_type {
        kind::MESSAGE_ACKNOWLEDGED | kind::MESSAGE_UNCONFIRMED => "user",
        kind::AGENT_STARTED => "turn_begins",
        kind::AGENT_COMPLETED => "turn_ends",
        kind::AGENT_INTERRUPTED => "interrupted",
        kind::AGENT_FAILED => "failed",
        kind::AGENT_MESSAGE => "assistant",
        kind::AGENT_THINKING => "thinking",
        kind::AGENT_TOOL_USE => "tool_use",
        kind::AGENT_TOOL_COMPLETED => "tool_result",
        kind::AGENT_FILE_EDITED => "file_edited",
        kind::AGENT_PLAN => "plan",
        kind::AGENT_SYSTEM_MESSAGE => "system",
        kind::AGENT_SUBAGENT_INVOKED => "subagent_begins",
        kind::AGENT_SUBAGENT_COMPLETED => "subagent_ends",
        kind::APPROVAL_RESOLVED => "approval",
        _ => return None,
    })
}

#[derive(Deserialize)]
struct Named {
    message_id: MessageId,
}

/// What was said to the agent: whole, where the log has its beginning only.
async fn words(tx: &mut dyn Tx, session: SessionId, event: &Event) -> Result<Value> {
    let Ok(Named { message_id }) = serde_json::from_str(event.data.get()) else { return Ok(json!(event.data)) };
    let Some(message) = messages::get(tx, session, message_id).await? else { return Ok(json!(event.data)) };
    Ok(json!({
        "message_id": message.id, "type": message.message_type, "content": message.content, "sender": message.sender,
        "how": message.standing.how, "confirmed": event.event_type.as_str() == kind::MESSAGE_ACKNOWLEDGED,
    }))
}

async fn native(app: &App, caller: Caller, id: SandboxId) -> Result<Response> {
    let found = app.read(move |tx| {
        Box::pin(async move {
            let session = access::sandbox(tx, &caller, id, Action::See).await?;
            let row = sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
            let stored = newest(tx, id, session).await?.ok_or_else(|| {
                let detail = "the agent's own transcript was not kept: it keeps none that Atoll knows, or has not \
                              worked yet, or it was too long ago; the portable form is there all the same";
                Problem::new(Code::NotFound, detail)
            })?;
            Ok((row, stored))
        })
    });
    let (row, stored) = found.await?;
    let form = match row.agent.as_deref() {
        Some("opencode") => "application/json",
        Some(_) | None => "application/x-ndjson",
    };
    let headers = [
        (header::CONTENT_TYPE, form.to_owned()),
        (header::CONTENT_LENGTH, stored.size.to_string()),
        (header::CONTENT_DISPOSITION, "attachment".to_owned()),
    ];
    Ok((headers, content(app, &stored).await?).into_response())
}

#[derive(Deserialize)]
struct Saved {
    blob: String,
}

/// What the sandbox saved last, else what it began with.
async fn newest(tx: &mut dyn Tx, id: SandboxId, session: SessionId) -> Result<Option<Stored>> {
    let types = vec![TypePattern::Exact(kind::AGENT_TRANSCRIPT.to_owned())];
    let (filter, mut from) = (Filter { types, ..Filter::default() }, i64::MAX);
    loop {
        let page = events::page(tx, (id, session), &filter, Order::NewestFirst, from, 1).await?;
        if let Some(event) = page.events.first() {
            let saved = serde_json::from_str::<Saved>(event.data.get()).ok();
            return match saved {
                Some(Saved { blob }) => Ok(blobs::get(tx, id, &blob).await?),
                None => Ok(None),
            };
        }
        match page.looked_at {
            Some(seq) => from = seq,
            None => break,
        }
    }
    let begun_with = sessions::get(tx, session).await?.and_then(|session| session.transcript);
    match begun_with {
        Some(blob) => Ok(blobs::get(tx, id, &blob).await?),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_into_a_transcript_has_a_word() {
        assert_eq!(word_for("agent.message"), Some("assistant"));
        assert_eq!(word_for("message.acknowledged"), Some("user"));
        for other in ["message.queued", "sandbox.running", "agent.transcript", "agent.usage", "mine.own"] {
            assert_eq!(word_for(other), None, "{other}");
        }
    }
}
