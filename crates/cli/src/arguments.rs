//! Values on the command line.

use crate::failure::{Failure, Result};
use atoll_core::id::{SandboxId, SessionId};
use std::fmt;
use std::io::Read;
use std::str::FromStr;

/// One of a closed set of words; the refusal lists them.
pub fn word<T>(text: &str) -> Result<T, String>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// A sandbox or a session, told apart by the id's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Sandbox(SandboxId),
    Session(SessionId),
}

impl Target {
    /// Where it stands in the API.
    pub fn path(self) -> String {
        match self {
            Self::Sandbox(id) => format!("/sandboxes/{id}"),
            Self::Session(id) => format!("/sessions/{id}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sandbox(id) => id.fmt(f),
            Self::Session(id) => id.fmt(f),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("ses_") {
            return text.parse().map(Self::Session).map_err(|error| format!("{error}; `atoll session ls` lists them"));
        }
        if text.starts_with("sbx_") {
            return text.parse().map(Self::Sandbox).map_err(|error| format!("{error}; `atoll sandbox ls` lists them"));
        }
        Err("it is neither a sandbox (sbx_…) nor a session (ses_…)".to_owned())
    }
}

/// `KEY=VALUE`.
pub fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it like KEY=VALUE")?;
    if key.is_empty() {
        Err("there is nothing before the `=`".to_owned())
    } else {
        Ok((key.to_owned(), value.to_owned()))
    }
}

/// Text as it is given, or the standard input for `-`.
pub async fn text_or_stdin(given: &str) -> Result<String> {
    /// More than the server takes of anything.
    const MOST: u64 = 4 << 20;
    if given != "-" {
        return Ok(given.to_owned());
    }
    // On a thread of its own, so that an interrupt is heard meanwhile.
    let read = tokio::task::spawn_blocking(|| {
        let mut text = String::new();
        std::io::stdin().lock().take(MOST).read_to_string(&mut text).map(|_| text)
    });
    let text = read.await.map_err(std::io::Error::other).flatten();
    text.map_err(|error| Failure::input(format!("can't read the text from the standard input: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_told_apart() {
        let (sandbox, session) = (SandboxId::new(), SessionId::new());
        assert_eq!(sandbox.to_string().parse(), Ok(Target::Sandbox(sandbox)));
        assert_eq!(session.to_string().parse(), Ok(Target::Session(session)));
        for bad in ["", "sbx_", "sbx_1", "msg_x", "build-7"] {
            assert!(bad.parse::<Target>().is_err(), "{bad}");
        }
    }

    #[test]
    fn pairs_have_a_key() {
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(pair("a").is_err() && pair("=a").is_err());
    }
}
