//! Where a value came from, and how settings are shown to people.

use serde::{Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A command-line flag, with its dashes.
    Flag(String),
    /// The name of an environment variable.
    Env(String),
    /// A file, and the line of the key in it.
    File(PathBuf, Option<usize>),
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::File(path, Some(line)) => write!(f, "{}:{line}", path.display()),
            Self::File(path, None) => write!(f, "{}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One line of `atoll config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shown {
    pub key: &'static str,
    /// `None` where the key has no value; a secret is `***`.
    pub value: Option<String>,
    pub source: Source,
    pub doc: &'static str,
}

/// A setting that is accepted and does not do what one might think.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    pub key: &'static str,
    pub source: Source,
    pub text: &'static str,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) has no effect: {}", self.key, self.source, self.text)
    }
}
