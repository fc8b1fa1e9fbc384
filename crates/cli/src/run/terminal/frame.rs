//! From what is to be seen to the bytes that a terminal takes. Pure.
//!
//! Finished lines scroll up like those of any program; only the few at the bottom are drawn again.
//! So the scroll-back holds the whole story, and nothing is left of the bottom when it goes.

use super::bottom::Bottom;
use crate::render::spans::Spans;
use crossterm::cursor::{MoveDown, MoveToColumn, MoveUp};
use crossterm::queue;
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap, EndSynchronizedUpdate,
};
use std::io::{self, Write};

/// The bottom as it stands on the terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drawn {
    /// The columns of each line.
    widths: Vec<usize>,
    row: usize,
    column: usize,
}

impl Drawn {
    /// Rows from its first one to the cursor's, after a terminal of this width has broken the lines anew.
    fn rows_above_cursor(&self, columns: usize) -> usize {
        let columns = columns.max(1);
        let rows = |width: usize| width.div_ceil(columns).max(1);
        let above: usize = self.widths.iter().take(self.row).map(|width| rows(*width)).sum();
        above + self.column / columns
    }
}

/// Takes the old bottom away, lets the finished lines scroll by, and draws the new bottom.
pub fn frame(
    before: &Drawn,
    finished: &[Spans],
    bottom: Option<&Bottom>,
    columns: usize,
    colour: bool,
) -> io::Result<(Vec<u8>, Drawn)> {
    let mut bytes = Vec::new();
    queue!(bytes, BeginSynchronizedUpdate, MoveToColumn(0))?;
    let up = before.rows_above_cursor(columns);
    if up > 0 {
        queue!(bytes, MoveUp(small(up)))?;
    }
    queue!(bytes, Clear(ClearType::FromCursorDown))?;
    for line in finished {
        write!(bytes, "{}\r\n", line.painted(colour))?;
    }
    let mut drawn = Drawn::default();
    if let Some(bottom) = bottom {
        // A character that is wider than we know must not make the bottom longer.
        queue!(bytes, DisableLineWrap)?;
        for (at, line) in bottom.lines.iter().enumerate() {
            let end = if at + 1 < bottom.lines.len() { "\r\n" } else { "\r" };
            write!(bytes, "{}{end}", line.painted(colour))?;
        }
        queue!(bytes, EnableLineWrap)?;
        let up = bottom.lines.len().saturating_sub(bottom.row + 1);
        if up > 0 {
            queue!(bytes, MoveUp(small(up)))?;
        }
        queue!(bytes, MoveToColumn(small(bottom.column)))?;
        drawn = Drawn {
            widths: bottom.lines.iter().map(|line| line.columns().min(columns)).collect(),
            row: bottom.row,
            column: bottom.column,
        };
    }
    queue!(bytes, EndSynchronizedUpdate)?;
    Ok((bytes, drawn))
}

/// Leaves the bottom as it is and goes below it.
pub fn below(before: &Drawn) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let down = before.widths.len().saturating_sub(before.row + 1);
    if down > 0 {
        queue!(bytes, MoveDown(small(down)))?;
    }
    if !before.widths.is_empty() {
        bytes.extend_from_slice(b"\r\n");
    }
    Ok(bytes)
}

fn small(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
