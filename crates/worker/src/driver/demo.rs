//! The demo agent: lines of JSON both ways, made for this.

use super::{Abilities, Ask, AskKind, Command, Driver, Launch, Mark, Origin, Said, Standing, Told, is_aside, object};
use crate::demo::wire::{Answer, Before, Decision, In, Out, Prompt, WATCHED, before};
use atoll_core::bounds;
use atoll_core::event::{EventType, kind};
use atoll_core::message::MessageType;
use atoll_protocol::LeasedMessage;
use serde::Deserialize;

#[derive(Debug)]
pub(super) struct Demo;

impl Driver for Demo {
    fn abilities(&self) -> Abilities {
        Abilities { steer: true, queue: true, interrupt: true, approvals: true, hooks: true, ..Abilities::default() }
    }

    fn command(&mut self, launch: &Launch<'_>) -> Command {
        let worker = launch.worker.to_string_lossy().into_owned();
        let argv = vec![worker, "demo".to_owned(), launch.turns.to_string(), WATCHED.to_owned()];
        let ignored = super::tools::ignored(launch.settings, "the demo");
        Command { argv, ignored, ..Command::default() }
    }

    fn tell(&mut self, message: &LeasedMessage, standing: Standing) -> Vec<u8> {
        // What is said about the running turn it hears, and goes on with what it does.
        let text = if is_aside(message) { said_aloud(&message.content) } else { message.content.clone() };
        let words = Prompt { id: message.id, text };
        let line = match (message.message_type, standing) {
            (MessageType::Interrupt, _) => In::Interrupt(words),
            (MessageType::UserMessage | MessageType::GuardianNudge | MessageType::System, Standing::InTurn) => {
                In::Steer(words)
            }
            (MessageType::UserMessage | MessageType::GuardianNudge | MessageType::System, Standing::Idle) => {
                In::Prompt(words)
            }
        };
        written(&line)
    }

    fn with_note(&self, content: &str, note: &str) -> String {
        format!("{}\n{content}", said_aloud(note))
    }

    fn tells_reasons(&self) -> bool {
        true
    }

    fn tool_seen(&mut self, tool_use_id: &str) -> Option<Vec<u8>> {
        Some(written(&In::Seen { tool_use_id: tool_use_id.to_owned() }))
    }

    /// Its questions are events of its own, and named there.
    fn answer(&mut self, ask: &str, answer: super::Answer) -> Vec<u8> {
        let (decision, reason, input) = match answer {
            super::Answer::Allow { context, input } => (Decision::Allow, context, input),
            super::Answer::Words(_) => (Decision::Allow, None, None),
            super::Answer::Deny { reason } => (Decision::Deny, Some(reason), None),
        };
        written(&In::Answer(Answer { approval_id: ask.to_owned(), decision, reason, input }))
    }

    fn line(&mut self, line: &[u8]) -> Vec<Said> {
        let said = read(line).unwrap_or_else(|reason| Said::Unparsed { reason });
        vec![said]
    }
}

/// As the line that lets the agent say it.
fn said_aloud(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    format!("say I was told: {}", words.join(" "))
}

fn written(line: &In) -> Vec<u8> {
    // Writing such an enum into memory can't fail.
    let mut line = serde_json::to_vec(line).unwrap_or_default();
    line.push(b'\n');
    line
}

fn read(line: &[u8]) -> Result<Said, String> {
    let line: Out<'_> = object(line)?;
    if let Some(receipt) = line.receipt {
        return Ok(Said::Receipt { id: receipt.id, how: receipt.how });
    }
    if line.idle.is_some() {
        return Ok(Said::Idle);
    }
    if let Some(Before { tool_use_id, tool, input }) = line.before {
        let id = before(&tool_use_id);
        let kind = AskKind::BeforeTool;
        return Ok(Said::Asks(Ask { id, kind, tool_use_id: Some(tool_use_id), tool, input }));
    }
    let (Some(event), Some(data)) = (line.event, line.data) else {
        return Err("neither an event with its data, nor a receipt, nor idle".to_owned());
    };
    let mark = mark(&event, data.get())?;
    if event == kind::AGENT_FAILED {
        return Ok(Said::Failed { error: field::<Failed>(data.get())?.error });
    }
    bounds::event_data(data.get()).map_err(|error| error.to_string())?;
    let event_type = EventType::new(&event).map_err(|error| error.to_string())?;
    Ok(Said::Event(Told { event_type, data: data.to_owned(), mark, origin: Origin::Unsaid }))
}

#[derive(Deserialize)]
struct Tool {
    tool_use_id: String,
}

#[derive(Deserialize)]
struct Failed {
    error: String,
}

fn field<'a, T: Deserialize<'a>>(data: &'a str) -> Result<T, String> {
    serde_json::from_str(data).map_err(|error| format!("data: {error}"))
}

