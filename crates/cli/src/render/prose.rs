//! An event as a paragraph: who did what, and under it what was said or came out.

use super::{continuous, line, style, text, time};
use crate::output::Output;
use crate::reading::entry::Entry;
use anstyle::Style;
use atoll_core::event::kind;

const HEAD: usize = 200;
/// Longer outputs are cut in the middle of nowhere; `atoll events --json` has all of it.
const BODY_LINES: usize = 60;

pub struct Paragraph {
    time: String,
    head: String,
    style: Style,
    body: String,
}

impl Paragraph {
    /// The lines as they are printed.
    pub fn lines(&self, output: &Output) -> Vec<String> {
        let time = output.paint(style::FAINT, &self.time);
        let mut lines = vec![format!("{time}  {}", output.paint(self.style, &self.head))];
        let mut body = self.body.lines();
        lines.extend(body.by_ref().take(BODY_LINES).map(|line| format!("    {line}").trim_end().to_owned()));
        let left = body.count();
        if left > 0 {
            lines.push(output.paint(style::FAINT, &format!("    … and {left} more lines")));
        }
        lines
    }
}

/// Nothing for what only machines need.
pub fn of(entry: &Entry) -> Option<Paragraph> {
    let (head, body) = told(entry)?;
    Some(Paragraph {
        time: time::exact(&entry.at).get(11..19).unwrap_or("        ").to_owned(),
        head: text::clipped(&head, HEAD),
        style: style::of_type(&entry.event_type),
        body: text::block(body.trim_end()),
    })
}

/// The head and the body, not harmless yet.
fn told(entry: &Entry) -> Option<(String, &str)> {
    let said = entry.said().unwrap_or_default();
    let word = |field: &str| entry.text(field).unwrap_or("?");
    let told = match entry.event_type.as_str() {
        "agent.heartbeat" | "agent.usage" | "agent.transcript" => return None,
        _ if entry.is_structure() => return None,
        "agent.transcript_failed" => {
            (format!("the agent's transcript could not be saved: {}", entry.text("error").unwrap_or_default()), "")
        }
        "agent.started" => (turn("the agent starts", entry), ""),
        kind::AGENT_MESSAGE | kind::AGENT_ASSISTANT_MESSAGE => ("the agent says:".to_owned(), said),
        "agent.thinking" => ("the agent thinks:".to_owned(), said),
        "agent.system_message" => ("the agent's system says:".to_owned(), said),
        "agent.tool_use" => (format!("→ {}: {}", word("tool"), line::input(&entry.data)), ""),
        kind::AGENT_TOOL_COMPLETED | kind::AGENT_USER_TOOL_RESULT => {
            let failed = if entry.data["is_error"] == true { " failed" } else { "" };
            (format!("← {}{failed}{}", word("tool"), exit(entry)), entry.text("output").unwrap_or_default())
        }
        "agent.file_edited" => {
            (format!("✎ {}", line::file_edited(entry, HEAD)), entry.text("diff_preview").unwrap_or_default())
        }
        "agent.waiting" => ("the agent waits for a message".to_owned(), ""),
        "agent.message_injected" => (format!("the agent hears {}:", word("message_id")), said),
        "agent.interrupted" => (turn("the agent was interrupted", entry), said),
        "agent.completed" => (turn("the agent is done", entry), ""),
        "agent.failed" => (format!("the agent failed ({})", word("reason")), said),
        "agent.error" | "agent.stream_error" => ("an error of the agent:".to_owned(), said),
        "agent.shutdown" => ("the agent has shut down".to_owned(), ""),
        "agent.subagent_invoked" | "agent.subagent_completed" | "agent.skill_invoked" | "agent.skill_completed" => {
            (entry.event_type.replace("agent.", "").replace('_', " "), said)
        }
        "approval.requested" => (format!("the agent asks ({}):", word("approval_id")), said),
        "approval.resolved" => (format!("answered ({}): {}", word("approval_id"), word("decision")), reason(entry)),
        "message.queued" => (format!("{} sends {}{}:", who(entry), word("message_id"), manner(entry)), said),
        "message.edited" => (format!("{} changes {}{}:", who(entry), word("message_id"), manner(entry)), said),
        "message.acknowledged" => (format!("{} reached the agent ({})", word("message_id"), word("how")), ""),
        "message.cancelled" => (format!("{} was taken back", word("message_id")), ""),
        "message.undeliverable" => (format!("{} can't be delivered", word("message_id")), reason(entry)),
        "message.delivered_unconfirmed" => {
            (format!("{} was handed over, but nobody confirms it", word("message_id")), reason(entry))
        }
        "sandbox.notice" | "sandbox.disk_full" => ("to know:".to_owned(), said),
        "git.cloned" => (format!("the workspace is at {}", line::summary(entry, HEAD)), ""),
        "git.branch_created" => (format!("the work is on branch {}", line::summary(entry, HEAD)), ""),
        "git.nothing_changed" => ("nothing was changed: there is no branch".to_owned(), ""),
        kind if kind.starts_with("sandbox.") => {
            let state = kind.trim_start_matches("sandbox.");
            let verb = if matches!(state, "completed" | "failed") { "has" } else { "is" };
            let detail = line::state(entry, HEAD);
            let detail = if detail.is_empty() { detail } else { format!(": {detail}") };
            (format!("the sandbox {verb} {state}{detail}"), "")
        }
        kind if kind.starts_with("session.") => (
            format!("session {}: {}", kind.trim_start_matches("session."), entry.text("title").unwrap_or_default()),
            "",
        ),
        kind if kind.starts_with("continuous.") => {
            (continuous::words(entry)?, entry.text("output").unwrap_or_default())
        }
        kind => (format!("{kind} {}", line::summary(entry, HEAD)), ""),
    };
    Some(told)
}

fn turn(what: &str, entry: &Entry) -> String {
    entry.turn.map_or_else(|| what.to_owned(), |turn| format!("{what} (turn {turn})"))
}

fn who(entry: &Entry) -> &str {
    entry.actor.as_deref().unwrap_or("somebody")
}

fn reason(entry: &Entry) -> &str {
    entry.text("reason").unwrap_or_default()
}

fn manner(entry: &Entry) -> &'static str {
    match (entry.text("type"), entry.text("delivery")) {
        (Some("interrupt"), _) => " as an interrupt",
        (_, Some("queue")) => " for after the turn",
        _ => "",
    }
}

fn exit(entry: &Entry) -> String {
    let code = entry.data["exit"]["code"].as_i64().filter(|code| *code != 0);
    code.map(|code| format!(" with exit code {code}")).unwrap_or_default()
}
