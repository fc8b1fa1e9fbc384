//! Rendered events contain no control characters, even from a hostile log.

use super::{event_line, event_paragraph};
use crate::event_log::log_event::LogEvent;
use crate::event_log::log_event::testing::event;
use crate::output::Output;
use atoll_api::events::EXAMPLES;
use proptest::prelude::*;
use serde_json::{Value, json};

const MESSAGE: &str = "msg_01k9z6m3q8e5t7v2x4y6a8b0c1";
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

fn render_both(event: &LogEvent) -> (String, String) {
    let output = Output::new(false);
    let prose = event_paragraph::describe_event(event)
        .map(|paragraph| paragraph.lines(&output, event_paragraph::MAX_BODY_LINES).join("\n"))
        .unwrap_or_default();
    (event_line::format_event(event, &output), prose)
}

fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), Just("\x1b]0;x\x07\u{9b}31m\r\n\x08".to_owned()), "[\\x00-\\x1f\\x7f-\\x9f]{0,20}"]
}

proptest! {
    #[test]
    fn output_has_no_control_characters(at in 0..TYPES.len(), text in hostile(), other in hostile()) {
        let data = json!({
            "text": text, "content": other, "tool": other, "output": text, "input": {"command": text},
            "file_path": other, "change_type": text, "diff_preview": text, "message_id": other, "how": text,
            "reason": if at % 2 == 0 { json!(other) } else { json!({"code": text, "detail": other}) },
            "outcome": text, "state": other, "commit": text, "repo": other, "branch": text, "title": text, "decision": other, "approval_id": text, "delivery": other,
            "results": [{"tool_use_id": text}],
        });
        let mut event = event(TYPES[at], Some(2), &data);
        event.event.actor = Some(text);
        let (line, prose) = render_both(&event);
        prop_assert!(!line.chars().any(char::is_control), "{line:?}");
        prop_assert!(!prose.chars().any(|c| c.is_control() && c != '\n'), "{prose:?}");
    }

    #[test]
    fn renders_any_data(at in 0..TYPES.len(), text in any::<String>()) {
        for data in [Value::Null, json!(text), json!([text]), json!({ "reason": [1], "input": text, "tool": {} })] {
            render_both(&event(TYPES[at], Some(2), &data));
        }
    }
}

#[test]
fn the_readable_log_has_no_json_and_no_event_names() {
    for (event_type, data) in EXAMPLES {
        let data: Value = serde_json::from_str(data).unwrap();
        let (_, prose) = render_both(&event(event_type, Some(2), &data));
        assert!(
            !prose.contains("{\"") && !prose.contains("[\"") && !prose.contains(event_type),
            "{event_type}: {prose}"
        );
    }
    let custom = event("build.was_done", None, &json!({"status": "ok", "tests": [1, 2]}));
    assert!(render_both(&custom).1.ends_with("build was done: status: ok, tests: 1, 2"), "{}", render_both(&custom).1);
}

#[test]
fn renders_a_short_run() {
    let story = [
        ("sandbox.running", json!({"state": "running", "outcome": null, "reason": null})),
        (
            "message.queued",
            json!({"message_id": MESSAGE, "type": "user_message", "delivery": "steer", "position": 1, "content": "hi\nyou",
                   "content_bytes": 6}),
        ),
        ("message.acknowledged", json!({"message_id": MESSAGE, "state": "acknowledged", "how": "new_turn"})),
        ("agent.started", json!({"turn": 2})),
        ("agent.tool_use", json!({"tool": "Bash", "input": {"command": "echo hi"}})),
        (
            "agent.tool_completed",
            json!({"tool": "Bash", "output": "hi\nthere\n", "is_error": true, "exit": {"kind": "exited", "code": 3}}),
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
        ("sandbox.notice", json!({"text": "disk: monitored only (no quota on this file system)"})),
        ("git.cloned", json!({"commit": "1a2b3c", "repo": "/src/x", "branch": "atoll/fix", "uncommitted": 0})),
        (
            "git.branch_created",
            json!({"branch": "atoll/fix", "commit": "9f", "base": "1a2b3c", "commits": 2, "files": [], "flagged": [], "notes": []}),
        ),
        ("git.nothing_changed", json!({"base": "1a2b3c"})),
        (
            "sandbox.failed",
            json!({"state": "failed", "outcome": "failed", "reason": {"code": "agent_failed", "detail": "gave up"}}),
        ),
        ("custom.thing", json!({"a": 1})),
    ];
    let (lines, prose): (Vec<_>, Vec<_>) =
        story.into_iter().map(|(kind, data)| render_both(&event(kind, Some(2), &data))).unzip();
    insta::assert_snapshot!("lines", lines.join("\n"));
    insta::assert_snapshot!("prose", prose.join("\n"));
}
