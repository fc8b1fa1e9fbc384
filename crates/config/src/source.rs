//! The source of a value, and the lines of `atoll config`.

use serde::{Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingSource {
    /// Command-line flag, with its dashes.
    Flag(String),
    /// Environment variable.
    Env(String),
    /// File, and the key's line in it.
    File(PathBuf, Option<usize>),
    Default,
}

impl fmt::Display for SettingSource {
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

impl Serialize for SettingSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One line of `atoll config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    pub key: &'static str,
    /// `None` if the key has no value; a secret is `***`.
    pub value: Option<String>,
    pub source: SettingSource,
    #[serde(rename = "doc")]
    pub help: &'static str,
}

/// A key that is set and has no effect in this version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    pub key: &'static str,
    pub source: SettingSource,
    pub text: &'static str,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}) has no effect: {}", self.key, self.source, self.text)
    }
}
