//! Reads the number of failed tests from the output of common test programs, and detects runs that get worse.

use super::agent_signal::{ToolResult, ToolUse};
use super::{Detector, Finding, hash_parts, subject_of};
use std::collections::VecDeque;

const MAX_SUITES: usize = 8;
const MAX_OPEN_CALLS: usize = 64;
/// Only the end of an output is read: test programs print their summary last.
const MAX_READ_BYTES: usize = 16 << 10;
/// The subject of the server's own checks.
const CHECKS: &str = "checks";

/// Results of one command, or of the checks.
#[derive(Debug)]
struct Suite {
    subject: String,
    best: u32,
    last: u32,
    worse: VecDeque<i64>,
}

#[derive(Debug, Default)]
pub(super) struct TestDetector {
    /// Hashes of running commands by the id of their call.
    open_calls: VecDeque<(String, String)>,
    suites: VecDeque<Suite>,
}

impl TestDetector {
    pub fn record_call(&mut self, call: &ToolUse) {
        let input = &call.input;
        let command =
            ["command", "cmd", "script"].iter().map(|field| &input[*field]).find(|command| !command.is_null());
        let Some(command) = command else { return };
        if self.open_calls.len() >= MAX_OPEN_CALLS {
            self.open_calls.pop_front();
        }
        let subject = subject_of(hash_parts(&[&command.to_string()]));
        self.open_calls.push_back((call.tool_use_id.clone(), subject));
    }

    pub fn record_result(&mut self, seq: i64, result: &ToolResult, at: u32) -> Option<Finding> {
        let open = self.open_calls.iter().position(|(id, _)| *id == result.tool_use_id)?;
        let (_, subject) = self.open_calls.remove(open)?;
        let failed = count_failed_tests(&result.output_text())?;
        self.record_run(seq, subject, failed, at)
    }

    /// Records a round of the server's checks.
    pub fn record_checks(&mut self, seq: i64, failed: u32, at: u32) -> Option<Finding> {
        self.record_run(seq, CHECKS.to_owned(), failed, at)
    }

    fn record_run(&mut self, seq: i64, subject: String, failed: u32, at: u32) -> Option<Finding> {
        let known = self.suites.iter().position(|suite| suite.subject == subject);
        let mut suite = known.and_then(|at| self.suites.remove(at)).unwrap_or_else(|| Suite {
            subject,
            best: failed,
            last: failed,
            worse: VecDeque::new(),
        });
        if failed > suite.best && failed >= suite.last {
            if suite.worse.len() >= super::MAX_EVIDENCE {
                suite.worse.pop_front();
            }
            suite.worse.push_back(seq);
        } else {
            suite.worse.clear();
        }
        suite.best = suite.best.min(failed);
        suite.last = failed;
        let times = u32::try_from(suite.worse.len()).unwrap_or(u32::MAX);
        let finding = (times > 0 && times.is_multiple_of(at.max(1))).then(|| Finding {
            times: Some(times),
            detail: Some(format!("{} failed tests, at best {}", failed, suite.best)),
            ..Finding::new(Detector::TestsWorse, seq, suite.subject.clone(), suite.worse.iter().copied())
        });
        if self.suites.len() >= MAX_SUITES {
            self.suites.pop_front();
        }
        self.suites.push_back(suite);
        finding
    }

    /// The highest number of worse runs in a row.
    pub fn worse_runs(&self) -> u32 {
        self.suites.iter().map(|suite| u32::try_from(suite.worse.len()).unwrap_or(u32::MAX)).max().unwrap_or(0)
    }

    pub fn is_worse(&self, subject: &str) -> bool {
        self.suites.iter().any(|suite| suite.subject == subject && !suite.worse.is_empty())
    }
}

/// The number of failed tests that an output reports; `None` if it is no output of a known test program.
fn count_failed_tests(output: &str) -> Option<u32> {
    let mut from = output.len().saturating_sub(MAX_READ_BYTES);
    while !output.is_char_boundary(from) {
        from += 1;
    }
    let (mut failed, mut is_summary) = (0_u32, false);
    for line in output[from..].lines() {
        if let Some(count) = read_summary(line.trim()) {
            failed = failed.saturating_add(count);
            is_summary = true;
        }
    }
    is_summary.then_some(failed)
}