/// Only what this agent gives: files are the worker's to watch, and the sandbox's end is not the agent's to tell.
fn mark(event: &str, data: &str) -> Result<Mark, String> {
    if !data.starts_with('{') {
        return Err("data: must be an object".to_owned());
    }
    Ok(match event {
        kind::AGENT_STARTED => Mark::TurnBegins,
        kind::AGENT_COMPLETED | kind::AGENT_INTERRUPTED => Mark::TurnEnds,
        kind::AGENT_TOOL_USE => Mark::ToolBegins(field::<Tool>(data)?.tool_use_id),
        kind::AGENT_TOOL_COMPLETED => Mark::ToolEnds(field::<Tool>(data)?.tool_use_id),
        kind::APPROVAL_REQUESTED => Mark::Asks,
        kind::APPROVAL_RESOLVED => Mark::Answered,
        kind::AGENT_MESSAGE | kind::AGENT_MESSAGE_INJECTED | kind::AGENT_FAILED => Mark::Plain,
        other => return Err(format!("the demo agent has no event `{other}`")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::tests::message;
    use atoll_core::message::{Delivery, How};
    use serde_json::{Value, json};
    use std::path::Path;

    fn said(line: &str) -> Said {
        Demo.line(line.as_bytes()).pop().unwrap()
    }

    #[test]
    fn messages_become_lines() {
        let told = |message: &LeasedMessage, standing| -> Value {
            let line = Demo.tell(message, standing);
            assert_eq!(line.last(), Some(&b'\n'));
            serde_json::from_slice(&line).unwrap()
        };
        let mut it = message("go on", Delivery::Steer);
        assert_eq!(told(&it, Standing::Idle), json!({"prompt": {"id": it.id, "text": "go on"}}));
        assert_eq!(told(&it, Standing::InTurn), json!({"steer": {"id": it.id, "text": "go on"}}));
        it.message_type = MessageType::Interrupt;
        assert_eq!(told(&it, Standing::InTurn), json!({"interrupt": {"id": it.id, "text": "go on"}}));
    }

    #[test]
    fn lines_have_a_meaning() {
        let marked =
            |event: &str, data: Value| match said(&json!({"event": event, "turn": 1, "data": data}).to_string()) {
                Said::Event(told) => Ok(told.mark),
                Said::Unparsed { reason } => Err(reason),
                other => panic!("{other:?}"),
            };
        assert_eq!(marked("agent.started", json!({"turn": 1})), Ok(Mark::TurnBegins));
        assert_eq!(marked("agent.interrupted", json!({})), Ok(Mark::TurnEnds));
        assert_eq!(marked("agent.tool_use", json!({"tool_use_id": "t"})), Ok(Mark::ToolBegins("t".into())));
        assert_eq!(marked("agent.tool_completed", json!({"tool_use_id": "t"})), Ok(Mark::ToolEnds("t".into())));
        assert_eq!(marked("approval.requested", json!({})), Ok(Mark::Asks));
        assert!(marked("agent.tool_use", json!({})).unwrap_err().contains("tool_use_id"));
        assert!(marked("agent.shutdown", json!({})).unwrap_err().contains("no event"));
        assert!(marked("agent.message", json!([1])).unwrap_err().contains("object"));
        let large = "x".repeat(bounds::EVENT_DATA);
        assert!(marked("agent.message", json!({"text": large})).unwrap_err().contains("at most"));
    }

    #[test]
    fn receipts_failures_and_nonsense_are_told_apart() {
        let id = atoll_core::id::MessageId::new();
        let receipt = json!({"receipt": {"id": id, "how": "new_turn", "turn": 1}}).to_string();
        assert!(matches!(said(&receipt), Said::Receipt { id: it, how: How::NewTurn } if it == id));
        assert!(matches!(said(r#"{"idle":{"turn":1}}"#), Said::Idle));
        let failed = json!({"event": "agent.failed", "data": {"error": "no key"}}).to_string();
        assert!(matches!(said(&failed), Said::Failed { error } if error == "no key"));
        for nonsense in ["hello", "{}", "[]", "\u{1b}[31m", r#"{"receipt":{"id":"x"}}"#] {
            assert!(matches!(said(nonsense), Said::Unparsed { .. }), "{nonsense}");
        }
        assert!(matches!(&Demo.line(b"\xff\xfe")[..], [Said::Unparsed { reason }] if reason.starts_with("not UTF-8")));
    }

    #[test]
    fn it_is_the_worker_itself() {
        let settings = crate::heartbeat::Settings::default();
        let launch = Launch { turns: 3, ..Launch::plain(Path::new("/opt/atoll/worker"), &settings) };
        let command = Demo.command(&launch);
        assert_eq!(command.argv, ["/opt/atoll/worker", "demo", "3", "watched"]);
    }
}
