//! Exports a sandbox's transcript: in Atoll's portable form, or as the agent's own file.

use super::blob_transfer::read_content;
use super::targets::load_sandbox;
use crate::auth::access::CanSee;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::event::{Event, EventTypePattern, kind};
use atoll_core::id::{MessageId, SandboxId, SessionId};
use atoll_store::blobs::{self, BlobFile};
use atoll_store::events::{self, EventLogFilter, EventLogOrder};
use atoll_store::sandboxes::SandboxRow;
use atoll_store::{Tx, messages, sessions};
use axum::body::Body;
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Version of the portable form; it changes with every incompatible change.
const PORTABLE_VERSION: u32 = 1;
/// Events scanned for one chunk of the response.
const CHUNK_EVENTS: usize = 500;

/// Streams the portable form: a JSON document with `format`, `version`, a header and `entries`, oldest first.
pub async fn export_portable(app: Arc<App>, access: CanSee<SandboxId>) -> Result<Body> {
    let row = load_sandbox(&app, &access).await?;
    let session = row.session_id;
    let session = app.read(async move |tx| Ok(sessions::find_session(tx, session).await?)).await?;
    let session = session.ok_or_else(|| Problem::not_found("session"))?;
    let head = json!({
        "format": "atoll-transcript", "version": PORTABLE_VERSION, "sandbox_id": row.id, "session_id": session.id,
        "title": session.title, "agent": row.agent, "native_id": session.native_id,
        "from_the_beginning": row.first_seq == 1, "created_at": row.created_at, "made_at": app.clock.now(),
    });
    // The entries follow the header in chunks.
    let mut head = head.to_string();
    head.truncate(head.len() - 1);
    head.push_str(",\"entries\":[");
    let state = Some(ExportState { app, row, at: 0, head: Some(head), is_first: true });
    let chunks = stream::try_unfold(state, |state| async move {
        let Some(state) = state else { return Ok::<_, std::io::Error>(None) };
        let (text, rest) = state.next().await.map_err(|problem| std::io::Error::other(format!("{problem:?}")))?;
        Ok(Some((text, rest)))
    });
    Ok(Body::from_stream(chunks))
}

/// Progress of an export.
struct ExportState {
    app: Arc<App>,
    row: SandboxRow,
    at: i64,
    head: Option<String>,
    is_first: bool,
}

impl ExportState {
    async fn next(mut self) -> Result<(String, Option<Self>)> {
        let (sandbox, at) = ((self.row.id, self.row.session_id), self.at);
        let read = self.app.read(async move |tx| load_entries(tx, sandbox, at).await);
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

async fn load_entries(
    tx: &mut dyn Tx,
    sandbox: (SandboxId, SessionId),
    after: i64,
) -> Result<(Vec<Value>, Option<i64>)> {
    let filter = EventLogFilter { excludes_noise: true, ..EventLogFilter::default() };
    let page = events::read_event_page(tx, sandbox, &filter, EventLogOrder::OldestFirst, after, CHUNK_EVENTS).await?;
    let mut entries = Vec::new();
    for event in page.events {
        let Some(word) = entry_kind(event.event_type.as_str()) else { continue };
        let data = if word == "user" { load_message_data(tx, sandbox.1, &event).await? } else { json!(event.data) };
        let mut entry = json!({ "seq": event.seq, "at": event.at, "kind": word, "data": data });
        if let Some(turn) = event.turn {
            entry["turn"] = turn.into();
        }
        entries.push(entry);
    }
    Ok((entries, page.next_cursor))
}

/// The kind of transcript entry for an event, if the event belongs in the transcript.
fn entry_kind(event_type: &str) -> Option<&'static str> {
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
struct MessageRef {
    message_id: MessageId,
}

/// Loads the whole message: the event log holds only an excerpt.
async fn load_message_data(tx: &mut dyn Tx, session: SessionId, event: &Event) -> Result<Value> {
    let Ok(MessageRef { message_id }) = serde_json::from_str(event.data.get()) else { return Ok(json!(event.data)) };
    let Some(message) = messages::find_message(tx, session, message_id).await? else { return Ok(json!(event.data)) };
    Ok(json!({
        "message_id": message.id, "type": message.message_type, "content": message.content, "sender": message.sender,
        "how": message.delivery_status.delivery_method, "confirmed": event.event_type.as_str() == kind::MESSAGE_ACKNOWLEDGED,
    }))
}

/// The agent's own transcript file.
pub struct NativeTranscript {
    pub content_type: &'static str,
    pub size: i64,
    pub content: Body,
}

pub async fn export_native(app: &App, access: CanSee<SandboxId>) -> Result<NativeTranscript> {
    let row = load_sandbox(app, &access).await?;
    let (id, session) = (row.id, row.session_id);
    let found = app.read(async move |tx| find_newest_transcript(tx, id, session).await).await?;
    let stored = found.ok_or_else(|| {
        let detail = "there is no transcript of the agent: it writes none that Atoll knows, has not worked yet, or the \
                      transcript expired; use the portable form instead";
        Problem::new(Code::NotFound, detail)
    })?;
    let content_type = match row.agent.as_deref() {
        Some("opencode") => "application/json",
        Some(_) | None => "application/x-ndjson",
    };
    Ok(NativeTranscript { content_type, size: stored.size, content: read_content(app, &stored).await? })
}

#[derive(Deserialize)]
struct TranscriptRef {
    blob: String,
}

/// Finds the sandbox's newest transcript, else the one that it started with.
async fn find_newest_transcript(tx: &mut dyn Tx, id: SandboxId, session: SessionId) -> Result<Option<BlobFile>> {
    let types = vec![EventTypePattern::Exact(kind::AGENT_TRANSCRIPT.to_owned())];
    let (filter, mut from) = (EventLogFilter { types, ..EventLogFilter::default() }, i64::MAX);
    loop {
        let page = events::read_event_page(tx, (id, session), &filter, EventLogOrder::NewestFirst, from, 1).await?;
        if let Some(event) = page.events.first() {
            let saved = serde_json::from_str::<TranscriptRef>(event.data.get()).ok();
            return match saved {
                Some(TranscriptRef { blob }) => Ok(blobs::find_blob(tx, id, &blob).await?),
                None => Ok(None),
            };
        }
        match page.next_cursor {
            Some(seq) => from = seq,
            None => break,
        }
    }
    let inherited = sessions::find_session(tx, session).await?.and_then(|session| session.transcript);
    match inherited {
        Some(blob) => Ok(blobs::find_blob(tx, id, &blob).await?),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_events_to_entry_kinds() {
        assert_eq!(entry_kind("agent.message"), Some("assistant"));
        assert_eq!(entry_kind("message.acknowledged"), Some("user"));
        for other in ["message.queued", "sandbox.running", "agent.transcript", "agent.usage", "mine.own"] {
            assert_eq!(entry_kind(other), None, "{other}");
        }
    }
}
