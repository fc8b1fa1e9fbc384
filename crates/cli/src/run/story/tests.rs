//! What is told of a whole story, and what is known after each step.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn entry(seconds: u32, event_type: &str, turn: Option<i64>, data: Value) -> Entry {
    let at = format!("2026-01-31T12:00:{seconds:02}.000000Z");
    let event = json!({ "seq": 1, "type": event_type, "source": "agent", "at": at, "turn": turn, "data": data });
    Entry::parse(&event.to_string()).unwrap()
}

/// Everything that an ordinary run with a repository has in it, and some that goes wrong.
fn events() -> Vec<Entry> {
    let message = |id: &str, content: &str| json!({"message_id": id, "type": "user_message", "delivery": "steer", "content": content});
    let edited = |path: &str, change: &str, added: i64, removed: i64, call: Option<&str>| {
        json!({"file_path": path, "change_type": change, "lines_added": added, "lines_removed": removed,
               "tool_use_id": call})
    };
    vec![
        entry(0, "session.opened", None, json!({"title": "fix the parser"})),
        entry(0, "sandbox.pending", None, json!({"state": "pending"})),
        entry(0, "message.queued", None, message("msg_1", "fix the parser\nand its tests")),
        entry(0, "sandbox.creating", None, json!({"state": "creating"})),
        entry(
            0,
            "git.cloned",
            None,
            json!({"commit": "1a2b3c4d5e6f", "branch": "main", "repo": "/src/x", "uncommitted": 3}),
        ),
        entry(0, "sandbox.notice", None, json!({"text": "the disk's bound is watched, not enforced"})),
        entry(1, "sandbox.running", None, json!({"state": "running"})),
        entry(1, "agent.started", Some(1), json!({"turn": 1, "message_id": "msg_1"})),
        entry(1, "message.acknowledged", Some(1), json!({"message_id": "msg_1", "how": "new_turn"})),
        entry(1, "agent.message", Some(1), json!({"text": "I look at it first."})),
        entry(
            2,
            "agent.tool_use",
            Some(1),
            json!({"tool": "Bash", "tool_use_id": "t1", "input": {"command": "cargo test"}}),
        ),
        entry(
            14,
            "agent.tool_completed",
            Some(1),
            json!({"tool": "Bash", "tool_use_id": "t1", "is_error": true, "exit": {"kind": "exited", "code": 101},
                   "output": "1\n2\n3\n4\n5\ntest \u{1b}[31mfailed\n"}),
        ),
        entry(
            15,
            "agent.tool_use",
            Some(1),
            json!({"tool": "Write", "tool_use_id": "t2", "input": {"file_path": "src/a.rs"}}),
        ),
        entry(15, "agent.file_edited", Some(1), edited("src/a.rs", "modified", 12, 3, Some("t2"))),
        entry(15, "agent.tool_completed", Some(1), json!({"tool": "Write", "tool_use_id": "t2", "output": "wrote"})),
        entry(16, "agent.file_edited", Some(1), edited("NOTES.md", "created", 3, 0, None)),
        entry(17, "message.queued", None, message("msg_2", "leave the tests alone")),
        entry(17, "agent.message_injected", Some(1), json!({"message_id": "msg_2", "text": "leave the tests alone"})),
        entry(17, "message.acknowledged", Some(1), json!({"message_id": "msg_2", "how": "injected"})),
        entry(18, "approval.requested", Some(1), json!({"approval_id": "a", "text": "may I push?"})),
        entry(19, "approval.resolved", Some(1), json!({"approval_id": "a", "decision": "deny", "reason": "not yet"})),
        entry(20, "message.queued", None, json!({"message_id": "msg_3", "type": "interrupt", "content": "stop"})),
        entry(20, "message.acknowledged", Some(1), json!({"message_id": "msg_3", "how": "injected"})),
        entry(20, "agent.interrupted", Some(1), json!({"turn": 1})),
        entry(21, "agent.started", Some(2), json!({"turn": 2})),
        entry(22, "agent.unparsed", Some(2), json!({"text": "\u{7}garbage"})),
        entry(23, "custom.thing", Some(2), json!({"a": 1})),
        entry(24, "agent.completed", Some(2), json!({"stop_reason": "max_tokens"})),
        entry(24, "sandbox.completing", None, json!({"state": "completing"})),
        entry(24, "agent.waiting", Some(2), json!({})),
        entry(
            25,
            "git.branch_created",
            None,
            json!({"branch": "atoll/fix-the-parser", "commit": "9f", "base": "1a2b3c4d5e6f", "commits": 2, "repo": "/src/x",
                   "files": [{"path": "src/a.rs", "change": "modified", "added": 12, "removed": 3}]}),
        ),
        entry(25, "sandbox.completed", None, json!({"state": "completed", "outcome": "succeeded", "reason": null})),
    ]
}

