//! Why a command did not do what was asked: what happened, what to do next, and the exit code.

use atoll_server::problem::Code;
use serde_json::json;
use std::fmt::Display;
use std::io;

/// The work itself failed.
pub const WORK_FAILED: u8 = 1;
/// No server, a refusal, bad input: nothing was tried, or it could not be.
pub const SETUP_FAILED: u8 = 2;
/// The work is done, but its results could not be taken out.
pub const NOT_APPLIED: u8 = 3;
pub const INTERRUPTED: u8 = 130;

pub type Result<T = (), E = Failure> = std::result::Result<T, E>;

#[derive(Debug)]
pub enum Failure {
    /// Something to tell.
    Told(Box<Told>),
    /// Whoever read the output has gone: nothing is wrong.
    PipeClosed,
    /// All has been said already; only the exit code is left.
    Silent(u8),
}

#[derive(Debug)]
pub struct Told {
    pub exit: u8,
    /// Stable, for programs.
    pub code: String,
    pub detail: String,
    /// What to do next.
    pub next: Option<String>,
}

impl Failure {
    fn new(exit: u8, code: &str, detail: impl Display) -> Self {
        Self::Told(Box::new(Told { exit, code: code.to_owned(), detail: detail.to_string(), next: None }))
    }

    /// Nothing was done, for a reason that a person can mend.
    pub fn setup(code: &str, detail: impl Display) -> Self {
        Self::new(SETUP_FAILED, code, detail)
    }

    /// It was tried and did not succeed.
    pub fn work(code: &str, detail: impl Display) -> Self {
        Self::new(WORK_FAILED, code, detail)
    }

    pub fn input(detail: impl Display) -> Self {
        Self::setup("bad_input", detail)
    }

    pub fn interrupted() -> Self {
        Self::Silent(INTERRUPTED)
    }

    /// Adds what to do next.
    pub fn next(mut self, sentence: impl Into<String>) -> Self {
        if let Self::Told(told) = &mut self {
            told.next = Some(sentence.into());
        }
        self
    }

    /// A refusal of the server, with advice where this program has some.
    pub fn refused(code: &str, detail: impl Display) -> Self {
        let failure = Self::setup(code, detail);
        match advice(code) {
            Some(sentence) => failure.next(sentence),
            None => failure,
        }
    }

    pub fn exit(&self) -> u8 {
        match self {
            Self::Told(told) => told.exit,
            Self::PipeClosed => 0,
            Self::Silent(exit) => *exit,
        }
    }

    /// As it stands on the error output, if there is anything to say.
    pub fn shown(&self, as_json: bool) -> Option<String> {
        let Self::Told(told) = self else { return None };
        if as_json {
            let mut object = json!({ "type": "error", "code": told.code, "detail": told.detail });
            if let Some(next) = &told.next {
                object["next"] = next.as_str().into();
            }
            return Some(object.to_string());
        }
        let code = if told.code.is_empty() { String::new() } else { format!(" ({})", told.code) };
        let next = told.next.as_ref().map(|next| format!("\n{next}")).unwrap_or_default();
        Some(format!("atoll: {}{code}{next}", told.detail))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::PipeClosed;
        }
        Self::setup("io", format!("can't write the output: {error}"))
    }
}

/// What to do in the words of the command line, else what the code's page says.
fn advice(code: &str) -> Option<&'static str> {
    match code {
        "session_closed" => Some("`atoll session fork ID` goes on from where it was."),
        "results_pending" => Some("`atoll sandbox results ID` takes them out; `--force` removes it and loses them."),
        "rate_limited" => Some("Wait a little; the limits are set by `limits.*` in the server's configuration."),
        // The detail says it all, and the page speaks to those who write programs.
        "invalid" | "bad_request" => None,
        _ => {
            let known = Code::ALL.iter().find(|known| known.as_str() == code)?;
            let (_, after) = known.page().split_once("## What to do")?;
            after.lines().map(str::trim).find(|line| !line.is_empty())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        let failure = Failure::refused("session_busy", "the session has a live sandbox");
        let shown = failure.shown(false).unwrap();
        assert!(shown.starts_with("atoll: the session has a live sandbox (session_busy)\n"), "{shown}");
        assert_eq!(shown.lines().count(), 2);
        assert_eq!(failure.exit(), SETUP_FAILED);
        let json: serde_json::Value = serde_json::from_str(&failure.shown(true).unwrap()).unwrap();
        assert_eq!((&json["type"], &json["code"]), (&json!("error"), &json!("session_busy")));
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((failure.exit(), failure.shown(false)), (0, None));
    }
}
