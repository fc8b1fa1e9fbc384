//! Unified diffs, as `git diff` and `patch` know them.

use super::path;
use similar::{Algorithm, DiffOp, DiffTag};
use std::collections::HashMap;
use std::fmt::Write;
use std::time::Instant;

const CONTEXT: usize = 3;
const NO_NEWLINE: &str = "\\ No newline at end of file\n";

/// One side of a diff: the path it stands at (none: `/dev/null`) and its text.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    pub path: Option<&'a [u8]>,
    pub text: &'a str,
}

#[derive(Debug, Default, PartialEq)]
pub struct Diff {
    /// At most as long as was asked for.
    pub text: String,
    pub truncated: bool,
    pub added: u64,
    pub removed: u64,
}

/// At the deadline what is not yet compared is shown as replaced: longer than it might be, but right.
pub fn unified(old: Side<'_>, new: Side<'_>, longest: usize, deadline: Instant) -> Diff {
    if old.text == new.text {
        return Diff::default();
    }
    let (old_lines, new_lines) = (lines(old.text), lines(new.text));
    let operations = compare(&old_lines, &new_lines, deadline);
    let mut diff = Diff::default();
    for operation in &operations {
        if operation.tag() != DiffTag::Equal {
            diff.removed += count(operation.old_range().len());
            diff.added += count(operation.new_range().len());
        }
    }
    let mut page = Page { text: String::new(), longest, full: false };
    page.put(&format!("--- {}\n+++ {}\n", header('a', old.path), header('b', new.path)));
    for hunk in similar::group_diff_ops(operations, CONTEXT) {
        if page.full {
            break;
        }
        write_hunk(&mut page, &hunk, &old_lines, &new_lines);
    }
    diff.text = page.text;
    diff.truncated = page.full;
    diff
}

/// The first lines of a diff that fit, or also a part of a line where that one is very long.
pub fn beginning(text: &str, longest: usize) -> &str {
    if text.len() <= longest {
        return text;
    }
    let cut = &text[..text.floor_char_boundary(longest)];
    match cut.rfind('\n') {
        Some(end) if end >= longest / 2 => &cut[..=end],
        Some(_) | None => cut,
    }
}

/// Only a line feed ends a line here, as in git: a lone carriage return is part of its line.
fn lines(text: &str) -> Vec<&str> {
    text.split_inclusive('\n').collect()
}

/// Lines are compared as numbers, so that long lines that repeat cost nothing.
fn compare(old: &[&str], new: &[&str], deadline: Instant) -> Vec<DiffOp> {
    let mut numbers: HashMap<&str, u32> = HashMap::with_capacity(old.len());
    let mut number = |line| {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        *numbers.entry(line).or_insert(next)
    };
    let old: Vec<u32> = old.iter().map(|line| number(line)).collect();
    let new: Vec<u32> = new.iter().map(|line| number(line)).collect();
    similar::capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(deadline))
}

fn write_hunk(page: &mut Page, hunk: &[DiffOp], old: &[&str], new: &[&str]) {
    let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { return };
    let old_span = span(first.old_range().start, last.old_range().end);
    let new_span = span(first.new_range().start, last.new_range().end);
    page.put(&format!("@@ -{old_span} +{new_span} @@\n"));
    for operation in hunk {
        match operation.tag() {
            DiffTag::Equal => page.put_lines(' ', &old[operation.old_range()]),
            DiffTag::Delete | DiffTag::Insert | DiffTag::Replace => {
                page.put_lines('-', &old[operation.old_range()]);
                page.put_lines('+', &new[operation.new_range()]);
            }
        }
    }
}

/// `first,count`; an empty span names the line before it, and a count of one is left out.
fn span(start: usize, end: usize) -> String {
    match end - start {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        length => format!("{},{length}", start + 1),
    }
}

fn header(side: char, path: Option<&[u8]>) -> String {
    let Some(path) = path else { return "/dev/null".to_owned() };
    let shown = path::shown(path);
    if !shown.chars().any(|character| character.is_control() || character == '"') {
        return format!("{side}/{shown}");
    }
    // As git quotes them: a line feed in a name must not become a line of the diff.
    let mut quoted = format!("\"{side}/");
    for character in shown.chars() {
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

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Takes text until it is full.
struct Page {
    text: String,
    longest: usize,
    full: bool,
}

impl Page {
    fn put(&mut self, text: &str) {
        if self.full {
            return;
        }
        let room = self.longest.saturating_sub(self.text.len());
        self.full = text.len() > room;
        self.text.push_str(&text[..text.floor_char_boundary(room)]);
    }

    fn put_lines(&mut self, mark: char, lines: &[&str]) {
        for line in lines {
            if self.full {
                return;
            }
            self.put(mark.encode_utf8(&mut [0; 4]));
            self.put(line);
            if !line.ends_with('\n') {
                self.put("\n");
                self.put(NO_NEWLINE);
            }
        }
    }
}

#[cfg(test)]
mod tests;
