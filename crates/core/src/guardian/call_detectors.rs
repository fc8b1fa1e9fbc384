//! Detectors of tool calls that lead nowhere: the same call, the same error, two calls in turn.

use super::agent_signal::{ToolResult, ToolUse};
use super::{Detector, Finding, Thresholds, hash_parts, subject_of};
use std::collections::VecDeque;

/// Maximum number of tracked calls without a result.
const MAX_OPEN_CALLS: usize = 64;
/// Number of results in which equal errors count.
const ERROR_WINDOW: usize = 24;
/// Results that a streak remembers.
const MAX_STREAK: usize = 20;
/// Compared characters at either end of an error.
const ERROR_CHARS: usize = 300;

#[derive(Debug)]
struct OpenCall {
    id: String,
    tool: String,
    hash: u64,
    /// The call waits for something on purpose.
    is_waiting: bool,
}

/// A result: the call with its output.
#[derive(Debug, Clone)]
struct CallResult {
    hash: u64,
    /// The call without its result.
    call: u64,
    seq: i64,
    id: String,
}

/// An error within the window.
#[derive(Debug, Clone, Copy)]
struct SeenError {
    hash: u64,
    seq: i64,
}

#[derive(Debug, Default)]
pub(super) struct CallDetectors {
    open_calls: VecDeque<OpenCall>,
    /// Equal results in a row.
    streak: VecDeque<CallResult>,
    streak_count: u32,
    /// The last results, newest last, for alternation.
    recent: VecDeque<CallResult>,
    /// Results in a row that each equal the one before the last.
    turns: u32,
    /// `None` for a result without an error.
    errors: VecDeque<Option<SeenError>>,
}

impl CallDetectors {
    pub fn record_call(&mut self, call: &ToolUse) {
        if self.open_calls.len() >= MAX_OPEN_CALLS {
            self.open_calls.pop_front();
        }
        let input = call.input.to_string();
        let is_waiting = input.contains("sleep") || input.contains("--watch");
        let hash = hash_parts(&[&call.tool, &input]);
        let (id, tool) = (call.tool_use_id.clone(), call.tool.clone());
        self.open_calls.push_back(OpenCall { id, tool, hash, is_waiting });
    }

    /// Records the result of a call.
    pub fn record_result(&mut self, seq: i64, result: &ToolResult, limits: &Thresholds) -> Vec<Finding> {
        let Some(at) = self.open_calls.iter().position(|open| open.id == result.tool_use_id) else { return Vec::new() };
        let Some(call) = self.open_calls.remove(at) else { return Vec::new() };
        let output = result.output_text();
        let failed = if result.has_failed() { "failed" } else { "" };
        let hash = hash_parts(&[&subject_of(call.hash), &output, failed]);
        let this = CallResult { hash, call: call.hash, seq, id: call.id };
        let mut findings = Vec::new();
        if !call.is_waiting {
            findings.extend(self.check_repetition(&this, &call.tool, limits.repeated_calls));
            findings.extend(self.check_alternation(&this, limits.alternations));
        }
        // An equal result in a row is a repeated call, not another attempt.
        if self.streak_count < 2 {
            let error = result.has_failed().then(|| hash_error(&output)).flatten();
            findings.extend(self.check_error(seq, error, &output, limits.repeated_errors));
        }
        findings
    }

    fn check_repetition(&mut self, this: &CallResult, tool: &str, at: u32) -> Option<Finding> {
        if self.streak.back().is_some_and(|last| last.hash != this.hash) {
            self.reset_streak();
        }
        self.streak_count = self.streak_count.saturating_add(1);
        push_bounded(&mut self.streak, this.clone(), MAX_STREAK);
        let count = self.streak_count;
        (count.is_multiple_of(at.max(2))).then(|| Finding {
            tool: Some(tool.to_owned()),
            times: Some(count),
            calls: vec![this.id.clone()],
            ..Finding::new(
                Detector::RepeatedCall,
                this.seq,
                subject_of(this.call),
                self.streak.iter().map(|one| one.seq),
            )
        })
    }

