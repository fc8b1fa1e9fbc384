//! The demo agent: JSON lines in both directions (see [`demo_wire`]), designed for Atoll.

use crate::{
    Abilities, AgentCommand, AgentEvent, AgentOutput, AgentRequest, AgentTurn, Driver, EventEffect, LaunchContext,
    RequestKind, ResponseRef, clip_event, is_turn_note, parse_object,
};
use atoll_api::events::EventData;
use atoll_core::bounds;
use atoll_core::event::{EventType, kind};
use atoll_core::message::MessageType;
use atoll_protocol::{EventBlob, LeasedMessage};
use demo_wire::{
    DemoAnswer, DemoDecision, DemoInput, DemoOutput, DemoPrompt, ToolCheck, WATCHED_ARGUMENT, tool_check_id,
};
use serde::Deserialize;
use serde_json::value::RawValue;

pub mod agent;
pub mod demo_wire;

/// Shorter data has no text that is too long for an event.
const MAX_UNCLIPPED_BYTES: usize = 32 << 10;

#[derive(Debug)]
pub struct DemoDriver;

impl Driver for DemoDriver {
    fn abilities(&self) -> Abilities {
        Abilities { steer: true, queue: true, interrupt: true, approvals: true, hooks: true, ..Abilities::default() }
    }

    fn build_command(&mut self, launch: &LaunchContext<'_>) -> AgentCommand {
        let worker = launch.worker_program.to_string_lossy().into_owned();
        let argv = vec![worker, "demo".to_owned(), launch.previous_turns.to_string(), WATCHED_ARGUMENT.to_owned()];
        let ignored = super::tools::unsupported_tool_settings(launch.settings, "the demo");
        AgentCommand { argv, unsupported_settings: ignored, ..AgentCommand::default() }
    }

    fn encode_message(&mut self, message: &LeasedMessage, turn: AgentTurn) -> Vec<u8> {
        // The agent repeats notes about the running turn and continues its work.
        let text = if is_turn_note(message) { say_line(&message.content) } else { message.content.clone() };
        let words = DemoPrompt { id: message.id, text };
        let line = match (message.message_type, turn) {
            (MessageType::Interrupt, _) => DemoInput::Interrupt(words),
            (MessageType::UserMessage | MessageType::GuardianNudge | MessageType::System, AgentTurn::InTurn) => {
                DemoInput::Steer(words)
            }
            (MessageType::UserMessage | MessageType::GuardianNudge | MessageType::System, AgentTurn::Idle) => {
                DemoInput::Prompt(words)
            }
        };
        encode_input(&line)
    }

    fn append_note(&self, content: &str, note: &str) -> String {
        format!("{}\n{content}", say_line(note))
    }

    fn relays_denial_reasons(&self) -> bool {
        true
    }

    fn confirm_scan(&mut self, tool_use_id: &str) -> Option<Vec<u8>> {
        Some(encode_input(&DemoInput::Seen { tool_use_id: tool_use_id.to_owned() }))
    }

    /// The demo agent chooses the ids of its requests itself.
    fn answer_request(&mut self, request_id: &str, answer: super::RequestAnswer) -> Vec<u8> {
        let (decision, reason, input) = match answer {
            super::RequestAnswer::Allow { context, input } => (DemoDecision::Allow, context, input),
            super::RequestAnswer::Answers(_) => (DemoDecision::Allow, None, None),
            super::RequestAnswer::Deny { reason } => (DemoDecision::Deny, Some(reason), None),
        };
        encode_input(&DemoInput::Answer(DemoAnswer { approval_id: request_id.to_owned(), decision, reason, input }))
    }

    fn handle_line(&mut self, line: &[u8]) -> Vec<AgentOutput> {
        let output = parse_output(line).unwrap_or_else(|reason| AgentOutput::Unparsed { reason });
        vec![output]
    }
}

/// Formats the text as a line that makes the agent repeat it.
fn say_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    format!("say I was told: {}", words.join(" "))
}

