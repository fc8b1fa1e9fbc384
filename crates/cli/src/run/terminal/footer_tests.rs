//! The footer in every width and phase.

use super::*;
use crate::event_log::log_event::testing::event;
use crate::run::progress::AnswerMode;
use serde_json::json;

fn progress_after(events: &[(&str, serde_json::Value)]) -> RunProgress {
    let mut progress = RunProgress::new(AnswerMode::Command);
    for (event_type, data) in events {
        progress.apply(&event(event_type, Some(3), data));
    }
    progress
}

fn progress_in_tool() -> RunProgress {
    progress_after(&[(
        "agent.tool_use",
        json!({"tool": "Bash", "tool_use_id": "t", "input": {"command": "cargo test --workspace --all-features"}}),
    )])
}

fn footer_text(
    progress: &RunProgress,
    input: &LineEditor,
    columns: usize,
    rows: usize,
    lost: bool,
    notice: Option<&str>,
) -> String {
    let status = Status {
        progress,
        sandbox: "sbx_01m7fkrr8mezdtrwya23zj4ref",
        elapsed: Duration::from_secs(72),
        is_lost: lost,
        is_attached: false,
        live_text: "",
        takes_quick_answers: false,
        notice,
    };
    let bottom = layout_footer(status, input, columns, rows);
    assert!(bottom.lines.iter().all(|line| line.columns() <= columns), "{bottom:?}");
    assert!(bottom.row < bottom.lines.len() && bottom.lines.len() <= rows.max(1));
    let lines: Vec<_> = bottom.lines.iter().map(|line| line.to_ansi(false)).collect();
    format!("{}\n[{}:{}]", lines.join("\n"), bottom.row, bottom.column)
}

#[test]
fn shows_the_end_of_the_text_that_the_agent_writes() {
    let (progress, input) = (progress_in_tool(), LineEditor::default());
    let status = |live_text| Status {
        progress: &progress,
        sandbox: "web",
        elapsed: Duration::from_secs(2),
        is_lost: false,
        is_attached: true,
        live_text,
        takes_quick_answers: false,
        notice: None,
    };
    let text = "one two three\nfour\x1b[2J ".repeat(9);
    for (columns, rows) in [(80, 24), (40, 12), (10, 5), (3, 2), (1, 1)] {
        let footer = layout_footer(status(&text), &input, columns, rows);
        assert!(footer.lines.len() <= rows && footer.lines.iter().all(|line| line.columns() <= columns), "{footer:?}");
        assert!(!footer.lines.iter().any(|line| line.to_ansi(false).contains('\x1b')), "{footer:?}");
    }
    let footer = layout_footer(status("I will look"), &input, 80, 24);
    assert_eq!(footer.lines[0].to_ansi(false), "• I will look");
    assert!(footer.lines[footer.row].to_ansi(false).contains("Ctrl-D leaves"));
}

#[test]
fn every_width_keeps_the_activity() {
    let (progress, input) = (progress_in_tool(), LineEditor::default());
    let footers: Vec<_> = [100, 80, 60, 44, 30, 16, 4]
        .iter()
        .map(|columns| footer_text(&progress, &input, *columns, 24, false, None))
        .collect();
    insta::assert_snapshot!("widths", footers.join("\n"));
}

#[test]
fn a_low_terminal_drops_lines() {
    let progress = progress_in_tool();
    let input = LineEditor::default();
    for rows in 1..4 {
        let lines = footer_text(&progress, &input, 80, rows, false, None);
        assert_eq!(lines.lines().count() - 1, rows.min(2), "{lines}");
    }
}

#[test]
fn every_phase_has_a_text() {
    let none = json!({});
    let state = |state: &str| json!({ "state": state });
    let message = json!({
        "message_id": "msg_01k9z6m3q8e5t7v2x4y6a8b0c1", "type": "user_message", "delivery": "steer", "position": 1,
        "content": "x", "content_bytes": 1,
    });
    let runs = [
        progress_after(&[]),
        progress_after(&[("sandbox.running", state("running"))]),
        progress_after(&[("agent.started", none.clone())]),
        progress_after(&[("message.queued", message), ("agent.started", none.clone())]),
        progress_after(&[("agent.waiting", none)]),
        progress_after(&[("approval.requested", json!({ "approval_id": "a" }))]),
        progress_after(&[
            ("limit.paused", json!({ "limit": "turn_s", "used": 1.0, "value": 1.0 })),
            ("agent.message", json!({ "text": "late" })),
        ]),
        progress_after(&[("sandbox.completing", state("completing"))]),
        progress_after(&[("sandbox.completed", state("completed"))]),
    ];
    let mut typed = LineEditor::default();
    typed.insert_text("leave the tests alone");
    let mut all: Vec<_> =
        runs.iter().map(|progress| footer_text(progress, &LineEditor::default(), 90, 24, false, None)).collect();
    all.push(footer_text(&runs[2], &typed, 90, 24, true, None));
    all.push(footer_text(&runs[2], &typed, 20, 24, false, Some("interrupting; Ctrl-C again leaves")));
    insta::assert_snapshot!("states", all.join("\n"));
}
