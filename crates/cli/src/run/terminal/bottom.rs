//! What stands at the bottom of the terminal: what is being done, and the line one types. Pure.

use super::input::Input;
use crate::render::spans::Spans;
use crate::render::{style, text, time};
use crate::run::story::{Doing, Story};
use anstyle::Style;
use std::time::Duration;

/// The lines, and where the cursor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bottom {
    pub lines: Vec<Spans>,
    pub row: usize,
    pub column: usize,
}

/// What the status line says beside the story.
#[derive(Debug, Clone, Copy)]
pub struct Status<'a> {
    pub story: &'a Story,
    pub sandbox: &'a str,
    pub elapsed: Duration,
    /// The connection is gone and tried again.
    pub lost: bool,
    /// Something that a key began, told until it is over.
    pub notice: Option<&'a str>,
}

const PROMPT: &str = "› ";
const BETWEEN: &str = " · ";
/// What is being done is not cut below this in favour of figures.
const LEAST: usize = 24;

pub fn bottom(status: Status<'_>, input: &Input, columns: usize, rows: usize) -> Bottom {
    let mut lines = Vec::new();
    if rows > 5 {
        lines.push(Spans::new());
    }
    if rows > 1 {
        lines.push(status_line(status, columns));
    }
    let prompt = Spans::new().put(style::NAME, PROMPT);
    let before = prompt.columns();
    let room = columns.saturating_sub(before);
    let (seen, column) = input.seen(room);
    let line = if input.is_empty() { prompt.put(style::FAINT, hint(status)).clip(columns) } else { prompt.plain(seen) };
    lines.push(line);
    Bottom { row: lines.len() - 1, column: before + column, lines }
}

fn status_line(status: Status<'_>, columns: usize) -> Spans {
    let (doing_style, doing) = doing(status);
    let turn = status.story.turn.map(|turn| format!("turn {turn}"));
    let elapsed = Some(elapsed(status.elapsed));
    let sandbox = Some(text::inline(status.sandbox));
    // The figures that fit, the most telling ones first.
    for figures in [[&turn, &elapsed, &sandbox].as_slice(), &[&turn, &elapsed], &[&elapsed], &[]] {
        let side = figures.iter().filter_map(|part| part.as_deref()).collect::<Vec<_>>().join(BETWEEN);
        let side = if side.is_empty() { side } else { format!("  {side}") };
        let side = Spans::new().put(style::FAINT, side);
        let room = columns.saturating_sub(side.columns());
        let line = Spans::new().put(doing_style, doing.clone());
        if line.columns() <= room || room >= LEAST || figures.is_empty() {
            let line = line.clip(room);
            let padding = " ".repeat(room.saturating_sub(line.columns()));
            return line.plain(padding).then(side);
        }
    }
    Spans::new()
}

/// In whole seconds: it is drawn anew once a second.
fn elapsed(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        _ => time::span(span),
    }
}

fn doing(status: Status<'_>) -> (Style, String) {
    if let Some(notice) = status.notice {
        return (style::WARN, notice.to_owned());
    }
    if status.lost {
        return (style::WARN, "no connection; trying again, nothing will be missed".to_owned());
    }
    let words = match &status.story.doing {
        Doing::Making => "making the sandbox",
        Doing::Starting => "the agent starts",
        Doing::Working => "working",
        Doing::Tool(what) => what,
        Doing::Waiting => return (style::WARN, "the agent waits for you".to_owned()),
        Doing::Asking => return (style::WARN, "the agent waits for your answer".to_owned()),
        Doing::TakingResults => "taking the results out",
        Doing::Ended => "ended",
    };
    (style::NAME, words.to_owned())
}

/// What one can do here now, or what is under way.
fn hint(status: Status<'_>) -> String {
    let words = match (&status.story.doing, status.story.on_their_way()) {
        (Doing::Making | Doing::TakingResults | Doing::Ended, _) => "",
        (Doing::Waiting, _) => "say what to do next; Ctrl-D ends and keeps the work",
        (Doing::Asking, _) => "answer, and Enter",
        (Doing::Starting | Doing::Working | Doing::Tool(_), 0) => "say something to the agent; Ctrl-C interrupts it",
        (Doing::Starting | Doing::Working | Doing::Tool(_), 1) => "1 message is on its way to the agent",
        (Doing::Starting | Doing::Working | Doing::Tool(_), many) => {
            return format!("{many} messages are on their way to the agent");
        }
    };
    words.to_owned()
}

#[cfg(test)]
#[path = "bottom_tests.rs"]
mod tests;
