//! Renders an event as a paragraph: a headline, and a body with text or output.

use super::approval::{ApprovalRequest, describe_answer, describe_resolution};
use super::plain_value::{describe_output, describe_value};
use super::setup_lines::{self, SetupLineKind};
use super::tool_input::describe_input;
use super::{continuous, event_line, fact, style, text, time};
use crate::event_log::log_event::LogEvent;
use crate::event_log::whole_text::TruncatedText;
use crate::output::Output;
use anstyle::Style;
use atoll_api::events::{EventData, MessageContent};
use atoll_core::message::{Delivery, MessageType};
use atoll_core::provider::CommandExit;

const MAX_HEAD_CHARS: usize = 200;
/// Longer bodies are cut; `atoll logs --full` prints all of it.
pub const MAX_BODY_LINES: usize = 60;

pub struct Paragraph {
    time: String,
    head: String,
    style: Style,
    body: String,
    /// How to get the whole of a truncated text.
    mark: Option<String>,
}

impl Paragraph {
    /// The lines to print, with at most `most` lines of the body.
    pub fn lines(&self, output: &Output, most: usize) -> Vec<String> {
        let time = output.apply_style(style::FAINT, &self.time);
        let mut lines = vec![format!("{time}  {}", output.apply_style(self.style, &self.head))];
        let mut body = self.body.lines();
        lines.extend(body.by_ref().take(most).map(|line| format!("    {line}").trim_end().to_owned()));
        let left = body.count();
        if left > 0 {
            lines.push(output.apply_style(style::FAINT, &format!("    … and {left} more lines")));
        }
        lines.extend(self.mark.as_ref().map(|mark| output.apply_style(style::FAINT, &format!("    … {mark}"))));
        lines
    }
}

/// The paragraph of an event; `None` for events that only programs need.
pub fn describe_event(event: &LogEvent) -> Option<Paragraph> {
    let (head, body) = head_and_body(event)?;
    Some(Paragraph {
        time: time::format_time(event.event.at).get(11..19).unwrap_or("        ").to_owned(),
        head: text::escape_clipped(&head, MAX_HEAD_CHARS),
        style: style::event_style(event.event_type()),
        body: text::escape_block(body.trim_end()),
        mark: describe_mark(event),
    })
}

/// Says how to get the rest of a text that the paragraph shows in part.
fn describe_mark(event: &LogEvent) -> Option<String> {
    let sandbox = event.event.sandbox_id;
    match (&event.data, TruncatedText::of(&event.data)) {
        (_, Some(text)) => Some(text.describe(sandbox)),
        (EventData::AgentFileEdited(edit), None)
            if edit.full_diff.as_ref().is_some_and(|diff| diff.len() > edit.diff_preview.len()) =>
        {
            Some(format!("print the whole diff with `atoll logs {sandbox} --full`"))
        }
        _ => None,
    }
}

