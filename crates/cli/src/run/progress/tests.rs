//! The steps and the state of a whole run.

use super::*;
use crate::event_log::log_event::testing::event_at as event_at_time;
use atoll_api::events::EXAMPLES;
use proptest::prelude::*;
use serde_json::{Value, json};

const FIRST: &str = "msg_01k9z6m3q8e5t7v2x4y6a8b0c1";
const SECOND: &str = "msg_01k9z6m3q8e5t7v2x4y6a8b0c2";
const INTERRUPT: &str = "msg_01k9z6m3q8e5t7v2x4y6a8b0c3";
const SESSION: &str = "ses_01k9z6m3q8e5t7v2x4y6a8b0c4";

fn event_at(seconds: u32, event_type: &str, turn: Option<i64>, data: Value) -> LogEvent {
    event_at_time(&format!("2026-01-31T12:00:{seconds:02}.000000Z"), event_type, turn, &data)
}

/// The events of an ordinary run with a repository, with some failures.
fn ordinary_run() -> Vec<LogEvent> {
    let message = |id: &str, message_type: &str, content: &str| {
        json!({"message_id": id, "type": message_type, "delivery": "steer", "position": 1, "content": content,
               "content_bytes": content.len()})
    };
    let outcome = |id: &str, how: &str| json!({"message_id": id, "state": "acknowledged", "how": how, "reason": null});
    let edited = |path: &str, change: &str, added: i64, removed: i64, call: Option<&str>| {
        json!({"file_path": path, "change_type": change, "lines_added": added, "lines_removed": removed,
               "diff_preview": "", "tool_use_id": call})
    };
    vec![
        event_at(0, "session.opened", None, json!({"session_id": SESSION, "title": "fix the parser"})),
        event_at(0, "sandbox.pending", None, json!({"state": "pending"})),
        event_at(0, "message.queued", None, message(FIRST, "user_message", "fix the parser\nand its tests")),
        event_at(0, "sandbox.creating", None, json!({"state": "creating"})),
        event_at(
            0,
            "git.cloned",
            None,
            json!({"commit": "1a2b3c4d5e6f", "branch": "main", "repo": "/src/x", "uncommitted": 3}),
        ),
        event_at(0, "sandbox.notice", None, json!({"text": "disk: monitored only (no quota on this file system)"})),
        event_at(1, "sandbox.running", None, json!({"state": "running"})),
        event_at(1, "agent.started", Some(1), json!({"turn": 1, "message_id": FIRST})),
        event_at(1, "message.acknowledged", Some(1), outcome(FIRST, "new_turn")),
        event_at(1, "agent.message", Some(1), json!({"text": "I look at it first."})),
        event_at(
            2,
            "agent.tool_use",
            Some(1),
            json!({"tool": "Bash", "tool_use_id": "t1", "input": {"command": "cargo test"}}),
        ),
        event_at(
            14,
            "agent.tool_completed",
            Some(1),
            json!({"tool": "Bash", "tool_use_id": "t1", "is_error": true, "exit": {"kind": "exited", "code": 101},
                   "output": "1\n2\n3\n4\n5\ntest \u{1b}[31mfailed\n"}),
        ),
        event_at(
            15,
            "agent.tool_use",
            Some(1),
            json!({"tool": "Write", "tool_use_id": "t2", "input": {"file_path": "src/a.rs"}}),
        ),
        event_at(15, "agent.file_edited", Some(1), edited("src/a.rs", "modified", 12, 3, Some("t2"))),
        event_at(
            15,
            "agent.tool_completed",
            Some(1),
            json!({"tool": "Write", "tool_use_id": "t2", "output": "wrote", "is_error": false}),
        ),
        event_at(16, "agent.file_edited", Some(1), edited("NOTES.md", "created", 3, 0, None)),
        event_at(17, "message.queued", None, message(SECOND, "user_message", "leave the tests alone")),
        event_at(17, "agent.message_injected", Some(1), json!({"message_id": SECOND, "text": "leave the tests alone"})),
        event_at(17, "message.acknowledged", Some(1), outcome(SECOND, "injected")),
        event_at(18, "approval.requested", Some(1), json!({"approval_id": "a", "text": "may I push?"})),
        event_at(
            19,
            "approval.resolved",
            Some(1),
            json!({"approval_id": "a", "decision": "deny", "reason": "not yet"}),
        ),
        event_at(20, "message.queued", None, message(INTERRUPT, "interrupt", "stop")),
        event_at(20, "message.acknowledged", Some(1), outcome(INTERRUPT, "injected")),
        event_at(20, "agent.interrupted", Some(1), json!({"turn": 1})),
        event_at(21, "agent.started", Some(2), json!({"turn": 2})),
        event_at(22, "agent.unparsed", Some(2), json!({"excerpt": "\u{7}garbage", "reason": "not JSON", "bytes": 8})),
        event_at(23, "custom.thing", Some(2), json!({"a": 1})),
        event_at(24, "agent.completed", Some(2), json!({"stop_reason": "max_tokens"})),
        event_at(24, "sandbox.completing", None, json!({"state": "completing"})),
        event_at(24, "agent.waiting", Some(2), json!({})),
        event_at(
            25,
            "git.branch_created",
            None,
            json!({"branch": "atoll/fix-the-parser", "commit": "9f", "base": "1a2b3c4d5e6f", "commits": 2, "repo": "/src/x",
                   "files": [{"path": "src/a.rs", "change": "modified", "added": 12, "removed": 3}],
                   "flagged": [], "notes": []}),
        ),
        event_at(25, "sandbox.completed", None, json!({"state": "completed", "outcome": "succeeded", "reason": null})),
    ]
}

