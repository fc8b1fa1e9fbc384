//! Checks: their results, and the messages to the agent about them.

use super::{CheckVerdict, Continuous, Requirement};
use crate::bounds;
use crate::provider::CommandExit;
use serde::{Deserialize, Serialize};

/// Bytes of a command's output to keep, from its end.
pub const OUTPUT_TAIL_BYTES: usize = 4 * bounds::KB;
/// Space for check results in a message, without the text around them.
const MAX_RESULT_BYTES: usize = bounds::MAX_MESSAGE_BYTES - 512;

/// A check and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckResult {
    /// The requirement, or the command itself.
    pub name: String,
    pub verdict: CheckVerdict,
    /// Exit of the command, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub exit: Option<CommandExit>,
    /// Explanation: what is missing, or why the result is unknown.
    pub detail: String,
    /// The end of the command's output.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    pub duration_ms: u64,
}

/// Failed if any check failed; otherwise unknown if any is unknown or there are no checks.
pub fn combine_verdicts(checks: &[CheckResult]) -> CheckVerdict {
    if checks.iter().any(|check| check.verdict == CheckVerdict::Failed) {
        CheckVerdict::Failed
    } else if checks.is_empty() || checks.iter().any(|check| check.verdict == CheckVerdict::Unknown) {
        CheckVerdict::Unknown
    } else {
        CheckVerdict::Passed
    }
}

/// Converts a command's exit to a verdict with an explanation.
pub fn verdict_of_exit(exit: CommandExit) -> (CheckVerdict, String) {
    match exit {
        CommandExit::Exited { code: 0 } => (CheckVerdict::Passed, "exit code 0".to_owned()),
        CommandExit::Exited { code } => (CheckVerdict::Failed, format!("exit code {code}")),
        CommandExit::Signalled { signal } => (CheckVerdict::Failed, format!("killed by signal {signal}")),
        CommandExit::OutOfMemory => (CheckVerdict::Failed, "killed: the sandbox ran out of memory".to_owned()),
        CommandExit::TimedOut => (CheckVerdict::Failed, "killed: timed out".to_owned()),
        CommandExit::Unknown => (CheckVerdict::Unknown, "exit status unknown".to_owned()),
    }
}

/// Builds the message to the agent after failed checks.
pub fn failed_checks_message(checks: &[CheckResult], iteration: u32, most: u32) -> String {
    let open: Vec<&CheckResult> = checks.iter().filter(|check| check.verdict != CheckVerdict::Passed).collect();
    let mut text = format!(
        "Your work was checked after run {iteration} of at most {most}, and {} of {} checks did not pass. \
         Fix these; the checks run again when you are done.\n",
        open.len(),
        checks.len()
    );
    let each = MAX_RESULT_BYTES.saturating_sub(text.len()) / open.len().max(1);
    for check in open {
        let word = match check.verdict {
            CheckVerdict::Passed => "passed",
            CheckVerdict::Failed => "failed",
            CheckVerdict::Unknown => "could not be decided",
        };
        let (name, detail) = (first_bytes(&check.name, each / 3), first_bytes(&check.detail, each / 3));
        let mut piece = format!("\n{name}\n{word}: {detail}\n");
        let left = each.saturating_sub(piece.len() + 32);
        if !check.output.is_empty() && left > 64 {
            piece.push_str(&format!("the end of its output:\n{}\n", last_bytes(&check.output, left)));
        }
        text.push_str(&piece);
    }
    text
}

/// Builds the message to the agent after a failed run.
pub fn failed_run_message(error: &str, iteration: u32, most: u32) -> String {
    format!(
        "Your last run (run {iteration} of at most {most}) broke off with an error:\n{}\n\
         What you had done until then is still there. Go on with the task.",
        first_bytes(error, 2 * bounds::KB)
    )
}

/// Announces the checks to the agent in advance, so that it can satisfy them in the first run.
pub fn announce_checks(continuous: &Continuous, has_repository: bool) -> String {
    let mut text =
        "When you finish, your work is checked, and failed checks come back to you. It is done when:\n".to_owned();
    for requirement in continuous.requirements(has_repository) {
        text.push_str(match requirement {
            Requirement::Clean => "- the git working tree has no uncommitted changes\n",
            Requirement::Committed => "- your work is committed to git on the current branch\n",
            Requirement::Pushed => "- the branch is pushed\n",
            Requirement::PullRequest => "- there is a pull request for the branch\n",
        });
    }
    for check in continuous.checks.iter().flatten() {
        text.push_str(&format!("- this command succeeds: {}\n", first_bytes(check, bounds::KB)));
    }
    text
}

fn first_bytes(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Returns the last `most` bytes at most, from a character boundary.
pub fn last_bytes(text: &str, most: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(most))..]
}
