//! Problems with a configuration. A load reports all of them at once.

use crate::source::SettingSource;
use std::fmt;
use std::path::PathBuf;

/// All problems of a configuration; never empty.
#[derive(Debug)]
pub struct Error {
    problems: Vec<ConfigProblem>,
}

impl Error {
    pub(crate) fn new(problems: Vec<ConfigProblem>) -> Self {
        Self { problems }
    }

    pub fn problems(&self) -> &[ConfigProblem] {
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

/// One problem: the key, its source, and what was expected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigProblem {
    #[error("{key} ({place}): unknown key{}", did_you_mean(.nearest))]
    UnknownKey { key: String, place: SettingSource, nearest: Option<String> },

    #[error("{key}: no flag sets this key{}", did_you_mean(.nearest))]
    UnknownFlag { key: String, nearest: Option<String> },

    #[error("{name}: unknown environment variable{}", did_you_mean(.nearest))]
    UnknownVariable { name: String, nearest: Option<String> },

    #[error("{key} ({place}): expected {expected}, found {found}")]
    WrongType { key: String, place: SettingSource, found: &'static str, expected: String },

    /// `value` is absent if the value may be a secret.
    #[error("{key} ({place}): expected {expected}, found {}", describe_value(.value, .detail))]
    InvalidValue { key: String, place: SettingSource, value: Option<String>, detail: Option<String>, expected: String },

    #[error("{key} ({place}): already set ({first}); set it once")]
    DuplicateKey { key: String, place: SettingSource, first: SettingSource },

    #[error("{}: cannot read the file: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },

    #[error("{}: invalid YAML: {detail}", SettingSource::File(path.clone(), *line))]
    InvalidYaml { path: PathBuf, line: Option<usize>, detail: String },

    #[error("{key}: has no value; {remedy}")]
    MissingValue { key: &'static str, remedy: &'static str },

    /// Valid values that conflict with each other.
    #[error("{key} ({place}): {detail}")]
    Conflict { key: &'static str, place: SettingSource, detail: String },

    #[error("ATOLL_PROFILE: `{profile}` is not a profile name; use letters, digits, `-` and `_`")]
    InvalidProfile { profile: String },

    #[error("ATOLL_PROFILE: no file for the profile `{profile}`; searched {}", join_paths(.searched))]
    MissingProfile { profile: String, searched: Vec<PathBuf> },
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

fn describe_value(value: &Option<String>, detail: &Option<String>) -> String {
    match (value, detail) {
        (Some(value), Some(detail)) => format!("`{value}`: {detail}"),
        (Some(value), None) => format!("`{value}`"),
        (None, Some(detail)) => format!("another value: {detail}"),
        (None, None) => "another value".to_owned(),
    }
}

fn join_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Shortens input for a message and escapes its control characters.
pub(crate) fn quote_input(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let mut quoted = String::new();
    for c in text.chars().take(MAX_CHARS) {
        if c.is_control() {
            quoted.extend(c.escape_default());
        } else {
            quoted.push(c);
        }
    }
    if text.chars().nth(MAX_CHARS).is_some() {
        quoted.push('…');
    }
    quoted
}
