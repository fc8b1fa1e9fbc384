//! Columns that line up. Cells are made harmless here.

use super::style;
use super::text;
use crate::failure::Result;
use crate::output::Output;
use anstyle::Style;

const BETWEEN: &str = "  ";

pub struct Cell {
    text: String,
    style: Style,
}

pub fn cell(text: impl AsRef<str>) -> Cell {
    Cell { text: text::inline(text.as_ref()), style: Style::new() }
}

/// A word of a closed set, in its colour.
pub fn state(word: &str) -> Cell {
    Cell { text: text::inline(word), style: style::of_state(word) }
}

/// Prints the rows under their heads; the last column is cut to the terminal's width.
pub fn print(output: &Output, heads: &[&str], rows: &[Vec<Cell>]) -> Result {
    let lengths = |column: usize| rows.iter().filter_map(move |row| row.get(column)).map(|cell| count(&cell.text));
    let widths: Vec<usize> =
        heads.iter().enumerate().map(|(at, head)| lengths(at).chain([count(head)]).max().unwrap_or(0)).collect();
    let head: Vec<Cell> = heads.iter().map(|head| Cell { text: (*head).to_owned(), style: style::HEAD }).collect();
    for row in [&head].into_iter().chain(rows) {
        output.line(&line(output, row, &widths))?;
    }
    Ok(())
}

fn line(output: &Output, row: &[Cell], widths: &[usize]) -> String {
    let mut line = String::new();
    let mut used = 0;
    for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
        let last = at + 1 == row.len();
        let shown = match output.width {
            Some(columns) if last => text::clip(&cell.text, columns.saturating_sub(used).max(8)),
            _ => cell.text.clone(),
        };
        let padding = if last { 0 } else { width.saturating_sub(count(&shown)) };
        line.push_str(&output.paint(cell.style, &shown));
        line.extend(std::iter::repeat_n(' ', padding));
        if !last {
            line.push_str(BETWEEN);
        }
        used += width + BETWEEN.len();
    }
    line.truncate(line.trim_end().len());
    line
}

fn count(text: &str) -> usize {
    text.chars().count()
}
