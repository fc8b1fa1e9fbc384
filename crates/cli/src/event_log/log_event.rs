//! An event of the log with its typed data.

use crate::render::plain_value::describe_value;
use atoll_api::events::EventData;
use atoll_core::event::{Event, kind};
use atoll_core::id::MessageId;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

#[derive(Debug, Clone)]
pub struct LogEvent {
    pub event: Event,
    pub data: EventData,
}

impl From<Event> for LogEvent {
    fn from(event: Event) -> Self {
        let data = match EventData::from_event(&event) {
            EventData::Unknown { event_type, data } => complete_data(event_type, data),
            data => data,
        };
        Self { event, data }
    }
}

impl LogEvent {
    pub fn event_type(&self) -> &str {
        self.event.event_type.as_str()
    }

    pub fn is_sandbox_end(&self) -> bool {
        matches!(self.data, EventData::SandboxCompleted(_) | EventData::SandboxFailed(_))
    }

    /// Only programs need the event, such as a heartbeat.
    pub fn is_for_programs(&self) -> bool {
        matches!(self.event_type(), kind::AGENT_HEARTBEAT | kind::AGENT_USAGE | kind::AGENT_TRANSCRIPT)
    }

    /// The main text of the event, if it has one.
    pub fn text(&self) -> Option<String> {
        let text = match &self.data {
            EventData::AgentMessage(message) | EventData::AgentThinking(message) => Some(message.text.clone()),
            EventData::AgentSystemMessage(message) => message.text.clone().or_else(|| message.error.clone()),
            EventData::AgentMessageInjected(message) => message.text.clone(),
            EventData::AgentInterrupted(interrupt) => interrupt.text.clone(),
            EventData::AgentFailed(failure) => Some(failure.error.clone()),
            EventData::AgentError(error) => Some(error.error.clone()),
            EventData::AgentStreamError(error) => error.error.as_ref().map(describe_value),
            EventData::AgentTranscriptFailed(failure) => Some(failure.error.clone()),
            EventData::AgentUnparsed(line) => Some(line.excerpt.clone()),
            EventData::ApprovalRequested(approval) => approval.text.clone(),
            EventData::MessageQueued(message) | EventData::MessageEdited(message) => Some(message.content.clone()),
            EventData::SandboxNotice(notice) => Some(notice.text.clone()),
            EventData::SandboxDiskFull(notice) => Some(notice.text.clone()),
            EventData::SecretsExposed(notice) => Some(notice.text.clone()),
            EventData::GuardianNudged(nudge) => Some(nudge.text.clone()),
            EventData::GuardianDetected(finding) => Some(finding.summary.clone()),
            EventData::GuardianIntervened(intervened) => Some(intervened.summary.clone()),
            EventData::GuardianEscalated(escalated) => Some(escalated.summary.clone()),
            EventData::NetworkRefused(refusal) => Some(refusal.detail.clone()),
            EventData::ModelRefused(refusal) => Some(refusal.detail.clone()),
            EventData::WorkerRejected(rejection) => Some(rejection.detail.clone()),
            EventData::WorkerLost(loss) => loss.detail.clone(),
            EventData::LogTruncated(_) => {
                Some("the log has reached its quota; further events are only counted".to_owned())
            }
            EventData::ContinuousCheck(check) => Some(check.check.detail.clone()),
            EventData::ContinuousRunFailed(failure) => failure.error.clone(),
            EventData::ContinuousStopped(stop) => Some(stop.detail.clone()),
            EventData::Unknown { data, .. } => object_of(data).as_ref().and_then(first_text),
            _ => None,
        };
        text.filter(|text| !text.is_empty())
    }
}

/// The message of a delivery report.
pub const fn reported_message(data: &EventData) -> Option<MessageId> {
    match data {
        EventData::MessageAcknowledged(message)
        | EventData::MessageCancelled(message)
        | EventData::MessageUndeliverable(message)
        | EventData::MessageDeliveredUnconfirmed(message) => Some(message.message_id),
        _ => None,
    }
}

