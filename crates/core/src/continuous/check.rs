//! Checks: what each of them came to, and how that is said to the agent.

use super::{Continuous, Requirement, Verdict};
use crate::bounds;
use crate::provider::Exit;
use serde::{Deserialize, Serialize};

/// How much of a command's output is kept: the end of it.
pub const TAIL: usize = 4 * bounds::KB;
/// As much as a message may hold, less what stands around it.
const ROOM: usize = bounds::MESSAGE_BYTES - 512;

/// One check and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Checked {
    /// The requirement, or the command itself.
    pub name: String,
    pub verdict: Verdict,
    /// How the command ended, where one was run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub exit: Option<Exit>,
    /// In words: what is missing, or why nobody can say.
    pub detail: String,
    /// The end of what the command printed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    pub duration_ms: u64,
}

/// Failed if one failed; else unknown if one is; nothing checked is nothing known.
pub fn verdict(checks: &[Checked]) -> Verdict {
    if checks.iter().any(|check| check.verdict == Verdict::Failed) {
        Verdict::Failed
    } else if checks.is_empty() || checks.iter().any(|check| check.verdict == Verdict::Unknown) {
        Verdict::Unknown
    } else {
        Verdict::Passed
    }
}

/// What the way a command ended means, and in words.
pub fn of_exit(exit: Exit) -> (Verdict, String) {
    match exit {
        Exit::Exited { code: 0 } => (Verdict::Passed, "exit code 0".to_owned()),
        Exit::Exited { code } => (Verdict::Failed, format!("exit code {code}")),
        Exit::Signalled { signal } => (Verdict::Failed, format!("killed by signal {signal}")),
        Exit::OutOfMemory => (Verdict::Failed, "killed because the sandbox's memory ran out".to_owned()),
        Exit::TimedOut => (Verdict::Failed, "killed because it took too long".to_owned()),
        Exit::Unknown => (Verdict::Unknown, "nobody knows how it ended".to_owned()),
    }
}

/// What the agent is told when its work has not passed.
pub fn message(checks: &[Checked], iteration: u32, most: u32) -> String {
    let open: Vec<&Checked> = checks.iter().filter(|check| check.verdict != Verdict::Passed).collect();
    let mut text = format!(
        "Your work was checked after run {iteration} of at most {most}, and {} of {} checks did not pass. \
         Mend what is named here; it is checked again when you are done.\n",
        open.len(),
        checks.len()
    );
    let each = ROOM.saturating_sub(text.len()) / open.len().max(1);
    for check in open {
        let word = match check.verdict {
            Verdict::Passed => "passed",
            Verdict::Failed => "failed",
            Verdict::Unknown => "could not be decided",
        };
        let (name, detail) = (beginning(&check.name, each / 3), beginning(&check.detail, each / 3));
        let mut piece = format!("\n{name}\n{word}: {detail}\n");
        let left = each.saturating_sub(piece.len() + 32);
        if !check.output.is_empty() && left > 64 {
            piece.push_str(&format!("the end of its output:\n{}\n", end(&check.output, left)));
        }
        text.push_str(&piece);
    }
    text
}

/// What the agent is told after a run that failed.
pub fn after_error(error: &str, iteration: u32, most: u32) -> String {
    format!(
        "Your last run (run {iteration} of at most {most}) broke off with an error:\n{}\n\
         What you had done until then is still there. Go on with the task.",
        beginning(error, 2 * bounds::KB)
    )
}

/// What the agent knows of this beforehand, so that it need not be told afterwards.
pub fn announcement(continuous: &Continuous, has_repository: bool) -> String {
    let mut text =
        "When you are done, your work is checked, and whatever fails comes back to you. It is done when:\n".to_owned();
    for requirement in continuous.required(has_repository) {
        text.push_str(match requirement {
            Requirement::Clean => "- nothing in the git working tree is left uncommitted\n",
            Requirement::Committed => "- your work is committed to git on the current branch\n",
            Requirement::Pushed => "- the branch is pushed\n",
            Requirement::PullRequest => "- there is a pull request for the branch\n",
        });
    }
    for check in continuous.checks.iter().flatten() {
        text.push_str(&format!("- this command succeeds: {}\n", beginning(check, bounds::KB)));
    }
    text
}

fn beginning(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// The last `most` bytes at most, from a whole character.
pub fn end(text: &str, most: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(most))..]
}