/// The headline and the body, not escaped.
fn head_and_body(event: &LogEvent) -> Option<(String, String)> {
    let body = event.text().unwrap_or_default();
    let head_only = |head: String| (head, String::new());
    Some(match &event.data {
        _ if event.is_for_programs() => return None,
        // The events of each part have their own paragraphs.
        EventData::AgentAssistantMessage(_) | EventData::AgentUserToolResult(_) => return None,
        EventData::AgentStarted(_) => head_only(with_turn("the agent starts", event)),
        EventData::AgentMessage(_) => ("the agent says:".to_owned(), body),
        EventData::AgentThinking(_) => ("the agent thinks:".to_owned(), body),
        EventData::AgentSystemMessage(_) => ("the agent's system message:".to_owned(), body),
        EventData::AgentToolUse(call) if call.input_blob.is_some() && !call.truncated => {
            (format!("→ {}:", call.tool), describe_value(&call.input))
        }
        EventData::AgentToolUse(call) => head_only(format!("→ {}: {}", call.tool, describe_input(&call.input))),
        EventData::AgentToolCompleted(call) => {
            let failed = if call.is_error { " failed" } else { "" };
            (format!("← {}{failed}{}", call.tool, exit_suffix(call.exit)), describe_output(&call.output))
        }
        EventData::AgentFileEdited(edit) => {
            (format!("✎ {}", event_line::describe_edit(edit, MAX_HEAD_CHARS)), edit.diff_preview.clone())
        }
        EventData::AgentWaiting(_) => head_only("the agent waits for a message".to_owned()),
        EventData::AgentMessageInjected(message) => (format!("the agent gets {}:", message.message_id), body),
        EventData::AgentInterrupted(_) => (with_turn("the agent was interrupted", event), body),
        EventData::AgentCompleted(_) => head_only(with_turn("the agent is done", event)),
        EventData::AgentFailed(failure) => (format!("the agent failed ({})", failure.reason), body),
        EventData::AgentError(_) | EventData::AgentStreamError(_) => ("the agent reports an error:".to_owned(), body),
        EventData::AgentShutdown(_) => head_only("the agent has shut down".to_owned()),
        EventData::ApprovalRequested(approval) => {
            (format!("the agent asks ({}):", approval.approval_id), ApprovalRequest::from(approval).describe())
        }
        EventData::ApprovalAnswered(approval) => {
            let answer = describe_answer(approval);
            let (first, rest) = answer.split_once('\n').unwrap_or((&answer, ""));
            (format!("{} decides ({}): {first}", actor_name(event), approval.approval_id), rest.to_owned())
        }
        EventData::ApprovalResolved(approval) => head_only(format!(
            "the agent has the decision ({}): {}",
            approval.approval_id,
            describe_resolution(approval)
        )),
        EventData::MessageQueued(message) => {
            (format!("{} sends {}{}:", actor_name(event), message.message_id, delivery_suffix(message)), body)
        }
        EventData::MessageEdited(message) => {
            (format!("{} edits {}{}:", actor_name(event), message.message_id, delivery_suffix(message)), body)
        }
        EventData::MessageAcknowledged(message) => {
            let how = message.how.map_or("unknown", |how| how.as_str());
            head_only(format!("{} reached the agent ({how})", message.message_id))
        }
        EventData::MessageCancelled(message) => head_only(format!("{} was cancelled", message.message_id)),
        EventData::MessageUndeliverable(message) => {
            (format!("{} is undeliverable", message.message_id), message.reason.clone().unwrap_or_default())
        }
        EventData::MessageDeliveredUnconfirmed(message) => (
            format!("{} was delivered, but not confirmed", message.message_id),
            message.reason.clone().unwrap_or_default(),
        ),
        EventData::SandboxNotice(_) | EventData::SandboxDiskFull(_) => ("notice:".to_owned(), body),
        EventData::GitCloned(_) => {
            head_only(format!("the workspace is at {}", event_line::summarize_event(event, MAX_HEAD_CHARS)))
        }
        EventData::GitBranchCreated(_) => {
            head_only(format!("the results are on branch {}", event_line::summarize_event(event, MAX_HEAD_CHARS)))
        }
        EventData::GitNothingChanged(_) => head_only("nothing changed: there is no branch".to_owned()),
        EventData::SandboxCreating(change)
        | EventData::SandboxRunning(change)
        | EventData::SandboxCompleting(change)
        | EventData::SandboxCompleted(change)
        | EventData::SandboxFailed(change) => {
            let verb = if event.is_sandbox_end() { "has" } else { "is" };
            let detail = event_line::describe_state(change, MAX_HEAD_CHARS);
            let detail = if detail.is_empty() { detail } else { format!(": {detail}") };
            head_only(format!("the sandbox {verb} {}{detail}", change.state))
        }
        EventData::SandboxPending(_) => head_only("the sandbox is pending".to_owned()),
        EventData::SandboxPaused(_) => head_only("the sandbox is paused".to_owned()),
        EventData::SandboxResumed(_) => head_only("the sandbox is resumed".to_owned()),
        EventData::SandboxSnapshot(snapshot) => head_only(format!("snapshot {} was created", snapshot.name)),
        EventData::SessionOpened(_)
        | EventData::SessionResumed(_)
        | EventData::SessionChanged(_)
        | EventData::SessionClosed(_) => head_only(format!(
            "session {}: {}",
            event.event_type().trim_start_matches("session."),
            event_line::summarize_event(event, MAX_HEAD_CHARS)
        )),
        data if event.event_type().starts_with("continuous.") => {
            let output = match data {
                EventData::ContinuousCheck(check) => check.check.output.clone(),
                _ => String::new(),
            };
            (continuous::describe_step(data)?, output)
        }
        data if event.event_type().starts_with("setup.") => {
            let line = setup_lines::describe_setup(data)?;
            match line.kind {
                SetupLineKind::Output => ("set-up prints:".to_owned(), line.body),
                SetupLineKind::Note | SetupLineKind::Done | SetupLineKind::Failed => {
                    let remedy = line.remedy.map(|remedy| format!("\n{remedy}")).unwrap_or_default();
                    (line.head, line.body + &remedy)
                }
            }
        }
        _ => {
            let fact = fact::describe_fact(event)?;
            (fact.head, fact.body)
        }
    })
}

fn with_turn(what: &str, event: &LogEvent) -> String {
    event.event.turn.map_or_else(|| what.to_owned(), |turn| format!("{what} (turn {turn})"))
}

fn actor_name(event: &LogEvent) -> &str {
    event.event.actor.as_deref().unwrap_or("the server")
}

const fn delivery_suffix(message: &MessageContent) -> &'static str {
    match (message.message_type, message.delivery) {
        (MessageType::Interrupt, _) => " as an interrupt",
        (_, Delivery::Queue) => " for after the turn",
        (_, Delivery::Steer) => "",
    }
}

fn exit_suffix(exit: Option<CommandExit>) -> String {
    match exit {
        Some(CommandExit::Exited { code }) if code != 0 => format!(" with exit code {code}"),
        _ => String::new(),
    }
}
