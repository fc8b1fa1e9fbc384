//! Renders an event as one line.

use super::plain_value::{describe_output, describe_value};
use super::tool_input::describe_input;
use super::{approval, fact, patch, setup_lines, style, text, time};
use crate::event_log::log_event::LogEvent;
use crate::output::Output;
use atoll_api::events::{AssistantPart, EventData, FileEdited, MessageContent, SandboxTransition};
use atoll_core::message::MessageType;

/// The width of the summary if stdout is not a terminal.
const DEFAULT_SUMMARY_WIDTH: usize = 160;
/// The columns before the summary.
const PREFIX_WIDTH: usize = 67;

pub fn format_event(event: &LogEvent, output: &Output) -> String {
    let turn = event.event.turn.map(|turn| format!("t{turn}")).unwrap_or_default();
    let room = output.width.map_or(DEFAULT_SUMMARY_WIDTH, |columns| columns.saturating_sub(PREFIX_WIDTH).max(24));
    let kind = text::escape_clipped(event.event_type(), 100);
    let line = format!(
        "{:>6}  {}  {}  {turn:<4} {}",
        event.event.seq,
        output.apply_style(style::FAINT, &time::format_time(event.event.at)),
        output.apply_style(style::event_style(event.event_type()), &format!("{kind:<25}")),
        text::clip_text(&summarize_event(event, room), room),
    );
    line.trim_end().to_owned()
}

/// Summarises an event in one escaped line.
pub fn summarize_event(event: &LogEvent, most: usize) -> String {
    let short = |text: &str| text::escape_clipped(text, most);
    match &event.data {
        EventData::AgentToolUse(call) => {
            format!("{}: {}", text::escape_clipped(&call.tool, 60), short(&describe_input(&call.input)))
        }
        EventData::AgentAssistantMessage(message) => {
            let part = |part: &AssistantPart| match part {
                AssistantPart::Text { .. } => "text".to_owned(),
                AssistantPart::Thinking { .. } => "thinking".to_owned(),
                AssistantPart::ToolUse { tool, .. } => tool.clone().unwrap_or_else(|| "?".to_owned()),
            };
            short(&message.content.iter().map(part).collect::<Vec<_>>().join(", "))
        }
        EventData::AgentUserToolResult(message) => {
            let results = message.results.iter().map(|result| {
                let failed = if result.is_error { " failed" } else { "" };
                format!("{}{failed}", result.tool_use_id.as_deref().unwrap_or("?"))
            });
            short(&results.collect::<Vec<_>>().join(", "))
        }
        EventData::AgentToolCompleted(call) => {
            let verdict = if call.is_error { "failed" } else { "ok" };
            format!("{} {verdict}: {}", text::escape_clipped(&call.tool, 60), short(&describe_output(&call.output)))
        }
        EventData::AgentFileEdited(edit) => describe_edit(edit, most),
        // The turn has its own column.
        EventData::AgentStarted(_) => String::new(),
        EventData::AgentCompleted(turn) => short(turn.stop_reason.as_deref().unwrap_or_default()),
        EventData::AgentShutdown(shutdown) => short(&shutdown.reason),
        EventData::MessageQueued(message) | EventData::MessageEdited(message) => {
            format!("{} {}: {}", message.message_id, delivery_word(message), short(&message.content))
        }
        EventData::MessageAcknowledged(message)
        | EventData::MessageCancelled(message)
        | EventData::MessageUndeliverable(message)
        | EventData::MessageDeliveredUnconfirmed(message) => {
            let how = [message.how.map(|how| how.to_string()), message.reason.as_deref().map(short)];
            format!("{} {}", message.message_id, how.into_iter().flatten().collect::<Vec<_>>().join(", "))
        }
        EventData::NetworkRefused(refusal) if refusal.count > 1 => {
            short(&format!("{} ({} times)", refusal.detail, refusal.count))
        }
        EventData::GitCloned(clone) => {
            let parts = [&clone.commit, &clone.repo].into_iter().flatten().cloned().collect::<Vec<_>>();
            let branch = clone.branch.as_ref().map(|branch| format!(", branch {branch}")).unwrap_or_default();
            short(&format!("{}{branch}", parts.join(" of ")))
        }
        EventData::GitBranchCreated(branch) => {
            let commits =
                if branch.commits == 1 { "1 commit".to_owned() } else { format!("{} commits", branch.commits) };
            short(&format!("{} ({commits})", branch.branch))
        }
        EventData::ApprovalRequested(request) => {
            short(&approval::ApprovalRequest::from(request).describe_with_tool().replace('\n', "; "))
        }
        EventData::ApprovalResolved(resolved) => short(&approval::describe_resolution(resolved)),
        EventData::SandboxCreating(change)
        | EventData::SandboxRunning(change)
        | EventData::SandboxCompleting(change)
        | EventData::SandboxCompleted(change)
        | EventData::SandboxFailed(change) => describe_state(change, most),
        EventData::SandboxPending(_) | EventData::SandboxPaused(_) | EventData::SandboxResumed(_) => String::new(),
        EventData::SandboxSnapshot(snapshot) => short(&snapshot.name),
        data if event.event_type().starts_with("setup.") => {
            let line =
                setup_lines::describe_setup(data).map(|line| if line.head.is_empty() { line.body } else { line.head });
            short(line.unwrap_or_default().trim())
        }
        EventData::SessionOpened(session) => short(&session.title),
        EventData::SessionResumed(session) => short(&session.title),
        EventData::SessionChanged(session) | EventData::SessionClosed(session) => short(&session.title),
        _ => match (event.text(), fact::describe_fact(event)) {
            (Some(text), _) => short(&text),
            // The event's type has its own column.
            (None, Some(fact)) if !matches!(event.data, EventData::Unknown { .. }) => {
                short(format!("{} {}", fact.head, fact.body).trim_end())
            }
            (None, _) => short(&describe_data(event)),
        },
    }
}

fn describe_data(event: &LogEvent) -> String {
    serde_json::from_str(event.event.data.get()).map_or_else(|_| String::new(), |data| describe_value(&data))
}

fn delivery_word(message: &MessageContent) -> &'static str {
    match message.message_type {
        MessageType::Interrupt => MessageType::Interrupt.as_str(),
        _ => message.delivery.as_str(),
    }
}

/// The outcome and reason of a state; omits an outcome that equals the state.
pub fn describe_state(change: &SandboxTransition, most: usize) -> String {
    let outcome = change.outcome.map(|outcome| outcome.to_string()).filter(|word| *word != change.state.as_str());
    let reason = change.reason.as_ref().map(|reason| {
        format!("{} ({})", text::escape_clipped(&reason.detail, most), text::escape_clipped(&reason.code, 60))
    });
    [outcome, reason].into_iter().flatten().collect::<Vec<_>>().join(": ")
}

pub fn describe_edit(edit: &FileEdited, most: usize) -> String {
    let path = text::escape_clipped(&edit.file_path, most);
    format!("{} {path} (+{} -{})", patch::change_word(edit.change_type), edit.lines_added, edit.lines_removed)
}