fn steps_text(steps: &[ViewStep], columns: Option<usize>) -> String {
    let lines = steps.iter().flat_map(|step| step.lines(columns));
    lines.map(|line| line.to_ansi(false)).collect::<Vec<_>>().join("\n")
}

#[test]
fn renders_a_run() {
    let mut progress = RunProgress::new(AnswerMode::ByMessage("type approve, or deny and a reason".into()));
    let steps: Vec<ViewStep> = ordinary_run().iter().flat_map(|event| progress.apply(event)).collect();
    insta::assert_snapshot!("wide", steps_text(&steps, Some(80)));
    insta::assert_snapshot!("narrow", steps_text(&steps, Some(32)));
    insta::assert_snapshot!("pipe", steps_text(&steps, None));
}

#[test]
fn a_run_shows_no_json_and_no_event_names() {
    for (event_type, data) in EXAMPLES {
        let data = serde_json::from_str(data).unwrap();
        let mut progress = RunProgress::new(AnswerMode::Command);
        let text = steps_text(&progress.apply(&event_at(1, event_type, Some(1), data)), None);
        assert!(!text.contains("{\"") && !text.contains("[\"") && !text.contains(event_type), "{event_type}: {text}");
    }
}

#[test]
fn a_command_that_changes_a_file_has_its_own_step() {
    let mut progress = RunProgress::new(AnswerMode::Command);
    let mut shown = Vec::new();
    for (tool, call) in [("Bash", "t1"), ("Write", "t2")] {
        let input = json!({"command": "sed -i s/a/b/ x", "file_path": "x"});
        let edit = json!({"file_path": "x", "change_type": "modified", "lines_added": 1, "lines_removed": 1,
                          "diff_preview": "", "tool_use_id": call});
        let done = json!({"tool": tool, "tool_use_id": call, "output": "", "is_error": false});
        for (event_type, data) in [
            ("agent.tool_use", json!({"tool": tool, "tool_use_id": call, "input": input})),
            ("agent.file_edited", edit),
            ("agent.tool_completed", done),
        ] {
            shown.extend(progress.apply(&event_at(1, event_type, Some(1), data)));
        }
    }
    assert_eq!(steps_text(&shown, None), "✎ x  +1 −1\n✓ Bash  sed -i s/a/b/ x\n✎ x  +1 −1");
}

