//! The formats of configuration values: how each is parsed, checked and shown.

mod list;
mod scalar;
mod structure;
mod url;

pub(crate) use list::{ABSOLUTE_PATHS, ALLOWED_HOSTS, HOSTS, PRIVATE_RANGES, WORKSPACE_PATHS, is_host};
pub(crate) use scalar::{
    ADDRESS, FILE_PATH, Integer, Number, OneOf, PerMinute, SWITCH, SecretText, TEXT, TIME, TIME_OR_NEVER, TIME_OR_ZERO,
};
pub(crate) use structure::Structure;
pub(crate) use url::{BASE_URL, DatabaseUrl, SecretUrl, check_base_url};

use crate::yaml::{Node, NodeContent, parse_plain_bool};
use secrecy::SecretString;
use std::path::{Path, PathBuf};

/// Parses, checks and shows one type of value.
pub(crate) trait Format {
    type Value;
    const IS_SECRET: bool = false;

    /// Completes the sentence "expected …".
    fn describe_expected(&self) -> String;
    fn parse_value(&self, input: &RawInput<'_>, dirs: &BaseDirs<'_>) -> Result<Self::Value, Mismatch>;
    /// The value as `atoll config` prints it. It is valid YAML unless it is a secret.
    fn show_value(&self, value: &Self::Value) -> String;

    /// Everything in the value that must not appear in logs and events.
    fn secret_parts(&self, _value: &Self::Value) -> Vec<SecretString> {
        Vec::new()
    }
}

/// A format without parameters and secrets.
pub(crate) struct PlainFormat<T> {
    expected: &'static str,
    parse: fn(&RawInput<'_>, &BaseDirs<'_>) -> Result<T, Mismatch>,
    show: fn(&T) -> String,
}

impl<T> Format for PlainFormat<T> {
    type Value = T;

    fn describe_expected(&self) -> String {
        self.expected.to_owned()
    }

    fn parse_value(&self, input: &RawInput<'_>, dirs: &BaseDirs<'_>) -> Result<T, Mismatch> {
        (self.parse)(input, dirs)
    }

    fn show_value(&self, value: &T) -> String {
        (self.show)(value)
    }
}

/// A value before parsing: text from a flag or the environment, or a node of a file.
pub(crate) enum RawInput<'a> {
    Text(&'a str),
    Node(&'a Node),
}

/// The directories that relative paths and `~` start from.
pub(crate) struct BaseDirs<'a> {
    pub(crate) cwd: &'a Path,
    pub(crate) home: Option<&'a Path>,
}

/// The reason why a value does not have its format.
pub(crate) enum Mismatch {
    /// The node is of another type, such as a list.
    Type(&'static str),
    Value {
        value: String,
        detail: Option<String>,
    },
}

impl Mismatch {
    fn new(value: &str) -> Self {
        Self::Value { value: value.to_owned(), detail: None }
    }

    fn with_detail(value: &str, detail: impl Into<String>) -> Self {
        Self::Value { value: value.to_owned(), detail: Some(detail.into()) }
    }
}

impl<'a> RawInput<'a> {
    /// The text of a scalar, with whether it is a plain one of a file.
    fn scalar_text(&self) -> Result<(&'a str, Option<bool>), Mismatch> {
        match self {
            Self::Text(text) => Ok((text, None)),
            Self::Node(node) => match &node.content {
                NodeContent::Scalar { text, is_plain: plain } => Ok((text, Some(*plain))),
                NodeContent::List(_) => Err(Mismatch::Type("a list")),
                NodeContent::Map(_) => Err(Mismatch::Type("a mapping")),
            },
        }
    }

    /// A number or a boolean, which a file holds without quotes.
    fn unquoted_text(&self) -> Result<&'a str, Mismatch> {
        match self.scalar_text()? {
            (_, Some(false)) => Err(Mismatch::Type("text in quotes")),
            (text, _) => Ok(text),
        }
    }

    /// One line of text, in which a file writes `true` and `false` with quotes.
    fn single_line(&self) -> Result<&'a str, Mismatch> {
        let text = match self.scalar_text()? {
            (text, Some(true)) if parse_plain_bool(text).is_some() => {
                return Err(Mismatch::Type("true or false without quotes"));
            }
            (text, _) => text,
        };
        check_line(text).map_err(|detail| Mismatch::with_detail(text, detail))?;
        Ok(text)
    }
}

fn check_line(text: &str) -> Result<(), &'static str> {
    if text.trim().is_empty() {
        return Err("it is empty");
    }
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return Err("it is not UTF-8");
    }
    if text.chars().any(char::is_control) {
        return Err("it has control characters or line breaks");
    }
    Ok(())
}

/// Expands a leading `~` and resolves a relative path against the working directory.
fn resolve_path(text: &str, dirs: &BaseDirs<'_>) -> Result<PathBuf, Mismatch> {
    match text.strip_prefix("~/").or((text == "~").then_some("")) {
        Some(rest) => match dirs.home {
            Some(home) => Ok(home.join(rest)),
            None => Err(Mismatch::with_detail(text, "there is no home directory")),
        },
        None => Ok(dirs.cwd.join(text)),
    }
}
