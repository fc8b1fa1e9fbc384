//! Describes the events of a project's set-up. Pure.

use super::time;
use atoll_api::events::{EventData, SetupCompleted, SetupStarted};
use atoll_core::provider::CommandExit;
use atoll_core::size::format_bytes;
use std::time::Duration;

/// The kind of a line, which decides its mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetupLineKind {
    Note,
    Output,
    Done,
    Failed,
}

/// A sentence and further text, not escaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupLine {
    pub kind: SetupLineKind,
    pub head: String,
    pub body: String,
    /// What to do about a failure.
    pub remedy: Option<String>,
}

fn line(kind: SetupLineKind, head: impl Into<String>, body: &str) -> SetupLine {
    SetupLine { kind, head: head.into(), body: body.trim_matches('\n').to_owned(), remedy: None }
}

/// `None` for events of other kinds.
pub fn describe_setup(data: &EventData) -> Option<SetupLine> {
    use SetupLineKind as K;
    Some(match data {
        EventData::SetupStarted(started) => describe_start(started),
        EventData::SetupOutput(output) if output.omitted_bytes > 0 => {
            let omitted = format!("({} of output are not stored)\n", format_bytes(output.omitted_bytes));
            line(K::Output, "", &(omitted + &output.text))
        }
        EventData::SetupOutput(output) => line(K::Output, "", &output.text),
        EventData::SetupStepCompleted(step) => {
            let time = format_seconds(step.seconds);
            match step.exit {
                CommandExit::Exited { code: 0 } => line(K::Done, format!("{} ({time})", step.command), ""),
                exit => line(K::Failed, format!("{} ({}, {time})", step.command, describe_exit(exit)), ""),
            }
        }
        EventData::SetupCompleted(completed) => line(K::Done, describe_completion(completed), ""),
        EventData::SetupFailed(failed) => {
            let remedy = failed.remedy.as_ref().map(|remedy| format!("to fix it: {remedy}"));
            SetupLine { remedy, ..line(K::Failed, format!("set-up failed: {}", failed.error), &failed.tail) }
        }
        EventData::SetupSkipped(skipped) => line(K::Note, format!("no set-up: {}", skipped.reason), ""),
        _ => return None,
    })
}

fn describe_start(started: &SetupStarted) -> SetupLine {
    let source = match started.source.as_str() {
        "request" => "by request",
        "project" => "as the project's settings say",
        "repository" => "as .atoll/setup says",
        "devcontainer" => "as devcontainer.json says",
        _ => "as its lock files say",
    };
    let head = format!("set-up {source}: {}", started.steps.join("; "));
    line(SetupLineKind::Note, head, &started.notes.join("\n"))
}

fn describe_completion(completed: &SetupCompleted) -> String {
    let time = format_seconds(completed.seconds);
    match (completed.cached, completed.stored) {
        (true, _) => format!("set-up is ready from its cache ({time})"),
        (false, true) => format!("set-up is done ({time}), and cached for the next sandbox"),
        (false, false) => format!("set-up is done ({time})"),
    }
}

fn format_seconds(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or_else(|_| "?".to_owned(), time::format_duration)
}

fn describe_exit(exit: CommandExit) -> String {
    match exit {
        CommandExit::Exited { code } => format!("exit {code}"),
        CommandExit::Signalled { signal } => format!("signal {signal}"),
        CommandExit::OutOfMemory => "out of memory".to_owned(),
        CommandExit::TimedOut => "timed out".to_owned(),
        CommandExit::Unknown => "exit unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_log::log_event::testing::event;
    use serde_json::{Value, json};

    fn described(event_type: &str, data: Value) -> (SetupLineKind, String, String) {
        let SetupLine { kind, head, body, remedy } = describe_setup(&event(event_type, None, &data).data).unwrap();
        (kind, head, [Some(body), remedy].into_iter().flatten().collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn each_event_is_a_sentence() {
        use SetupLineKind as K;
        let started = json!({"source": "detected", "steps": ["npm ci", "pip install"], "network": "packages", "notes": ["npm 11"]});
        let expected = (K::Note, "set-up as its lock files say: npm ci; pip install".to_owned(), "npm 11".to_owned());
        assert_eq!(described("setup.started", started), expected);
        let failed = json!({"step": 1, "command": "npm ci", "error": "step 1 `npm ci` failed with exit code 127",
            "tail": "npm: not found", "remedy": "install npm"});
        let (kind, head, body) = described("setup.failed", failed);
        assert_eq!((kind, head.as_str()), (K::Failed, "set-up failed: step 1 `npm ci` failed with exit code 127"));
        assert_eq!(body, "npm: not found\nto fix it: install npm");
        let step = |exit: Value| json!({"step": 1, "command": "npm ci", "exit": exit, "seconds": 4.25});
        let done = described("setup.step_completed", step(json!({"kind": "exited", "code": 0})));
        assert_eq!(done, (K::Done, "npm ci (4.2s)".to_owned(), String::new()));
        let killed = described("setup.step_completed", step(json!({"kind": "out_of_memory"})));
        assert_eq!(killed, (K::Failed, "npm ci (out of memory, 4.2s)".to_owned(), String::new()));
        let cached = json!({"seconds": 0.01, "cached": true, "stored": false});
        assert_eq!(described("setup.completed", cached).1, "set-up is ready from its cache (0.0s)");
        let output = json!({"step": 1, "stream": "stdout", "text": "added 3\n", "omitted_bytes": 2048});
        assert_eq!(described("setup.output", output).2, "(2.0 KiB of output are not stored)\nadded 3");
    }
}