fn encode_input(line: &DemoInput) -> Vec<u8> {
    // Serialising this enum cannot fail.
    let mut line = serde_json::to_vec(line).unwrap_or_default();
    line.push(b'\n');
    line
}

fn parse_output(line: &[u8]) -> Result<AgentOutput, String> {
    let line: DemoOutput<'_> = parse_object(line)?;
    if let Some(receipt) = line.receipt {
        return Ok(AgentOutput::Acknowledged { id: receipt.id, how: receipt.how });
    }
    if line.idle.is_some() {
        return Ok(AgentOutput::Idle);
    }
    if let Some(ToolCheck { tool_use_id, tool, input }) = line.before {
        let id = tool_check_id(&tool_use_id);
        let kind = RequestKind::BeforeTool;
        return Ok(AgentOutput::Request(AgentRequest { id, kind, tool_use_id: Some(tool_use_id), tool, input }));
    }
    let (Some(event), Some(data)) = (line.event, line.data) else {
        return Err("not an event with data, a receipt or idle".to_owned());
    };
    let mark = event_effect(&event, data.get())?;
    if event == kind::AGENT_FAILED {
        return Ok(AgentOutput::Failed { error: parse_data::<FailureData>(data.get())?.error });
    }
    let (data, blob) = clip_data(&event, data);
    bounds::check_event_data(data.get()).map_err(|error| error.to_string())?;
    let event_type = EventType::new(&event).map_err(|error| error.to_string())?;
    Ok(AgentOutput::Event(AgentEvent { event_type, data, blob, effect: mark, response: ResponseRef::Unknown }))
}

/// Clips the data of an event with a long text.
fn clip_data(event: &str, data: &RawValue) -> (Box<RawValue>, Option<EventBlob>) {
    if data.get().len() <= MAX_UNCLIPPED_BYTES {
        return (data.to_owned(), None);
    }
    let mut data = EventData::parse(event, data);
    let blob = clip_event(&mut data);
    (data.to_json(), blob)
}

#[derive(Deserialize)]
struct ToolData {
    tool_use_id: String,
}

#[derive(Deserialize)]
struct FailureData {
    error: String,
}

fn parse_data<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, String> {
    serde_json::from_str(data).map_err(|error| format!("data: {error}"))
}