/// Fields that hold the main text of events of external workers.
const TEXT_FIELDS: [&str; 6] = ["text", "content", "message", "detail", "error", "summary"];

fn first_text(object: &Map<String, Value>) -> Option<String> {
    let mut texts = TEXT_FIELDS.iter().filter_map(|field| object.get(*field)?.as_str());
    texts.find(|text| !text.is_empty()).map(str::to_owned)
}

fn object_of(data: &RawValue) -> Option<Map<String, Value>> {
    serde_json::from_str(data.get()).ok()
}

/// Adds missing fields to the data of an agent's event: an external worker may send less than Atoll's drivers do.
fn complete_data(event_type: String, data: Box<RawValue>) -> EventData {
    let completed = object_of(&data).and_then(|mut object| {
        let text = first_text(&object).unwrap_or_default();
        let (parsed_as, defaults) = match event_type.as_str() {
            kind::AGENT_MESSAGE | kind::AGENT_ASSISTANT_MESSAGE if !text.is_empty() => (kind::AGENT_MESSAGE, json!({ "text": text })),
            kind::AGENT_THINKING => (kind::AGENT_THINKING, json!({ "text": text })),
            kind::AGENT_FAILED => (kind::AGENT_FAILED, json!({ "reason": "agent_failed", "error": text })),
            kind::AGENT_ERROR => (kind::AGENT_ERROR, json!({ "error": text })),
            kind::AGENT_TOOL_USE => (kind::AGENT_TOOL_USE, json!({ "tool": "?", "tool_use_id": "", "input": null })),
            kind::AGENT_TOOL_COMPLETED | kind::AGENT_USER_TOOL_RESULT => {
                (kind::AGENT_TOOL_COMPLETED, json!({ "tool": "?", "tool_use_id": "", "output": "", "is_error": false }))
            }
            kind::AGENT_FILE_EDITED => (
                kind::AGENT_FILE_EDITED,
                json!({
                    "file_path": "?", "change_type": "modified", "lines_added": 0, "lines_removed": 0, "diff_preview": "",
                }),
            ),
            _ => return None,
        };
        let Value::Object(defaults) = defaults else { return None };
        for (field, value) in defaults {
            object.entry(field).or_insert(value);
        }
        let object = serde_json::value::to_raw_value(&object).ok()?;
        Some(EventData::parse(parsed_as, &object)).filter(|data| !matches!(data, EventData::Unknown { .. }))
    });
    completed.unwrap_or(EventData::Unknown { event_type, data })
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// An event with this type, turn and data.
    pub fn event(event_type: &str, turn: Option<i64>, data: &Value) -> LogEvent {
        event_at("2026-01-31T12:00:00.123456Z", event_type, turn, data)
    }

    pub fn event_at(at: &str, event_type: &str, turn: Option<i64>, data: &Value) -> LogEvent {
        let event = json!({
            "id": uuid::Uuid::nil(), "sandbox_id": "sbx_01m7fkrr8mezdtrwya23zj4ref", "seq": 7, "type": event_type,
            "source": "agent", "actor": "user:usr_1", "at": at, "received_at": at, "turn": turn, "data": data,
        });
        LogEvent::from(serde_json::from_value::<Event>(event).unwrap())
    }
}

#[cfg(test)]
mod tests {
    use super::testing::event;
    use super::*;

    #[test]
    fn completes_the_data_of_external_workers() {
        let tool = event("agent.tool_use", None, &json!({ "tool": "Bash", "input": { "command": "ls" } }));
        assert!(matches!(tool.data, EventData::AgentToolUse(call) if call.tool == "Bash"));
        let message_event = event("agent.assistant_message", None, &json!({ "summary": "done" }));
        assert_eq!(message_event.text().as_deref(), Some("done"));
        let custom = event("custom.thing", None, &json!({ "message": "hello" }));
        assert!(matches!(custom.data, EventData::Unknown { .. }));
        assert_eq!(custom.text().as_deref(), Some("hello"));
        assert_eq!(event("custom.thing", None, &json!([1])).text(), None);
    }
}
