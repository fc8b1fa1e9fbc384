//! Turns the worker's guardian events into nudges, where the project's settings ask for them.

use super::{Work, inbox, limits};
use crate::problem::Result;
use atoll_api::events::{EventData, GuardianDenied, GuardianDetected, GuardianNudged};
use atoll_core::event::{EventSource, NewEvent, kind};
use atoll_core::guardian::{self, Detector, FindingDetail, GuardianAction};
use atoll_core::message::{Delivery, MessageType};
use atoll_store::sandboxes::{self, SandboxRow};
use atoll_store::sessions::SessionRow;
use serde_json::Value;

/// A message to the agent and the event that explains it.
pub struct Nudge {
    draft: inbox::MessageDraft,
    event: GuardianNudged,
}

/// Longest nudge text.
const MAX_NUDGE_CHARS: usize = 1000;

pub fn nudge_for_event(sandbox: &SandboxRow, event: &NewEvent) -> Option<Nudge> {
    let data = event.data.get();
    match event.event_type.as_str() {
        kind::GUARDIAN_DETECTED => {
            let found: GuardianDetected = serde_json::from_str(data).ok()?;
            let acts = sandbox.settings.guardian.unwrap_or_default().effective_action();
            if acts != GuardianAction::Nudge || !found.nudge {
                return None;
            }
            let detail = match (found.times, found.path) {
                (Some(times), _) => FindingDetail::RepeatCount(times),
                (None, path) => FindingDetail::Path(path.unwrap_or_default()),
            };
            let text = guardian::nudge_message(found.detector, &found.tool, &detail);
            Some(Nudge::new(&text, Some(found.detector), Some(found.evidence), None))
        }
        // Always sent: an agent must learn why its call was denied.
        kind::GUARDIAN_DENIED => {
            let denied = serde_json::from_str(data).ok().filter(|denied: &GuardianDenied| !denied.agent_informed)?;
            let text = format!("Atoll's guardian: your call of {} was denied: {}", denied.tool, denied.reason);
            Some(Nudge::new(&text, None, None, denied.tool_use_id))
        }
        _ => None,
    }
}

impl Nudge {
    fn new(text: &str, detector: Option<Detector>, evidence: Option<Value>, denied: Option<String>) -> Self {
        let draft = inbox::MessageDraft {
            content: super::lifecycle::truncate_text(text, MAX_NUDGE_CHARS),
            message_type: MessageType::GuardianNudge,
            delivery: Delivery::Steer,
            sender: Some(guardian::GUARDIAN_SENDER.to_owned()),
        };
        let event = GuardianNudged { text: draft.content.clone(), detector, evidence, denied };
        Self { draft, event }
    }
}

/// Logs the nudge and queues its message.
pub async fn deliver_nudge(
    work: &mut Work<'_>,
    session: &mut SessionRow,
    sandbox: &mut SandboxRow,
    nudge: Nudge,
) -> Result<()> {
    let event = EventData::GuardianNudged(nudge.event).into_event(work.now).with_source(EventSource::Guardian, None);
    work.log(sandbox, vec![event]).await?;
    sandboxes::update_sandbox(work.tx, sandbox).await?;
    limits::notify_agent(work, session, sandbox, nudge.draft).await
}
