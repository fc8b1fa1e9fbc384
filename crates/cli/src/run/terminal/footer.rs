//! Lays out the footer of the live view: the status line and the input line. Pure.

use super::line_editor::LineEditor;
use crate::render::spans::Spans;
use crate::render::{style, text, time, width};
use crate::run::progress::{Phase, RunProgress};
use anstyle::Style;
use std::time::Duration;

/// The footer's lines and the cursor's position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footer {
    pub lines: Vec<Spans>,
    pub row: usize,
    pub column: usize,
}

/// The content of the status line.
#[derive(Debug, Clone, Copy)]
pub struct Status<'a> {
    pub progress: &'a RunProgress,
    pub sandbox: &'a str,
    pub elapsed: Duration,
    /// The connection is lost; the client reconnects.
    pub is_lost: bool,
    /// The view is attached to a sandbox: Ctrl-D leaves it.
    pub is_attached: bool,
    /// Text that the agent is writing.
    pub live_text: &'a str,
    /// One key answers the pending approval.
    pub takes_quick_answers: bool,
    /// A notice about an interrupt in progress.
    pub notice: Option<&'a str>,
}

const PROMPT: &str = "› ";
const SEPARATOR: &str = " · ";
/// The activity keeps at least this many columns.
const MIN_ACTIVITY_WIDTH: usize = 24;

pub fn layout_footer(status: Status<'_>, input: &LineEditor, columns: usize, rows: usize) -> Footer {
    let mut lines = live_lines(status.live_text, columns, (rows / 2).min(rows.saturating_sub(3)));
    if rows > 5 {
        lines.push(Spans::new());
    }
    if rows > 1 {
        lines.push(status_line(status, columns));
    }
    let prompt = Spans::new().styled(style::NAME, PROMPT);
    let before = prompt.columns();
    let room = columns.saturating_sub(before);
    let (visible, column) = input.visible_text(room);
    let line = if input.is_empty() {
        prompt.styled(style::FAINT, input_hint(status)).clip(columns)
    } else {
        prompt.plain(visible)
    };
    lines.push(line);
    Footer { row: lines.len() - 1, column: before + column, lines }
}

/// The last lines of the text that the agent is writing. The finished text becomes a step.
fn live_lines(live_text: &str, columns: usize, most: usize) -> Vec<Spans> {
    const MARK: &str = "• ";
    if live_text.trim().is_empty() {
        return Vec::new();
    }
    let wrapped =
        width::wrap_text(&text::escape_block(live_text.trim()), columns.saturating_sub(width::text_width(MARK)));
    let skipped = wrapped.len().saturating_sub(most);
    let line = |(at, line): (usize, String)| {
        let mark = if at == 0 { MARK } else { "  " };
        Spans::new().styled(style::HEAD, mark).plain(line).clip(columns)
    };
    wrapped.into_iter().enumerate().skip(skipped).map(line).collect()
}

fn status_line(status: Status<'_>, columns: usize) -> Spans {
    let (doing_style, doing) = activity_text(status);
    let turn = status.progress.turn.map(|turn| format!("turn {turn}"));
    let elapsed = Some(format_elapsed(status.elapsed));
    let sandbox = Some(text::escape_line(status.sandbox));
    // Drop the less important figures until the rest fits.
    for figures in [[&turn, &elapsed, &sandbox].as_slice(), &[&turn, &elapsed], &[&elapsed], &[]] {
        let side = figures.iter().filter_map(|part| part.as_deref()).collect::<Vec<_>>().join(SEPARATOR);
        let side = if side.is_empty() { side } else { format!("  {side}") };
        let side = Spans::new().styled(style::FAINT, side);
        let room = columns.saturating_sub(side.columns());
        let line = Spans::new().styled(doing_style, doing.clone());
        if line.columns() <= room || room >= MIN_ACTIVITY_WIDTH || figures.is_empty() {
            let line = line.clip(room);
            let padding = " ".repeat(room.saturating_sub(line.columns()));
            return line.plain(padding).append(side);
        }
    }
    Spans::new()
}

/// Formats whole seconds: the footer is redrawn once a second.
fn format_elapsed(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        _ => time::format_duration(span),
    }
}

fn activity_text(status: Status<'_>) -> (Style, String) {
    if let Some(notice) = status.notice {
        return (style::WARN, notice.to_owned());
    }
    if status.is_lost {
        return (style::WARN, "connection lost; reconnecting, no events are lost".to_owned());
    }
    let words = match &status.progress.phase {
        Phase::Creating => "creating the sandbox",
        Phase::SettingUp => "setting the project up",
        Phase::Starting => "starting the agent",
        Phase::Working => "working",
        Phase::Tool(what) => what,
        Phase::Waiting => return (style::WARN, "the agent waits for a message".to_owned()),
        Phase::WaitingApproval => return (style::WARN, "the agent waits for your answer".to_owned()),
        Phase::LimitPaused(limit) => return (style::WARN, format!("the agent is paused at its limit {limit}")),
        Phase::ExportingResults => "exporting the results",
        Phase::Ended => "ended",
    };
    (style::NAME, words.to_owned())
}

/// The placeholder of the empty input line: possible keys, or undelivered messages.
fn input_hint(status: Status<'_>) -> String {
    let words = match (&status.progress.phase, status.progress.undelivered_messages()) {
        (Phase::Creating | Phase::ExportingResults | Phase::Ended, _) => "",
        (Phase::SettingUp, _) => "Ctrl-C stops the run",
        (Phase::Waiting | Phase::LimitPaused(_), _) if status.is_attached => "send a message; Ctrl-D leaves",
        (Phase::Starting | Phase::Working | Phase::Tool(_), 0) if status.is_attached => {
            "send a message; Ctrl-C interrupts the agent, Ctrl-D leaves"
        }
        (Phase::Waiting, _) => "send a message; Ctrl-D ends the run and keeps its results",
        (Phase::WaitingApproval, _) if status.takes_quick_answers => {
            "y approves, n denies; or type an answer and press Enter"
        }
        (Phase::WaitingApproval, _) => "type an answer and press Enter",
        (Phase::LimitPaused(_), _) => "raise the limit, or press Ctrl-D to end the run and keep its results",
        (Phase::Starting, 0) => "send a message; Ctrl-C stops the run",
        (Phase::Working | Phase::Tool(_), 0) => "send a message; Ctrl-C interrupts the agent",
        (Phase::Starting | Phase::Working | Phase::Tool(_), 1) => "1 message is not delivered yet",
        (Phase::Starting | Phase::Working | Phase::Tool(_), many) => {
            return format!("{many} messages are not delivered yet");
        }
    };
    words.to_owned()
}

#[cfg(test)]
#[path = "footer_tests.rs"]
mod tests;
