//! Unified diffs in the format of `git diff`.

use crate::relative_path;
use similar::{Algorithm, DiffOp, DiffTag};
use std::collections::HashMap;
use std::fmt::Write;
use std::time::Instant;

const CONTEXT_LINES: usize = 3;
const NO_NEWLINE: &str = "\\ No newline at end of file\n";

/// One side of a diff: its path (`None` for `/dev/null`) and text.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    pub path: Option<&'a [u8]>,
    pub text: &'a str,
}

#[derive(Debug, Default, PartialEq)]
pub struct FileDiff {
    /// At most `max_bytes` long.
    pub text: String,
    /// Size of the whole diff.
    pub bytes: u64,
    pub added: u64,
    pub removed: u64,
}

/// Compares two texts. After the deadline the rest appears as replaced, which is correct but longer.
pub fn unified_diff(old: Side<'_>, new: Side<'_>, longest: usize, deadline: Instant) -> FileDiff {
    if old.text == new.text {
        return FileDiff::default();
    }
    let (old_lines, new_lines) = (split_lines(old.text), split_lines(new.text));
    let operations = diff_lines(&old_lines, &new_lines, deadline);
    let mut diff = FileDiff::default();
    for operation in &operations {
        if operation.tag() != DiffTag::Equal {
            diff.removed += to_u64(operation.old_range().len());
            diff.added += to_u64(operation.new_range().len());
        }
    }
    let mut page = BoundedText { text: String::new(), max_bytes: longest, bytes: 0 };
    page.push(&format!("--- {}\n+++ {}\n", format_header('a', old.path), format_header('b', new.path)));
    for hunk in similar::group_diff_ops(operations, CONTEXT_LINES) {
        write_hunk(&mut page, &hunk, &old_lines, &new_lines);
    }
    diff.text = page.text;
    diff.bytes = to_u64(page.bytes);
    diff
}

impl FileDiff {
    pub fn is_truncated(&self) -> bool {
        to_u64(self.text.len()) < self.bytes
    }
}

/// Cuts a diff at a line end, or within a very long line.
pub fn cut_preview(text: &str, longest: usize) -> &str {
    if text.len() <= longest {
        return text;
    }
    let cut = &text[..text.floor_char_boundary(longest)];
    match cut.rfind('\n') {
        Some(end) if end >= longest / 2 => &cut[..=end],
        Some(_) | None => cut,
    }
}

/// Splits at line feeds only, as git does: a lone carriage return is part of its line.
fn split_lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// Compares lines by number, so that repeated long lines are cheap.
fn diff_lines(old: &[&str], new: &[&str], deadline: Instant) -> Vec<DiffOp> {
    let mut numbers: HashMap<&str, u32> = HashMap::with_capacity(old.len());
    let mut number = |line| {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        *numbers.entry(line).or_insert(next)
    };
    let old: Vec<u32> = old.iter().map(|line| number(line)).collect();
    let new: Vec<u32> = new.iter().map(|line| number(line)).collect();
    similar::capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline))
}

fn write_hunk(page: &mut BoundedText, hunk: &[DiffOp], old: &[&str], new: &[&str]) {
    let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { return };
    let old_span = format_span(first.old_range().start, last.old_range().end);
    let new_span = format_span(first.new_range().start, last.new_range().end);
    page.push(&format!("@@ -{old_span} +{new_span} @@\n"));
    for operation in hunk {
        match operation.tag() {
            DiffTag::Equal => page.push_lines(' ', &old[operation.old_range()]),
            DiffTag::Delete | DiffTag::Insert | DiffTag::Replace => {
                page.push_lines('-', &old[operation.old_range()]);
                page.push_lines('+', &new[operation.new_range()]);
            }
        }
    }
}

/// Formats `first,count`. An empty span names the line before it; a count of one is omitted.
fn format_span(start: usize, end: usize) -> String {
    match end - start {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        length => format!("{},{length}", start + 1),
    }
}

fn format_header(side: char, path: Option<&[u8]>) -> String {
    let Some(path) = path else { return "/dev/null".to_owned() };
    let path_text = relative_path::to_display(path);
    if !path_text.chars().any(|character| character.is_control() || character == '"') {
        return format!("{side}/{path_text}");
    }
    // Quotes like git: a line feed in a name must not become a line of the diff.
    let mut quoted = format!("\"{side}/");
    for character in path_text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            other if other.is_control() => {
                let _ = write!(quoted, "\\{:03o}", u32::from(other));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// A text with a size limit.
struct BoundedText {
    text: String,
    max_bytes: usize,
    /// Size of everything that was pushed.
    bytes: usize,
}

impl BoundedText {
    fn push(&mut self, text: &str) {
        let is_full = self.text.len() < self.bytes;
        self.bytes += text.len();
        if !is_full {
            let room = self.max_bytes.saturating_sub(self.text.len());
            self.text.push_str(&text[..text.floor_char_boundary(room)]);
        }
    }

    fn push_lines(&mut self, mark: char, lines: &[&str]) {
        for line in lines {
            self.push(mark.encode_utf8(&mut [0; 4]));
            self.push(line);
            if !line.ends_with('\n') {
                self.push("\n");
                self.push(NO_NEWLINE);
            }
        }
    }
}

#[cfg(test)]
mod tests;