    fn check_alternation(&mut self, this: &CallResult, at: u32) -> Option<Finding> {
        let mut newest = self.recent.iter().rev();
        let (last, before) = (newest.next().map(|one| one.hash), newest.next().map(|one| one.hash));
        let alternates = before == Some(this.hash) && last != Some(this.hash);
        self.turns = if alternates { self.turns.saturating_add(1) } else { 0 };
        let other = self.recent.back().cloned();
        push_bounded(&mut self.recent, this.clone(), MAX_STREAK);
        // The first round is complete with the first repetition of its second call.
        let results = self.turns + 2;
        let is_found = self.turns > 0 && results.is_multiple_of(at.max(2) * 2);
        let other = other.filter(|_| is_found)?;
        let (low, high) = (this.call.min(other.call), this.call.max(other.call));
        let skip = self.recent.len().saturating_sub(results as usize);
        Some(Finding {
            times: Some(results / 2),
            calls: vec![other.id, this.id.clone()],
            ..Finding::new(
                Detector::Alternating,
                this.seq,
                subject_of(hash_parts(&[&subject_of(low), &subject_of(high)])),
                self.recent.iter().skip(skip).map(|one| one.seq),
            )
        })
    }

    fn check_error(&mut self, seq: i64, error: Option<u64>, output: &str, at: u32) -> Option<Finding> {
        push_bounded(&mut self.errors, error.map(|hash| SeenError { hash, seq }), ERROR_WINDOW);
        let hash = error?;
        let seqs: Vec<i64> =
            self.errors.iter().flatten().filter(|seen| seen.hash == hash).map(|seen| seen.seq).collect();
        let times = u32::try_from(seqs.len()).unwrap_or(u32::MAX);
        (times >= at.max(2)).then(|| {
            // The next finding needs as many further errors.
            self.errors.retain(|seen| seen.is_none_or(|seen| seen.hash != hash));
            let line = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            Finding {
                times: Some(times),
                detail: Some(line.trim().chars().take(200).collect()),
                ..Finding::new(Detector::RepeatedError, seq, subject_of(hash), seqs)
            }
        })
    }

    /// Records that a call had an effect: repeating it is no repetition.
    pub fn record_effect(&mut self) {
        self.reset_streak();
        self.recent.clear();
        self.turns = 0;
    }

    fn reset_streak(&mut self) {
        self.streak.clear();
        self.streak_count = 0;
    }

    pub const fn repetitions(&self) -> u32 {
        self.streak_count
    }

    pub const fn rounds(&self) -> u32 {
        if self.turns == 0 { 0 } else { (self.turns + 2) / 2 }
    }

    /// The number of the most frequent error.
    pub fn equal_errors(&self) -> u32 {
        let count = |hash: u64| self.errors.iter().flatten().filter(|seen| seen.hash == hash).count();
        let most = self.errors.iter().flatten().map(|seen| count(seen.hash)).max();
        u32::try_from(most.unwrap_or(0)).unwrap_or(u32::MAX)
    }
}

fn push_bounded<T>(list: &mut VecDeque<T>, item: T, most: usize) {
    if list.len() >= most {
        list.pop_front();
    }
    list.push_back(item);
}

/// A hash of an error without its numbers, which differ in times, addresses and lines. An empty error says nothing.
fn hash_error(output: &str) -> Option<u64> {
    let text = output.trim();
    if text.is_empty() {
        return None;
    }
    let from = text.char_indices().rev().nth(ERROR_CHARS - 1).map_or(0, |(at, _)| at);
    let start: String = text.chars().take(ERROR_CHARS).collect();
    Some(hash_parts(&[&remove_numbers(&start), &remove_numbers(&text[from..])]))
}

/// Removes numbers, also hexadecimal ones, but keeps the digits of names such as `part_2`.
fn remove_numbers(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let (mut last, mut in_number) = (' ', false);
    for c in text.chars() {
        let starts = c.is_ascii_digit() && !last.is_alphanumeric() && last != '_';
        in_number = starts || (in_number && (c.is_ascii_hexdigit() || c == 'x'));
        if !in_number {
            kept.push(c);
        }
        last = c;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_equal_without_their_numbers_but_not_without_their_names() {
        let hash = |text: &str| hash_error(text);
        assert_eq!(hash("at 0x7ffe12ab, line 12:3, in 0.35s"), hash("at 0x1234cdef, line 7:41, in 1.2s"));
        assert_ne!(hash("unused variable `part_2`"), hash("unused variable `part_3`"));
        assert_eq!(hash(" \n"), None);
    }
}