#[test]
fn a_question_has_its_choices_and_the_persons_answer() {
    let mut progress = RunProgress::new(AnswerMode::Typed);
    let questions = json!([{"question": "Which?", "options": [{"label": "red"}, {"label": "blue"}]}]);
    let shown: Vec<_> = [
        (
            "approval.requested",
            json!({"approval_id": "a", "kind": "question", "tool": "AskUserQuestion",
                                      "input": {"questions": questions}}),
        ),
        (
            "approval.answered",
            json!({"approval_id": "a", "decision": "allow", "reason": null,
                                     "answers": {"Which?": "blue"}}),
        ),
        ("approval.resolved", json!({"approval_id": "a", "decision": "allow", "reason": null})),
    ]
    .into_iter()
    .flat_map(|(event_type, data)| progress.apply(&event_at(1, event_type, Some(1), data)))
    .collect();
    assert_eq!(steps_text(&shown, None), "? the agent asks: Which? (red / blue)\n  type the answer\n· answered: blue");
}

#[test]
fn the_notice_of_a_missing_disk_quota_is_not_part_of_a_run() {
    let mut progress = RunProgress::new(AnswerMode::Command);
    let notice = |routine: bool| json!({"text": "disk space: monitored only", "routine": routine});
    assert!(progress.apply(&event_at(0, "sandbox.notice", None, notice(true))).is_empty());
    assert_eq!(progress.apply(&event_at(0, "sandbox.notice", None, notice(false))).len(), 1);
}

#[test]
fn tracks_the_phase() {
    let mut progress = RunProgress::new(AnswerMode::Command);
    let mut phases = vec![];
    for event in ordinary_run() {
        progress.apply(&event);
        if phases.last().map(|(_, last)| last) != Some(&progress.phase) {
            phases.push((event.event_type().to_owned(), progress.phase.clone()));
        }
    }
    insta::assert_snapshot!(
        phases.iter().map(|(event, phase)| format!("{event}: {phase:?}")).collect::<Vec<_>>().join("\n")
    );
    assert_eq!((progress.turn, progress.has_run, progress.ends), (Some(2), true, 1));
    let branch = progress.branch.clone().unwrap();
    assert_eq!((branch.name.as_str(), branch.commits, branch.files.len()), ("atoll/fix-the-parser", Some(2), 1));
    assert_eq!(progress.end.unwrap().outcome, Some(Outcome::Succeeded));
}

#[test]
fn sums_the_edits_of_a_file() {
    let mut progress = RunProgress::new(AnswerMode::Command);
    for (change, added, removed) in [("created", 3, 0), ("modified", 2, 1)] {
        let data = json!({"file_path": "a", "change_type": change, "lines_added": added, "lines_removed": removed});
        progress.apply(&event_at(1, "agent.file_edited", Some(1), data));
    }
    let edits = progress.edits();
    assert_eq!((edits[0].change.as_str(), edits[0].added, edits[0].removed), ("created", 5, 1));
}

#[test]
fn a_failure_shows_the_end_of_stderr() {
    let mut progress = RunProgress::new(AnswerMode::Command);
    let data = json!({"reason": "out_of_memory", "error": "killed", "stderr_tail": "allocating\nmore",
                      "memory_limit": 1024, "memory_peak": 1023});
    let steps = progress.apply(&event_at(1, "agent.failed", Some(1), data));
    insta::assert_snapshot!(steps_text(&steps, Some(60)), @r"
    ✗ killed (out_of_memory)
        allocating
        more
    ");
    assert_eq!(progress.failed.unwrap().memory, Some((1024, 1023)));
}

proptest! {
    #[test]
    fn every_line_is_escaped_and_fits(
        at in 0usize..32,
        text in prop_oneof![any::<String>(), "[\\x00-\\x1f\\x7f-\\x9f日🙂]{0,40}"],
        columns in 6usize..100,
    ) {
        let mut events = ordinary_run();
        let mut event = events[at].event.clone();
        let mut data: Value = serde_json::from_str(event.data.get()).unwrap();
        for value in data.as_object_mut().unwrap().values_mut().filter(|value| value.is_string()) {
            *value = text.clone().into();
        }
        event.data = serde_json::value::to_raw_value(&data).unwrap();
        events[at] = LogEvent::from(event);
        let mut progress = RunProgress::new(AnswerMode::Command);
        for event in &events {
            for line in progress.apply(event).iter().flat_map(|step| step.lines(Some(columns))) {
                prop_assert!(!line.to_ansi(false).chars().any(char::is_control), "{line:?}");
                prop_assert!(line.columns() <= columns, "{line:?}");
            }
        }
    }
}