fn shown(told: &[Told], columns: Option<usize>) -> String {
    let lines = told.iter().flat_map(|told| told.lines(columns));
    lines.map(|line| line.painted(false)).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_story_as_lines() {
    let mut story = Story::new(Answers::Message("type approve, or deny and why".into()));
    let told: Vec<Told> = events().iter().flat_map(|entry| story.take(entry)).collect();
    insta::assert_snapshot!("wide", shown(&told, Some(80)));
    insta::assert_snapshot!("narrow", shown(&told, Some(32)));
    insta::assert_snapshot!("pipe", shown(&told, None));
}

#[test]
fn what_is_being_done() {
    let mut story = Story::new(Answers::Command);
    let mut doing = vec![];
    for entry in events() {
        story.take(&entry);
        if doing.last().map(|(_, last)| last) != Some(&story.doing) {
            doing.push((entry.event_type, story.doing.clone()));
        }
    }
    insta::assert_snapshot!(
        doing.iter().map(|(event, doing)| format!("{event}: {doing:?}")).collect::<Vec<_>>().join("\n")
    );
    assert_eq!((story.turn, story.ran, story.ends), (Some(2), true, 1));
    let branch = story.branch.clone().unwrap();
    assert_eq!((branch.name.as_str(), branch.commits, branch.files.len()), ("atoll/fix-the-parser", Some(2), 1));
    assert_eq!(story.end.unwrap().outcome, "succeeded");
}

#[test]
fn edits_of_a_file_count_together() {
    let mut story = Story::new(Answers::Command);
    for (change, added, removed) in [("created", 3, 0), ("modified", 2, 1)] {
        let data = json!({"file_path": "a", "change_type": change, "lines_added": added, "lines_removed": removed});
        story.take(&entry(1, "agent.file_edited", Some(1), data));
    }
    let edits = story.edits();
    assert_eq!((edits[0].change.as_str(), edits[0].added, edits[0].removed), ("created", 5, 1));
}

#[test]
fn a_failure_says_what_the_agent_said_last() {
    let mut story = Story::new(Answers::Command);
    let data = json!({"reason": "out_of_memory", "error": "killed", "stderr_tail": "allocating\nmore",
                      "memory_limit": 1024, "memory_peak": 1023});
    let told = story.take(&entry(1, "agent.failed", Some(1), data));
    insta::assert_snapshot!(shown(&told, Some(60)), @r"
    ✗ killed (out_of_memory)
        allocating
        more
    ");
    assert_eq!(story.failed.unwrap().memory, Some((1024, 1023)));
}

proptest! {
    #[test]
    fn whatever_an_agent_says_nothing_is_obeyed_and_every_line_fits(
        at in 0usize..32,
        text in prop_oneof![any::<String>(), "[\\x00-\\x1f\\x7f-\\x9f日🙂]{0,40}"],
        columns in 6usize..100,
    ) {
        let mut events = events();
        let entry = &mut events[at];
        if let Some(map) = entry.data.as_object_mut() {
            for value in map.values_mut().filter(|value| value.is_string()) {
                *value = text.clone().into();
            }
        }
        let mut story = Story::new(Answers::Command);
        for entry in &events {
            for line in story.take(entry).iter().flat_map(|told| told.lines(Some(columns))) {
                prop_assert!(!line.painted(false).chars().any(char::is_control), "{line:?}");
                prop_assert!(line.columns() <= columns, "{line:?}");
            }
        }
    }
}
