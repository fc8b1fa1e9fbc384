//! Values on the command line.

use crate::failure::{Failure, Result};
use atoll_core::id::{SandboxId, SessionId};
use serde_json::{Value, json};
use std::fmt;
use std::io::Read;
use std::path::Path;
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
    if given != "-" {
        return Ok(given.to_owned());
    }
    // On a thread of its own, so that an interrupt is heard meanwhile.
    let text = tokio::task::spawn_blocking(stdin).await.map_err(std::io::Error::other).flatten();
    text.map_err(|error| Failure::input(format!("can't read the text from the standard input: {error}")))
}

/// All of the standard input.
pub fn stdin() -> std::io::Result<String> {
    /// More than the server takes of anything.
    const MOST: u64 = 4 << 20;
    let mut text = String::new();
    std::io::stdin().lock().take(MOST).read_to_string(&mut text).map(|_| text)
}

/// A repository for a sandbox, by its absolute path; whether it is one, the server says.
pub fn repository(given: &Path) -> Result<Value> {
    if let Some(url) = given.to_str().filter(|text| is_url(text) && !given.exists()) {
        return Err(Failure::input(format!("--repo takes a directory of this machine, and {url} is a URL"))
            .next(format!("Clone it first: git clone {url}, then --repo with that directory.")));
    }
    let path = std::fs::canonicalize(given).map_err(|error| {
        Failure::input(format!("--repo: can't use {}: {error}", given.display()))
            .next("Name a directory with a git repository in it.")
    })?;
    let path = path.to_str().ok_or_else(|| {
        Failure::input(format!("--repo: the name of {} is not UTF-8", path.display()))
            .next("Rename it: the server takes no other names.")
    })?;
    Ok(json!({ "path": path }))
}

/// `https://…`, `ssh://…`, or `git@host:path` as git takes it.
fn is_url(text: &str) -> bool {
    let scp_like = || text.split_once(':').is_some_and(|(host, path)| host.contains('@') && !path.is_empty());
    text.contains("://") || (scp_like() && !text.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_paths() {
        for url in ["https://example.org/x.git", "ssh://git@example.org/x", "git@example.org:x/y.git"] {
            assert!(is_url(url), "{url}");
            assert!(matches!(repository(Path::new(url)), Err(failure) if failure.exit() == 2), "{url}");
        }
        for path in [".", "/srv/x", "../a@b", "C:x", "/a@b:c"] {
            assert!(!is_url(path), "{path}");
        }
        assert!(repository(Path::new(".")).unwrap()["path"].as_str().unwrap().starts_with('/'));
        assert!(repository(Path::new("/nowhere/at/all")).is_err());
    }

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
