//! Aligned tables. Escapes the cells.

use super::style;
use super::text;
use crate::failure::Result;
use crate::output::Output;
use anstyle::Style;
use serde::Serialize;

const COLUMN_GAP: &str = "  ";

pub struct Cell {
    text: String,
    style: Style,
}

pub fn cell(text: impl AsRef<str>) -> Cell {
    Cell { text: text::escape_line(text.as_ref()), style: Style::new() }
}

/// A cell with the colour of its state.
pub fn state_cell(word: &str) -> Cell {
    Cell { text: text::escape_line(word), style: style::state_style(word) }
}

/// Prints a list as JSON, or as a table with one row per item.
pub fn print_list<T: Serialize>(
    output: &Output,
    items: &[T],
    heads: &[&str],
    table_row: impl FnMut(&T) -> Vec<Cell>,
) -> Result {
    if output.json {
        return output.print_responses(items);
    }
    print_table(output, heads, &items.iter().map(table_row).collect::<Vec<_>>())
}

/// Prints a table; clips the last column to the terminal's width.
pub fn print_table(output: &Output, heads: &[&str], rows: &[Vec<Cell>]) -> Result {
    let lengths = |column: usize| rows.iter().filter_map(move |row| row.get(column)).map(|cell| char_count(&cell.text));
    let widths: Vec<usize> =
        heads.iter().enumerate().map(|(at, head)| lengths(at).chain([char_count(head)]).max().unwrap_or(0)).collect();
    let head: Vec<Cell> = heads.iter().map(|head| Cell { text: (*head).to_owned(), style: style::HEAD }).collect();
    for row in [&head].into_iter().chain(rows) {
        output.print_line(&format_row(output, row, &widths))?;
    }
    Ok(())
}

fn format_row(output: &Output, row: &[Cell], widths: &[usize]) -> String {
    let mut line = String::new();
    let mut used = 0;
    for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
        let last = at + 1 == row.len();
        let clipped = match output.width {
            Some(columns) if last => text::clip_text(&cell.text, columns.saturating_sub(used).max(8)),
            _ => cell.text.clone(),
        };
        let padding = if last { 0 } else { width.saturating_sub(char_count(&clipped)) };
        line.push_str(&output.apply_style(cell.style, &clipped));
        line.extend(std::iter::repeat_n(' ', padding));
        if !last {
            line.push_str(COLUMN_GAP);
        }
        used += width + COLUMN_GAP.len();
    }
    line.truncate(line.trim_end().len());
    line
}

fn char_count(text: &str) -> usize {
    text.chars().count()
}
