//! The bottom in every width and state.

use super::*;
use crate::reading::entry::Entry;
use crate::run::story::Answers;
use serde_json::json;

fn story(events: &[(&str, serde_json::Value)]) -> Story {
    let mut story = Story::new(Answers::Command);
    for (event_type, data) in events {
        let event = json!({ "seq": 1, "type": event_type, "at": "2026-01-31T12:00:00Z", "turn": 3, "data": data });
        story.take(&Entry::parse(&event.to_string()).unwrap());
    }
    story
}

fn working() -> Story {
    story(&[(
        "agent.tool_use",
        json!({"tool": "Bash", "tool_use_id": "t", "input": {"command": "cargo test --workspace --all-features"}}),
    )])
}

fn shown(story: &Story, input: &Input, columns: usize, rows: usize, lost: bool, notice: Option<&str>) -> String {
    let status =
        Status { story, sandbox: "sbx_01m7fkrr8mezdtrwya23zj4ref", elapsed: Duration::from_secs(72), lost, notice };
    let bottom = bottom(status, input, columns, rows);
    assert!(bottom.lines.iter().all(|line| line.columns() <= columns), "{bottom:?}");
    assert!(bottom.row < bottom.lines.len() && bottom.lines.len() <= rows.max(1));
    let lines: Vec<_> = bottom.lines.iter().map(|line| line.painted(false)).collect();
    format!("{}\n[{}:{}]", lines.join("\n"), bottom.row, bottom.column)
}

#[test]
fn every_width_keeps_what_matters_most() {
    let (story, input) = (working(), Input::default());
    let shown: Vec<_> =
        [100, 80, 60, 44, 30, 16, 4].iter().map(|columns| shown(&story, &input, *columns, 24, false, None)).collect();
    insta::assert_snapshot!("widths", shown.join("\n"));
}

#[test]
fn a_low_terminal_has_less() {
    let story = working();
    let input = Input::default();
    for rows in 1..4 {
        let lines = shown(&story, &input, 80, rows, false, None);
        assert_eq!(lines.lines().count() - 1, rows.min(2), "{lines}");
    }
}

#[test]
fn every_state_has_its_words() {
    let none = json!({});
    let stories = [
        story(&[]),
        story(&[("sandbox.running", none.clone())]),
        story(&[("agent.started", none.clone())]),
        story(&[("message.queued", json!({"message_id": "m"})), ("agent.started", none.clone())]),
        story(&[("agent.waiting", none.clone())]),
        story(&[("approval.requested", none.clone())]),
        story(&[("sandbox.completing", none.clone())]),
        story(&[("sandbox.completed", none)]),
    ];
    let mut typed = Input::default();
    typed.insert("leave the tests alone");
    let mut all: Vec<_> = stories.iter().map(|story| shown(story, &Input::default(), 90, 24, false, None)).collect();
    all.push(shown(&stories[2], &typed, 90, 24, true, None));
    all.push(shown(&stories[2], &typed, 20, 24, false, Some("interrupting; Ctrl-C again leaves")));
    insta::assert_snapshot!("states", all.join("\n"));
}
