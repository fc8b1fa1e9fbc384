//! Tells an agent why a rule denied its call, if its driver cannot.

use crate::app::{Work, inbox, lifecycle, limits};
use crate::problem::Result;
use atoll_api::events::{EventData, GuardianDenied, GuardianNudged};
use atoll_core::event::{EventSource, NewEvent, kind};
use atoll_core::guardian::GUARDIAN_SENDER;
use atoll_core::message::{Delivery, MessageType};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::SessionRow;

/// A message to the agent and the event that explains it.
pub struct DenialNudge {
    draft: inbox::MessageDraft,
    event: GuardianNudged,
}

/// Longest nudge text.
const MAX_NUDGE_CHARS: usize = 1000;

/// The nudge that an event of the worker requires. It is always sent: an agent must learn why its call was denied.
pub fn nudge_for_event(event: &NewEvent) -> Option<DenialNudge> {
    if event.event_type.as_str() != kind::GUARDIAN_DENIED {
        return None;
    }
    let denied: GuardianDenied = serde_json::from_str(event.data.get()).ok()?;
    if denied.agent_informed {
        return None;
    }
    let text = format!("Atoll's guardian: your call of {} was denied: {}", denied.tool, denied.reason);
    let draft = nudge_draft(&text);
    let (text, denied) = (draft.content.clone(), denied.tool_use_id);
    let event =
        GuardianNudged { text, detector: None, evidence: None, denied, intervention_id: None, message_id: None };
    Some(DenialNudge { draft, event })
}

/// A message of the guardian for the running turn.
pub fn nudge_draft(text: &str) -> inbox::MessageDraft {
    inbox::MessageDraft {
        content: lifecycle::truncate_text(text, MAX_NUDGE_CHARS),
        message_type: MessageType::GuardianNudge,
        delivery: Delivery::Steer,
        sender: Some(GUARDIAN_SENDER.to_owned()),
    }
}

/// Logs the nudge and queues its message.
pub async fn deliver_nudge(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    nudge: DenialNudge,
) -> Result<()> {
    let event = EventData::GuardianNudged(nudge.event).into_event(work.now).with_source(EventSource::Guardian, None);
    work.log(sandbox, vec![event]).await?;
    sandboxes::update_sandbox(work.tx, sandbox).await?;
    limits::notify_agent(work, session, sandbox, nudge.draft).await.map(drop)
}