/// Rejects events that the demo agent does not emit, such as file changes and sandbox events.
fn event_effect(event: &str, data: &str) -> Result<EventEffect, String> {
    if !data.starts_with('{') {
        return Err("data: must be an object".to_owned());
    }
    Ok(match event {
        kind::AGENT_STARTED => EventEffect::TurnStarted,
        kind::AGENT_COMPLETED | kind::AGENT_INTERRUPTED => EventEffect::TurnEnded,
        kind::AGENT_TOOL_USE => EventEffect::ToolStarted(parse_data::<ToolData>(data)?.tool_use_id),
        kind::AGENT_TOOL_COMPLETED => EventEffect::ToolEnded(parse_data::<ToolData>(data)?.tool_use_id),
        kind::APPROVAL_REQUESTED => EventEffect::ApprovalRequested,
        kind::APPROVAL_RESOLVED => EventEffect::ApprovalResolved,
        kind::AGENT_MESSAGE | kind::AGENT_MESSAGE_INJECTED | kind::AGENT_FAILED => EventEffect::None,
        other => return Err(format!("unknown event `{other}` of the demo agent")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::message::{Delivery, DeliveryMethod};
    use serde_json::{Value, json};
    use std::path::Path;

    fn decode_line(line: &str) -> AgentOutput {
        DemoDriver.handle_line(line.as_bytes()).pop().unwrap()
    }

    #[test]
    fn encodes_messages() {
        let encode = |message: &LeasedMessage, turn| -> Value {
            let line = DemoDriver.encode_message(message, turn);
            assert_eq!(line.last(), Some(&b'\n'));
            serde_json::from_slice(&line).unwrap()
        };
        let mut it = LeasedMessage::example("go on", Delivery::Steer);
        assert_eq!(encode(&it, AgentTurn::Idle), json!({"prompt": {"id": it.id, "text": "go on"}}));
        assert_eq!(encode(&it, AgentTurn::InTurn), json!({"steer": {"id": it.id, "text": "go on"}}));
        it.message_type = MessageType::Interrupt;
        assert_eq!(encode(&it, AgentTurn::InTurn), json!({"interrupt": {"id": it.id, "text": "go on"}}));
    }

    #[test]
    fn maps_events_to_effects() {
        let marked =
            |event: &str, data: Value| match decode_line(&json!({"event": event, "turn": 1, "data": data}).to_string())
            {
                AgentOutput::Event(output) => Ok(output.effect),
                AgentOutput::Unparsed { reason } => Err(reason),
                other => panic!("{other:?}"),
            };
        assert_eq!(marked("agent.started", json!({"turn": 1})), Ok(EventEffect::TurnStarted));
        assert_eq!(marked("agent.interrupted", json!({})), Ok(EventEffect::TurnEnded));
        assert_eq!(marked("agent.tool_use", json!({"tool_use_id": "t"})), Ok(EventEffect::ToolStarted("t".into())));
        assert_eq!(marked("agent.tool_completed", json!({"tool_use_id": "t"})), Ok(EventEffect::ToolEnded("t".into())));
        assert_eq!(marked("approval.requested", json!({})), Ok(EventEffect::ApprovalRequested));
        assert!(marked("agent.tool_use", json!({})).unwrap_err().contains("tool_use_id"));
        assert!(marked("agent.shutdown", json!({})).unwrap_err().contains("unknown event"));
        assert!(marked("agent.message", json!([1])).unwrap_err().contains("object"));
        let large = "x".repeat(bounds::MAX_EVENT_DATA_BYTES);
        assert!(marked("agent.started", json!({"model": large})).unwrap_err().contains("at most"));
    }

    #[test]
    fn a_long_output_becomes_a_blob() {
        let output = "line\n".repeat(60_000);
        let data = json!({"tool": "Bash", "tool_use_id": "t", "output": output, "is_error": false});
        let AgentOutput::Event(event) =
            decode_line(&json!({"event": "agent.tool_completed", "data": data}).to_string())
        else {
            panic!()
        };
        let data: Value = serde_json::from_str(event.data.get()).unwrap();
        let blob = event.blob.unwrap();
        assert_eq!((&data["output_blob"], &data["output_bytes"]), (&json!(blob.sha256), &json!(output.len())));
        assert_eq!((blob.content, event.effect), (output, EventEffect::ToolEnded("t".into())));
    }

    #[test]
    fn parses_receipts_failures_and_garbage() {
        let id = atoll_core::id::MessageId::new();
        let receipt = json!({"receipt": {"id": id, "how": "new_turn", "turn": 1}}).to_string();
        assert!(
            matches!(decode_line(&receipt), AgentOutput::Acknowledged { id: it, how: DeliveryMethod::NewTurn } if it == id)
        );
        assert!(matches!(decode_line(r#"{"idle":{"turn":1}}"#), AgentOutput::Idle));
        let failed = json!({"event": "agent.failed", "data": {"error": "no key"}}).to_string();
        assert!(matches!(decode_line(&failed), AgentOutput::Failed { error } if error == "no key"));
        for nonsense in ["hello", "{}", "[]", "\u{1b}[31m", r#"{"receipt":{"id":"x"}}"#] {
            assert!(matches!(decode_line(nonsense), AgentOutput::Unparsed { .. }), "{nonsense}");
        }
        assert!(
            matches!(&DemoDriver.handle_line(b"\xff\xfe")[..], [AgentOutput::Unparsed { reason }] if reason.starts_with("not UTF-8"))
        );
    }

    #[test]
    fn the_command_is_the_worker_itself() {
        let settings = crate::settings::AgentSettings::default();
        let launch =
            LaunchContext { previous_turns: 3, ..LaunchContext::minimal(Path::new("/opt/atoll/worker"), &settings) };
        let command = DemoDriver.build_command(&launch);
        assert_eq!(command.argv, ["/opt/atoll/worker", "demo", "3", "watched"]);
    }
}
