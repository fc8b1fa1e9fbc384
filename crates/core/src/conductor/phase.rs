//! The phase of an agent's work.

use crate::policy::{AnalysedCall, ToolEffect, tool_effect};
use crate::string_enum;
use serde_json::Value;

string_enum! {
    /// What an agent's newest steps have in common.
    "phase"
    Phase {
        /// Its sandbox starts, or it has not begun.
        Starting = "starting",
        /// It reads and searches.
        Exploring = "exploring",
        /// It thinks or writes a plan.
        Planning = "planning",
        /// It changes files.
        Editing = "editing",
        /// It builds, or runs tests and checks.
        Testing = "testing",
        /// It reads its own changes or commits them.
        Reviewing = "reviewing",
        /// It waits for a message, an approval, a limit or its model.
        Waiting = "waiting",
        /// Its results are taken.
        Finishing = "finishing",
    }
}

/// Tools that write a plan.
const PLAN_TOOLS: &[&str] = &["todowrite", "todoread", "taskcreate", "taskupdate", "exitplanmode", "update_plan"];
/// Programs that build or test.
const TEST_PROGRAMS: &[&str] = &[
    "pytest", "unittest", "tox", "jest", "vitest", "mocha", "ctest", "make", "ninja", "cmake", "gradle", "gradlew",
    "mvn", "bazel", "tsc", "eslint", "ruff", "mypy", "rspec", "phpunit",
];
/// Programs that build or test with some of their first arguments.
const TEST_COMMANDS: &[(&str, &[&str])] = &[
    ("cargo", &["test", "check", "build", "clippy", "nextest", "bench"]),
    ("go", &["test", "build", "vet"]),
    ("npm", &["test", "run", "t"]),
    ("pnpm", &["test", "run"]),
    ("yarn", &["test", "run"]),
    ("dotnet", &["test", "build"]),
];
/// Operations of git that look at or record one's own changes.
const REVIEW_OPERATIONS: &[&str] = &["diff", "status", "log", "show", "add", "commit", "stash", "push"];

/// The phase of a tool call.
pub fn call_phase(tool: &str, input: &Value) -> Phase {
    if PLAN_TOOLS.contains(&tool.to_ascii_lowercase().as_str()) {
        return Phase::Planning;
    }
    match tool_effect(tool) {
        ToolEffect::Reads | ToolEffect::Fetches | ToolEffect::Other => Phase::Exploring,
        ToolEffect::Writes => Phase::Editing,
        ToolEffect::Runs => {
            let call = AnalysedCall::from_input(tool, input, "/workspace");
            // A line such as `cd app && cargo test | tail` is what its most telling command is.
            let phases = call.commands.iter().map(|words| command_phase(words));
            let of_commands = phases.max_by_key(|phase| telling_rank(*phase)).unwrap_or(Phase::Exploring);
            if of_commands == Phase::Exploring && !call.writes.is_empty() { Phase::Editing } else { of_commands }
        }
    }
}

const fn telling_rank(phase: Phase) -> u8 {
    match phase {
        Phase::Testing => 2,
        Phase::Reviewing => 1,
        Phase::Starting | Phase::Exploring | Phase::Planning | Phase::Editing | Phase::Waiting | Phase::Finishing => 0,
    }
}

fn command_phase(words: &[String]) -> Phase {
    let Some((program, arguments)) = words.split_first() else { return Phase::Exploring };
    let program = program.rsplit('/').next().unwrap_or(program);
    let argument = |index: usize| arguments.get(index).map(String::as_str).unwrap_or_default();
    let first = argument(0);
    let is_test_module = program.starts_with("python") && first == "-m" && TEST_PROGRAMS.contains(&argument(1));
    let is_test = is_test_module
        || TEST_PROGRAMS.contains(&program)
        || TEST_COMMANDS.iter().any(|(name, operations)| *name == program && operations.contains(&first));
    match program {
        _ if is_test => Phase::Testing,
        "git" if REVIEW_OPERATIONS.contains(&first) => Phase::Reviewing,
        _ => Phase::Exploring,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_call_has_the_phase_of_its_most_telling_command() {
        for (tool, input, expected) in [
            ("Read", json!({ "file_path": "src/lib.rs" }), Phase::Exploring),
            ("Grep", json!({ "pattern": "fn main" }), Phase::Exploring),
            ("WebFetch", json!({ "url": "https://example.org" }), Phase::Exploring),
            ("mcp__issues__list", json!({}), Phase::Exploring),
            ("TodoWrite", json!({ "todos": [] }), Phase::Planning),
            ("Edit", json!({ "file_path": "src/lib.rs" }), Phase::Editing),
            ("apply_patch", json!({ "patch": "*** Update File: a" }), Phase::Editing),
            ("Bash", json!({ "command": "rg needle src | head" }), Phase::Exploring),
            ("Bash", json!({ "command": "cd app && cargo test -q 2>&1 | tail" }), Phase::Testing),
            ("shell", json!({ "command": ["bash", "-c", "python3 -m pytest tests"] }), Phase::Testing),
            ("Bash", json!({ "command": "git diff --stat && git commit -am done" }), Phase::Reviewing),
            ("Bash", json!({ "command": "git diff && make check" }), Phase::Testing),
            ("Bash", json!({ "command": "sed -i s/a/b/ notes.txt" }), Phase::Editing),
            ("Bash", json!({ "command": "git clone x" }), Phase::Exploring),
            ("Bash", json!(null), Phase::Exploring),
        ] {
            assert_eq!(call_phase(tool, &input), expected, "{tool} {input}");
        }
    }
}
