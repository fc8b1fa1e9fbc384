//! What can be wrong with a configuration. A load reports all of it at once.

use crate::source::Source;
use std::fmt;
use std::path::PathBuf;

/// Everything that keeps a configuration from being used; never empty.
#[derive(Debug)]
pub struct Error {
    problems: Vec<Problem>,
}

impl Error {
    pub(crate) fn new(problems: Vec<Problem>) -> Self {
        Self { problems }
    }

    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [only] => write!(f, "the configuration has a problem: {only}"),
            all => {
                write!(f, "the configuration has {} problems:", all.len())?;
                all.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))
            }
        }
    }
}

impl std::error::Error for Error {}

/// One thing that is wrong: the key, where it stands, and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("{key} ({place}): there is no such key{}", meant(.nearest))]
    UnknownKey { key: String, place: Source, nearest: Option<String> },

    #[error("{key}: no flag sets this{}", meant(.nearest))]
    UnknownFlag { key: String, nearest: Option<String> },

    #[error("{name}: no setting has this environment variable{}", meant(.nearest))]
    UnknownVariable { name: String, nearest: Option<String> },

    #[error("{key} ({place}): {found} stands here; allowed: {allowed}")]
    WrongType { key: String, place: Source, found: &'static str, allowed: String },

    /// `given` is absent where the value may be a secret.
    #[error("{key} ({place}): {}; allowed: {allowed}", refused(.given, .detail))]
    BadValue { key: String, place: Source, given: Option<String>, detail: Option<String>, allowed: String },

    #[error("{key} ({place}): already given ({first}); write it once")]
    GivenTwice { key: String, place: Source, first: Source },

    #[error("{}: cannot be read: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },

    #[error("{}: is not usable YAML: {detail}", Source::File(path.clone(), *line))]
    Malformed { path: PathBuf, line: Option<usize>, detail: String },

    #[error("{key}: has no value; {remedy}")]
    Missing { key: &'static str, remedy: &'static str },

    /// Each value is good, but not beside the other.
    #[error("{key} ({place}): {detail}")]
    Conflict { key: &'static str, place: Source, detail: String },

    #[error("ATOLL_PROFILE: `{profile}` is not the name of a profile; allowed: letters, digits, `-` and `_`")]
    BadProfile { profile: String },

    #[error("ATOLL_PROFILE: no file for the profile `{profile}`; looked for {}", paths(.looked))]
    NoProfile { profile: String, looked: Vec<PathBuf> },
}

fn meant(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

fn refused(given: &Option<String>, detail: &Option<String>) -> String {
    match (given, detail) {
        (Some(given), Some(detail)) => format!("`{given}` is refused: {detail}"),
        (Some(given), None) => format!("`{given}` is refused"),
        (None, Some(detail)) => format!("the value is refused: {detail}"),
        (None, None) => "the value is refused".to_owned(),
    }
}

fn paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A piece of someone's input, fit for a message: short and without control characters.
pub(crate) fn quotable(text: &str) -> String {
    const MOST: usize = 80;
    let mut quoted = String::new();
    for c in text.chars().take(MOST) {
        if c.is_control() {
            quoted.extend(c.escape_default());
        } else {
            quoted.push(c);
        }
    }
    if text.chars().nth(MOST).is_some() {
        quoted.push('…');
    }
    quoted
}
