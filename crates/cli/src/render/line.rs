//! An event as one line.

use super::{style, text, time};
use crate::output::Output;
use crate::reading::entry::Entry;
use atoll_core::event::kind;
use serde_json::Value;

/// Where nothing says how wide the output is.
const SUMMARY: usize = 160;
/// What stands before the summary.
const BEFORE: usize = 67;

pub fn of(entry: &Entry, output: &Output) -> String {
    let turn = entry.turn.map(|turn| format!("t{turn}")).unwrap_or_default();
    let room = output.width.map_or(SUMMARY, |columns| columns.saturating_sub(BEFORE).max(24));
    let kind = text::clipped(&entry.event_type, 100);
    let line = format!(
        "{:>6}  {}  {}  {turn:<4} {}",
        entry.seq,
        output.paint(style::FAINT, &time::exact(&entry.at)),
        output.paint(style::of_type(&entry.event_type), &format!("{kind:<25}")),
        text::clip(&summary(entry, room), room),
    );
    line.trim_end().to_owned()
}

/// What an event comes down to, in one line.
pub fn summary(entry: &Entry, most: usize) -> String {
    let data = &entry.data;
    let short = |text: &str| text::clipped(text, most);
    match entry.event_type.as_str() {
        "agent.tool_use" => {
            let tool = text::clipped(entry.text("tool").unwrap_or("?"), 60);
            format!("{tool}: {}", short(&input(data)))
        }
        _ if entry.is_structure() => short(&parts(data)),
        kind::AGENT_TOOL_COMPLETED | kind::AGENT_USER_TOOL_RESULT => {
            let tool = text::clipped(entry.text("tool").unwrap_or("?"), 60);
            let verdict = if data["is_error"] == true { "failed" } else { "ok" };
            format!("{tool} {verdict}: {}", short(entry.text("output").unwrap_or_default()))
        }
        "agent.file_edited" => file_edited(entry, most),
        // Its turn stands in its own column.
        "agent.started" => String::new(),
        "message.queued" | "message.edited" => {
            let kind =
                if data["type"] == "interrupt" { "interrupt" } else { entry.text("delivery").unwrap_or_default() };
            format!("{} {}: {}", id(entry), short(kind), short(entry.text("content").unwrap_or_default()))
        }
        kind if kind.starts_with("message.") => {
            let how = [entry.text("how"), entry.text("reason")].into_iter().flatten().map(short).collect::<Vec<_>>();
            format!("{} {}", id(entry), how.join(", "))
        }
        "network.refused" => {
            let again = data["count"].as_u64().filter(|count| *count > 1).map(|count| format!(" ({count} times)"));
            short(&format!("{}{}", entry.text("detail").unwrap_or_default(), again.unwrap_or_default()))
        }
        "sandbox.notice" | "sandbox.disk_full" => short(entry.said().unwrap_or_default()),
        "git.cloned" => {
            let words = ["commit", "repo"].into_iter().filter_map(|field| entry.text(field)).collect::<Vec<_>>();
            let branch = entry.text("branch").map(|branch| format!(", branch {branch}")).unwrap_or_default();
            short(&format!("{}{branch}", words.join(" of ")))
        }
        "git.branch_created" => {
            let commits = data["commits"].as_i64().map(|commits| format!(", commits: {commits}")).unwrap_or_default();
            short(&format!("{}{commits}", entry.text("branch").unwrap_or("?")))
        }
        kind if kind.starts_with("sandbox.") => state(entry, most),
        kind if kind.starts_with("session.") => short(entry.text("title").unwrap_or_default()),
        _ => match entry.said().or(entry.text("reason")).or(entry.text("stop_reason")) {
            Some(said) => short(said),
            None => short(&compact(data)),
        },
    }
}

/// Of what an answer, or what the model gets back, is made.
fn parts(data: &Value) -> String {
    let list = |name: &str| data[name].as_array().into_iter().flatten();
    let part = |part: &Value| {
        let word = |field: &str| part[field].as_str().unwrap_or("?").to_owned();
        if part["type"] == "tool_use" { word("tool") } else { word("type") }
    };
    let result = |result: &Value| {
        let failed = if result["is_error"] == true { " failed" } else { "" };
        format!("{}{failed}", result["tool_use_id"].as_str().unwrap_or("?"))
    };
    list("content").map(part).chain(list("results").map(result)).collect::<Vec<_>>().join(", ")
}

fn id(entry: &Entry) -> String {
    text::clipped(entry.text("message_id").unwrap_or("?"), 40)
}

/// The state's outcome and reason.
pub fn state(entry: &Entry, most: usize) -> String {
    // What the type says already is not said again.
    let outcome = entry.text("outcome").filter(|outcome| !entry.event_type.ends_with(outcome));
    let outcome = outcome.map(|outcome| text::clipped(outcome, 40));
    let reason = &entry.data["reason"];
    let reason = reason["detail"].as_str().map(|detail| {
        let code = reason["code"].as_str().map(|code| format!(" ({})", text::clipped(code, 60))).unwrap_or_default();
        format!("{}{code}", text::clipped(detail, most))
    });
    [outcome, reason].into_iter().flatten().collect::<Vec<_>>().join(": ")
}

pub fn file_edited(entry: &Entry, most: usize) -> String {
    let number = |field: &str| entry.data[field].as_i64().unwrap_or(0);
    let change = text::clipped(entry.text("change_type").unwrap_or("changed"), 20);
    let path = text::clipped(entry.text("file_path").unwrap_or("?"), most);
    format!("{change} {path} (+{} -{})", number("lines_added"), number("lines_removed"))
}

/// What a tool was given: its one telling argument, or all of it. Not harmless yet.
pub fn input(data: &Value) -> String {
    let input = &data["input"];
    let telling = ["command", "file_path", "path", "pattern", "query", "url", "description", "prompt"];
    match telling.into_iter().find_map(|field| input[field].as_str()) {
        Some(text) => text.to_owned(),
        None => compact(input),
    }
}

/// Nothing where there is nothing.
fn compact(data: &Value) -> String {
    match data {
        Value::Null => String::new(),
        Value::Object(map) if map.is_empty() => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
