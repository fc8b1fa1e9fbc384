//! Commands of the demo agent, one per line of its prompt and messages.
//!
//! Any other line is prose; the parser joins adjacent lines of prose.

use std::time::Duration;

pub const DEFAULT_LOOP_COUNT: u32 = 20;
pub const MAX_LOOP_COUNT: u32 = 10_000;
/// One day: longer than any test, within the range of every clock.
pub const MAX_WAIT: Duration = Duration::from_secs(86_400);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DemoLine {
    /// `say TEXT`
    Say(String),
    /// `edit FILE TEXT`: write TEXT and a newline to the file.
    Edit {
        file: String,
        text: String,
    },
    /// `run COMMAND…`
    Run(String),
    /// `wait SECONDS`
    Wait(Duration),
    /// `ask TEXT`: wait for an approval.
    Ask(String),
    /// `approve`: approve the request.
    Approve,
    /// `deny [TEXT]`: deny the request.
    Deny(Option<String>),
    /// `fail [TEXT]`: the agent fails.
    Fail(Option<String>),
    /// `crash`: the worker dies without a report.
    Crash,
    /// `hang`: the agent hangs for ever.
    Hang,
    /// `oom`: the agent runs out of memory.
    Oom,
    /// `loop [N]`: repeat the same tool call.
    Loop(u32),
    Prose(String),
}

pub fn parse_demo_lines(text: &str) -> Vec<DemoLine> {
    let mut lines: Vec<DemoLine> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match (parse_command(line), lines.last_mut()) {
            (Some(command), _) => lines.push(command),
            (None, Some(DemoLine::Prose(prose))) => {
                prose.push('\n');
                prose.push_str(line);
            }
            (None, _) => lines.push(DemoLine::Prose(line.to_owned())),
        }
    }
    lines
}

/// Parses a command. A known word with invalid operands is prose: people write "wait for the build" and
/// "crash reports are wrong".
fn parse_command(line: &str) -> Option<DemoLine> {
    let (word, rest) = match line.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim()),
        None => (line, ""),
    };
    let some = || Some(rest.to_owned()).filter(|text| !text.is_empty());
    match word {
        "say" => some().map(DemoLine::Say),
        "edit" => {
            let (file, text) = rest.split_once(char::is_whitespace)?;
            Some(DemoLine::Edit { file: file.to_owned(), text: text.trim().to_owned() })
        }
        "run" => some().map(DemoLine::Run),
        "wait" => parse_seconds(rest).map(DemoLine::Wait),
        "ask" => some().map(DemoLine::Ask),
        "approve" if rest.is_empty() => Some(DemoLine::Approve),
        "deny" => Some(DemoLine::Deny(some())),
        "fail" => Some(DemoLine::Fail(some())),
        "crash" if rest.is_empty() => Some(DemoLine::Crash),
        "hang" if rest.is_empty() => Some(DemoLine::Hang),
        "oom" if rest.is_empty() => Some(DemoLine::Oom),
        "loop" if rest.is_empty() => Some(DemoLine::Loop(DEFAULT_LOOP_COUNT)),
        "loop" => rest.parse().ok().map(|times: u32| DemoLine::Loop(times.min(MAX_LOOP_COUNT))),
        _ => None,
    }
}

/// Parses `2` or `0.5`: not negative, capped at `MAX_WAIT`.
pub fn parse_seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.parse().ok().filter(|seconds| *seconds >= 0.0)?;
    Duration::try_from_secs_f64(seconds.min(MAX_WAIT.as_secs_f64())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use DemoLine as D;

    fn prose(text: &str) -> Vec<D> {
        vec![D::Prose(text.to_owned())]
    }

    #[test]
    fn parses_every_command() {
        let cases: &[(&str, D)] = &[
            ("say hello there", D::Say("hello there".into())),
            ("edit a/b.txt some  text", D::Edit { file: "a/b.txt".into(), text: "some  text".into() }),
            ("run echo hi", D::Run("echo hi".into())),
            ("wait 2", D::Wait(Duration::from_secs(2))),
            ("wait 0.25", D::Wait(Duration::from_millis(250))),
            ("wait 1e300", D::Wait(MAX_WAIT)),
            ("ask may I?", D::Ask("may I?".into())),
            ("approve", D::Approve),
            ("deny", D::Deny(None)),
            ("deny too risky", D::Deny(Some("too risky".into()))),
            ("fail", D::Fail(None)),
            ("fail no key", D::Fail(Some("no key".into()))),
            ("crash", D::Crash),
            ("hang", D::Hang),
            ("oom", D::Oom),
            ("loop", D::Loop(DEFAULT_LOOP_COUNT)),
            ("loop 3", D::Loop(3)),
            ("loop 4000000000", D::Loop(MAX_LOOP_COUNT)),
        ];
        for (text, line) in cases {
            assert_eq!(parse_demo_lines(text), std::slice::from_ref(line), "{text}");
            assert_eq!(
                parse_demo_lines(&format!("  {text}\r\n")),
                std::slice::from_ref(line),
                "{text} with space around it"
            );
        }
    }

    #[test]
    fn a_known_word_with_the_wrong_operands_is_prose() {
        for text in [
            "say",
            "edit README.md",
            "run",
            "wait for me",
            "wait -1",
            "wait nan",
            "wait",
            "ask",
            "crash reports",
            "loop x",
        ] {
            assert_eq!(parse_demo_lines(text), prose(text));
        }
        assert_eq!(parse_demo_lines("Say it"), prose("Say it"), "the words are lower-case");
    }

    #[test]
    fn joins_adjacent_prose_and_skips_blank_lines() {
        assert_eq!(
            parse_demo_lines("fix the\n\n  parser\nsay ok\nthanks"),
            [D::Prose("fix the\nparser".into()), D::Say("ok".into()), D::Prose("thanks".into())]
        );
        assert_eq!(parse_demo_lines(" \n\t\n"), []);
    }
}
