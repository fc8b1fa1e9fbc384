//! What follows from what a worker's guardian has seen: the agent is told, where its project wants that.

use super::{Work, inbox, limits};
use crate::problem::Result;
use atoll_core::event::{NewEvent, Source, kind};
use atoll_core::guardian::{self, Act, Detail, Detector};
use atoll_core::message::{Delivery, MessageType};
use atoll_store::sandboxes::{self, Sandbox};
use atoll_store::sessions::Session;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Detected {
    detector: Detector,
    #[serde(default)]
    tool: String,
    times: Option<u32>,
    path: Option<String>,
    #[serde(default)]
    evidence: Value,
    #[serde(default)]
    nudge: bool,
}

#[derive(Deserialize)]
struct Denied {
    #[serde(default)]
    tool: String,
    #[serde(default)]
    reason: String,
    tool_use_id: Option<String>,
    /// Its driver tells the agent why.
    #[serde(default)]
    told: bool,
}

/// Words for the agent, and what they are about.
pub struct Nudge {
    draft: inbox::Draft,
    about: Value,
}

/// How much of a worker's words goes into a message.
const LONGEST: usize = 1000;

pub fn observed(sandbox: &Sandbox, event: &NewEvent) -> Option<Nudge> {
    let data = event.data.get();
    match event.event_type.as_str() {
        kind::GUARDIAN_DETECTED => {
            let found: Detected = serde_json::from_str(data).ok()?;
            let acts = sandbox.settings.guardian.unwrap_or_default().acts();
            if acts != Act::Nudge || !found.nudge {
                return None;
            }
            let detail = match (found.times, found.path) {
                (Some(times), _) => Detail::Times(times),
                (None, path) => Detail::Path(path.unwrap_or_default()),
            };
            let text = guardian::nudge(found.detector, &found.tool, &detail);
            Some(Nudge::new(&text, json!({ "detector": found.detector, "evidence": found.evidence })))
        }
        // Not a matter of taste: who is refused has to know why.
        kind::GUARDIAN_DENIED => {
            let denied: Denied = serde_json::from_str(data).ok().filter(|denied: &Denied| !denied.told)?;
            let text = format!("Atoll's guardian: your call of {} was denied: {}", denied.tool, denied.reason);
            Some(Nudge::new(&text, json!({ "denied": denied.tool_use_id })))
        }
        _ => None,
    }
}

impl Nudge {
    fn new(text: &str, about: Value) -> Self {
        let draft = inbox::Draft {
            content: super::lifecycle::bounded(text, LONGEST),
            message_type: MessageType::GuardianNudge,
            delivery: Delivery::Steer,
            sender: Some(guardian::SENDER.to_owned()),
        };
        Self { draft, about }
    }
}

/// Carries it out, with what it was about in the log.
pub async fn nudge(work: &mut Work<'_>, session: &mut Session, sandbox: &mut Sandbox, nudge: Nudge) -> Result<()> {
    let mut data = nudge.about;
    data["text"] = nudge.draft.content.as_str().into();
    let event = NewEvent::system(kind::GUARDIAN_NUDGED, work.now, &data).by(Source::Guardian, None);
    work.log(sandbox, vec![event]).await?;
    sandboxes::update(work.tx, sandbox).await?;
    limits::say(work, session, sandbox, nudge.draft).await
}
