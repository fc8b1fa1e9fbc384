//! Failures of commands: a message, a hint and an exit code.

use atoll_api::{ErrorCode, ProblemDocument};
use serde_json::json;
use std::fmt::Display;
use std::io;

/// The work itself failed.
pub const WORK_FAILED: u8 = 1;
/// The set-up failed: no server, a refusal or bad input.
pub const SETUP_FAILED: u8 = 2;
/// The work is done, but the export of its results failed.
pub const EXPORT_FAILED: u8 = 3;
pub const INTERRUPTED: u8 = 130;

pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

#[derive(Debug)]
pub enum Failure {
    /// A failure with a message.
    Reported(Box<FailureReport>),
    /// The reader of stdout closed the pipe, which is not an error.
    PipeClosed,
    /// The command has printed everything; only the exit code remains.
    Silent(u8),
}

#[derive(Debug)]
pub struct FailureReport {
    pub exit: u8,
    /// A stable code for programs.
    pub code: String,
    pub detail: String,
    /// A sentence that says what to do next.
    pub hint: Option<String>,
}

impl Failure {
    fn new(exit: u8, code: &str, detail: impl Display) -> Self {
        Self::Reported(Box::new(FailureReport { exit, code: code.to_owned(), detail: detail.to_string(), hint: None }))
    }

    /// The command did nothing, for a reason that the user can fix.
    pub fn setup(code: &str, detail: impl Display) -> Self {
        Self::new(SETUP_FAILED, code, detail)
    }

    /// The work failed.
    pub fn work(code: &str, detail: impl Display) -> Self {
        Self::new(WORK_FAILED, code, detail)
    }

    pub fn input(detail: impl Display) -> Self {
        Self::setup("bad_input", detail)
    }

    pub fn interrupted() -> Self {
        Self::Silent(INTERRUPTED)
    }

    /// Adds a sentence that says what to do next.
    pub fn with_hint(mut self, sentence: impl Into<String>) -> Self {
        if let Self::Reported(report) = &mut self {
            report.hint = Some(sentence.into());
        }
        self
    }

    /// An error response of the server, with a hint if there is one for its code.
    pub fn refused(code: &str, detail: impl Display) -> Self {
        let failure = Self::setup(code, detail);
        match advice_for(code) {
            Some(sentence) => failure.with_hint(sentence),
            None => failure,
        }
    }

    /// The failure has this stable code.
    pub fn has_code(&self, code: &str) -> bool {
        matches!(self, Self::Reported(report) if report.code == code)
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Reported(report) => report.exit,
            Self::PipeClosed => 0,
            Self::Silent(exit) => *exit,
        }
    }

    /// The text for stderr, if there is a message.
    pub fn to_text(&self, as_json: bool) -> Option<String> {
        let Self::Reported(report) = self else { return None };
        if as_json {
            let mut object = json!({ "type": "error", "code": report.code, "detail": report.detail });
            if let Some(next) = &report.hint {
                object["next"] = next.as_str().into();
            }
            return Some(object.to_string());
        }
        let code = if report.code.is_empty() { String::new() } else { format!(" ({})", report.code) };
        let next = report.hint.as_ref().map(|next| format!("\n{next}")).unwrap_or_default();
        Some(format!("atoll: {}{code}{next}", report.detail))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::PipeClosed;
        }
        Self::setup("io", format!("cannot write the output: {error}"))
    }
}

/// A failure of git or of a worktree's files.
impl From<atoll_forge::Error> for Failure {
    fn from(error: atoll_forge::Error) -> Self {
        Self::setup(error.code(), error)
    }
}

impl From<atoll_client::Error> for Failure {
    fn from(error: atoll_client::Error) -> Self {
        use atoll_client::Error;
        match &error {
            Error::Problem { problem, .. } => problem_failure(problem),
            Error::Unreachable { .. } => {
                Self::setup("no_server", &error).with_hint("Start a server with `atoll serve`, or set --server URL.")
            }
            Error::Untrusted { .. } => Self::setup("untrusted", &error).with_hint(
                "Use the host name of the certificate in --server URL, and set SSL_CERT_FILE to its authority.",
            ),
            Error::BrokenResponse { .. } => Self::work("broke_off", &error),
            Error::UnexpectedResponse { .. } => {
                Self::setup("not_atoll", &error).with_hint("Check the URL; `atoll doctor` checks the server.")
            }
            Error::Configuration(_) => Self::setup("http", &error),
        }
    }
}

/// An error response, with a hint for its code.
fn problem_failure(problem: &ProblemDocument) -> Failure {
    let failure = Failure::refused(&problem.code, &problem.detail);
    let member = |name: &str| problem.extra_members.get(name).and_then(|value| value.as_str());
    match (problem.error_code(), member("sandbox_id"), member("session_id")) {
        (Some(ErrorCode::Unauthorized), ..) => failure
            .with_hint("Set ATOLL_TOKEN or --token-file FILE to a valid token; `atoll doctor` shows the one in use."),
        (Some(ErrorCode::SessionBusy), Some(sandbox), _) => {
            failure.with_hint(format!("Its live sandbox is {sandbox}: use `atoll send {sandbox} …`, or stop it first."))
        }
        (Some(ErrorCode::SessionClosed), _, Some(session)) => {
            failure.with_hint(format!("Continue it in a new session with `atoll session fork {session}`."))
        }
        (Some(ErrorCode::ResultsPending), Some(sandbox), _) => failure
            .with_hint(format!("Export them with `atoll sandbox results {sandbox}`, or lose them with `--force`.")),
        (Some(ErrorCode::SandboxEnding | ErrorCode::SandboxEnded), _, Some(session)) => {
            failure.with_hint(format!("Send to its session: `atoll send {session} …`."))
        }
        _ => failure,
    }
}

/// The hint for an error code: a command to run, or the advice of the code's page.
fn advice_for(code: &str) -> Option<&'static str> {
    match code {
        "rate_limited" => Some("Wait and try again; `limits.*` in the server's configuration sets the limits."),
        // The detail suffices, and the page addresses API clients.
        "invalid" | "bad_request" => None,
        _ => {
            let known = ErrorCode::from_code(code)?;
            let (_, after) = known.page().split_once("## What to do")?;
            after.lines().map(str::trim).find(|line| !line.is_empty())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_includes_advice() {
        let failure = Failure::refused("session_busy", "the session has a live sandbox");
        let text = failure.to_text(false).unwrap();
        assert!(text.starts_with("atoll: the session has a live sandbox (session_busy)\n"), "{text}");
        assert_eq!(text.lines().count(), 2);
        assert_eq!(failure.exit_code(), SETUP_FAILED);
        let json: serde_json::Value = serde_json::from_str(&failure.to_text(true).unwrap()).unwrap();
        assert_eq!((&json["type"], &json["code"]), (&json!("error"), &json!("session_busy")));
    }

    #[test]
    fn a_closed_pipe_is_not_a_failure() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((failure.exit_code(), failure.to_text(false)), (0, None));
    }
}
