//! Translates a frame into terminal bytes. Pure.
//!
//! Finished lines scroll up like the output of any program; only the footer is redrawn. The scroll-back thus contains
//! the whole run, and the footer leaves no trace.

use super::footer::Footer;
use crate::render::spans::Spans;
use crossterm::cursor::{MoveDown, MoveToColumn, MoveUp};
use crossterm::queue;
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap, EndSynchronizedUpdate,
};
use std::io::{self, Write};

/// The footer on the terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DrawnFooter {
    /// The width of each line.
    widths: Vec<usize>,
    row: usize,
    column: usize,
}

impl DrawnFooter {
    /// Number of rows above the cursor, after a terminal of this width has rewrapped the lines.
    fn rows_above_cursor(&self, columns: usize) -> usize {
        let columns = columns.max(1);
        let rows = |width: usize| width.div_ceil(columns).max(1);
        let above: usize = self.widths.iter().take(self.row).map(|width| rows(*width)).sum();
        above + self.column / columns
    }
}

/// Removes the old footer, prints the finished lines and draws the new footer.
pub fn draw_frame(
    before: &DrawnFooter,
    finished: &[Spans],
    bottom: Option<&Footer>,
    columns: usize,
    colour: bool,
) -> io::Result<(Vec<u8>, DrawnFooter)> {
    let mut bytes = Vec::new();
    queue!(bytes, BeginSynchronizedUpdate, MoveToColumn(0))?;
    let up = before.rows_above_cursor(columns);
    if up > 0 {
        queue!(bytes, MoveUp(to_u16(up)))?;
    }
    queue!(bytes, Clear(ClearType::FromCursorDown))?;
    for line in finished {
        write!(bytes, "{}\r\n", line.to_ansi(colour))?;
    }
    let mut drawn = DrawnFooter::default();
    if let Some(bottom) = bottom {
        // A character with an unknown width must not wrap the footer.
        queue!(bytes, DisableLineWrap)?;
        for (at, line) in bottom.lines.iter().enumerate() {
            let end = if at + 1 < bottom.lines.len() { "\r\n" } else { "\r" };
            write!(bytes, "{}{end}", line.to_ansi(colour))?;
        }
        queue!(bytes, EnableLineWrap)?;
        let up = bottom.lines.len().saturating_sub(bottom.row + 1);
        if up > 0 {
            queue!(bytes, MoveUp(to_u16(up)))?;
        }
        queue!(bytes, MoveToColumn(to_u16(bottom.column)))?;
        drawn = DrawnFooter {
            widths: bottom.lines.iter().map(|line| line.columns().min(columns)).collect(),
            row: bottom.row,
            column: bottom.column,
        };
    }
    queue!(bytes, EndSynchronizedUpdate)?;
    Ok((bytes, drawn))
}

/// Moves below the footer and leaves it on the screen.
pub fn move_below(before: &DrawnFooter) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let down = before.widths.len().saturating_sub(before.row + 1);
    if down > 0 {
        queue!(bytes, MoveDown(to_u16(down)))?;
    }
    if !before.widths.is_empty() {
        bytes.extend_from_slice(b"\r\n");
    }
    Ok(bytes)
}

fn to_u16(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
