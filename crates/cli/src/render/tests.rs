//! Whatever stands in a log, what is shown of it is harmless.

use super::{line, prose};
use crate::output::Output;
use crate::reading::entry::Entry;
use proptest::prelude::*;
use serde_json::{Value, json};

const TYPES: &[&str] = &[
    "agent.started",
    "agent.message",
    "agent.tool_use",
    "agent.tool_completed",
    "agent.assistant_message",
    "agent.user_tool_result",
    "agent.file_edited",
    "agent.failed",
    "agent.interrupted",
    "approval.requested",
    "approval.resolved",
    "message.queued",
    "message.acknowledged",
    "message.undeliverable",
    "sandbox.failed",
    "sandbox.notice",
    "sandbox.disk_full",
    "git.cloned",
    "git.branch_created",
    "session.opened",
    "something.else",
];

fn entry(event_type: &str, data: Value) -> Entry {
    let event = json!({
        "seq": 7, "type": event_type, "source": "agent", "at": "2026-01-31T12:00:00.123456Z", "turn": 2,
        "actor": "user:usr_1", "data": data,
    });
    Entry::parse(&event.to_string()).unwrap()
}

fn shown(entry: &Entry) -> (String, String) {
    let output = Output::new(false);
    let prose = prose::of(entry).map(|paragraph| paragraph.lines(&output).join("\n")).unwrap_or_default();
    (line::of(entry, &output), prose)
}

fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), Just("\x1b]0;x\x07\u{9b}31m\r\n\x08".to_owned()), "[\\x00-\\x1f\\x7f-\\x9f]{0,20}"]
}

proptest! {
    #[test]
    fn nothing_a_terminal_obeys(at in 0..TYPES.len(), text in hostile(), other in hostile(), time in hostile()) {
        let data = json!({
            "text": text, "content": other, "tool": other, "output": text, "input": {"command": text},
            "file_path": other, "change_type": text, "diff_preview": text, "message_id": other, "how": text,
            "reason": if at % 2 == 0 { json!(other) } else { json!({"code": text, "detail": other}) },
            "outcome": text, "commit": text, "repo": other, "branch": text, "title": text, "decision": other, "approval_id": text, "delivery": other,
            "results": [{"tool_use_id": text}],
        });
        let mut entry = entry(TYPES[at], data);
        entry.actor = Some(text);
        entry.at = time;
        let (line, prose) = shown(&entry);
        prop_assert!(!line.chars().any(char::is_control), "{line:?}");
        prop_assert!(!prose.chars().any(|c| c.is_control() && c != '\n'), "{prose:?}");
    }

    #[test]
    fn any_data_can_be_shown(at in 0..TYPES.len(), text in any::<String>()) {
        for data in [Value::Null, json!(text), json!([text]), json!({ "reason": [1], "input": text, "tool": {} })] {
            shown(&entry(TYPES[at], data));
        }
    }
}

#[test]
fn a_short_story() {
    let story = [
        ("sandbox.running", json!({"state": "running", "outcome": null, "reason": null})),
        (
            "message.queued",
            json!({"message_id": "msg_1", "type": "user_message", "delivery": "steer", "content": "hi\nyou"}),
        ),
        ("message.acknowledged", json!({"message_id": "msg_1", "state": "acknowledged", "how": "new_turn"})),
        ("agent.started", json!({"turn": 2})),
        ("agent.tool_use", json!({"tool": "Bash", "input": {"command": "echo hi"}})),
        (
            "agent.tool_completed",
            json!({"tool": "Bash", "output": "hi\nthere\n", "is_error": true, "exit": {"code": 3}}),
        ),
        (
            "agent.file_edited",
            json!({
                "file_path": "a.txt", "change_type": "created", "lines_added": 1, "lines_removed": 0, "diff_preview": "+x\n",
            }),
        ),
        ("agent.message", json!({"text": "done"})),
        (
            "agent.assistant_message",
            json!({"content": [{"type": "text", "characters": 4}, {"type": "tool_use", "tool_use_id": "t1", "tool": "Bash"}]}),
        ),
        ("agent.user_tool_result", json!({"results": [{"tool_use_id": "t1", "is_error": true}]})),
        ("agent.assistant_message", json!({"text": "in its own words"})),
        ("agent.user_tool_result", json!({"tool": "Bash", "output": "in its own words"})),
        ("agent.usage", json!({"tokens": 3})),
        ("sandbox.notice", json!({"text": "not limited on this machine: disk space"})),
        ("git.cloned", json!({"commit": "1a2b3c", "repo": "/src/x", "branch": "atoll/fix", "uncommitted": 0})),
        ("git.branch_created", json!({"branch": "atoll/fix", "commits": 2, "files": []})),
        ("git.nothing_changed", json!({"base": "1a2b3c"})),
        ("sandbox.failed", json!({"outcome": "failed", "reason": {"code": "agent_failed", "detail": "gave up"}})),
        ("custom.thing", json!({"a": 1})),
    ];
    let (lines, prose): (Vec<_>, Vec<_>) = story.into_iter().map(|(kind, data)| shown(&entry(kind, data))).unzip();
    insta::assert_snapshot!("lines", lines.join("\n"));
    insta::assert_snapshot!("prose", prose.join("\n"));
}