/// Reads one line of a summary.
fn read_summary(line: &str) -> Option<u32> {
    // go
    if line.starts_with("--- FAIL:") {
        return Some(1);
    }
    if line.starts_with("--- PASS:") || line.starts_with("ok  \t") {
        return Some(0);
    }
    // Cargo, nextest, pytest, unittest, Jest, Vitest, Mocha, RSpec, Maven, dotnet
    let lower = line.to_ascii_lowercase();
    let starts = ["test result:", "tests:", "tests run:", "summary [", "failed!", "passed!"];
    let is_pytest = lower.starts_with('=') && lower.ends_with('=') && lower.contains(" in ");
    let is_short = (lower.ends_with(" failing") || lower.ends_with(" passing") || lower.contains(" examples, "))
        && lower.starts_with(|c: char| c.is_ascii_digit());
    let is_vitest = lower.starts_with("tests ") && (lower.contains(" passed") || lower.contains(" failed"));
    let is_pytest_quiet = lower.starts_with(|c: char| c.is_ascii_digit())
        && lower.contains(" in ")
        && (lower.contains(" passed") || lower.contains(" failed"));
    if !(starts.iter().any(|start| lower.starts_with(start)) || is_pytest || is_short || is_vitest || is_pytest_quiet) {
        return None;
    }
    let words: Vec<&str> = lower.split([' ', ',', ';', '.', '=', '|']).filter(|word| !word.is_empty()).collect();
    let (mut failed, mut counted) = (0_u32, false);
    for pair in words.windows(2) {
        let (number, word) = (pair[0].parse::<u32>(), pair[1]);
        let (after, before) = (pair[1].parse::<u32>(), pair[0]);
        if let (Ok(number), true) =
            (&number, matches!(word, "failed" | "failing" | "failures" | "failure" | "errors" | "error"))
        {
            failed = failed.saturating_add(*number);
            counted = true;
        } else if let (Ok(after), true) = (after, matches!(before, "failures:" | "errors:" | "failed:")) {
            failed = failed.saturating_add(after);
            counted = true;
        } else if number.is_ok() && matches!(word, "passed" | "passing" | "examples") {
            counted = true;
        }
    }
    counted.then_some(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_summaries_of_common_test_programs() {
        for (output, failed) in [
            ("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out", Some(2)),
            ("test result: ok. 1 passed; 0 failed;\ntest result: FAILED. 0 passed; 1 failed;", Some(1)),
            ("     Summary [   0.5s] 12 tests run: 10 passed, 2 failed, 0 skipped", Some(2)),
            ("===== 2 failed, 3 passed in 0.12s =====", Some(2)),
            ("=== 3 passed, 1 error in 0.12s ===", Some(1)),
            ("2 failed, 1 passed in 0.01s", Some(2)),
            ("Tests:       1 failed, 3 passed, 4 total", Some(1)),
            (" Tests  2 failed | 3 passed (5)", Some(2)),
            ("  3 passing (5ms)\n  2 failing", Some(2)),
            ("5 examples, 2 failures", Some(2)),
            ("Tests run: 5, Failures: 2, Errors: 1, Skipped: 0", Some(3)),
            ("--- FAIL: TestA (0.00s)\n--- FAIL: TestB (0.00s)\nFAIL", Some(2)),
            ("--- PASS: TestA (0.00s)\nok  \texample.com/a\t0.1s", Some(0)),
            ("3 files changed, 10 insertions(+)", None),
            ("error: 2 failed to compile", None),
            ("", None),
        ] {
            assert_eq!(count_failed_tests(output), failed, "{output}");
        }
    }

    #[test]
    fn only_runs_that_stay_worse_than_the_best_one_count() {
        let runs = |failed: &[u32], at: u32| -> Vec<usize> {
            let mut tests = TestDetector::default();
            let found = failed.iter().enumerate().map(|(n, failed)| tests.record_checks(n as i64, *failed, at));
            found.enumerate().filter(|(_, finding)| finding.is_some()).map(|(n, _)| n).collect()
        };
        assert_eq!(runs(&[0, 2, 2, 3, 3, 3, 4], 3), [3, 6], "no better than the last run");
        assert_eq!(runs(&[0, 9, 7, 5, 3, 1, 0], 3), [0; 0], "a refactoring that gets better");
        assert_eq!(runs(&[0, 3, 0, 3, 0, 3], 2), [0; 0], "a failing test first, then its fix");
        assert_eq!(runs(&[5, 5, 5, 5], 1), [0; 0], "failures from the start");
    }
}
