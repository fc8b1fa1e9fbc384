//! Size and format limits of user input. Each limit has its own error text.

use crate::event::EventSource;
use std::collections::BTreeMap;

pub const KB: usize = 1024;
pub const MB: usize = 1024 * KB;

pub const MAX_EVENT_DATA_BYTES: usize = 100 * KB;
pub const MAX_EVENT_DATA_DEPTH: usize = 32;
pub const MAX_BATCH_EVENTS: usize = 500;
pub const MAX_BATCH_BYTES: usize = 8 * MB;
pub const MAX_BLOB_BYTES: usize = 64 * MB;
/// Limit of a text that an event shows in part. Its blob holds at most this much; the event says the whole size.
pub const MAX_WHOLE_TEXT_BYTES: usize = 8 * MB;
pub const MAX_MESSAGE_BYTES: usize = 10 * KB;
pub const MAX_PROMPT_BYTES: usize = MB;
pub const MAX_TITLE_CHARS: usize = 200;
pub const MAX_NAME_CHARS: usize = 100;
pub const MAX_LABELS: usize = 32;
pub const MAX_LABEL_VALUE_BYTES: usize = 255;
pub const MAX_ENV_VARIABLES: usize = 64;
pub const MAX_ENV_VALUE_BYTES: usize = 32 * KB;
pub const MAX_REQUEST_BYTES: usize = 2 * MB;
pub const MAX_LEASES_AT_ONCE: usize = 100;

/// A violated limit: the field, and a sentence with the allowed values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct OutOfBounds {
    pub field: String,
    pub detail: String,
}

pub(crate) fn reject_field<T>(field: &str, detail: impl Into<String>) -> Result<T, OutOfBounds> {
    Err(OutOfBounds { field: field.to_owned(), detail: detail.into() })
}

/// Validates the text of a message or prompt: not blank, bounded in bytes.
pub fn check_content(field: &str, text: &str, most: usize) -> Result<(), OutOfBounds> {
    if text.trim().is_empty() {
        return reject_field(field, "must not be blank");
    }
    if text.len() > most {
        return reject_field(field, format!("has {} bytes; at most {most} are allowed", text.len()));
    }
    if text.contains('\0') {
        return reject_field(field, "must not contain NUL characters");
    }
    Ok(())
}

/// Validates a single-line title or name.
pub fn check_line(field: &str, text: &str, most: usize) -> Result<(), OutOfBounds> {
    if text.trim().is_empty() {
        return reject_field(field, "must not be blank");
    }
    if text.chars().count() > most {
        return reject_field(field, format!("has {} characters; at most {most} are allowed", text.chars().count()));
    }
    if text.chars().any(char::is_control) {
        return reject_field(field, "must not contain control characters");
    }
    Ok(())
}

/// Validates the name of an image or a snapshot, which becomes part of a path on the server's disk.
pub fn check_stored_name(field: &str, name: &str) -> Result<(), OutOfBounds> {
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
        && name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit());
    if fits {
        return Ok(());
    }
    reject_field(field, "must be 1 to 64 of a-z, 0-9, `.`, `_` and `-`, beginning with a letter or digit")
}

/// Validates the name of a snapshot, which is stored with its project's id as prefix.
pub fn check_snapshot_name(field: &str, name: &str) -> Result<(), OutOfBounds> {
    check_stored_name(field, name)?;
    if name.len() > 32 { reject_field(field, "must have at most 32 characters") } else { Ok(()) }
}

fn is_label_key(key: &str) -> bool {
    (1..=63).contains(&key.len())
        && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._/-".contains(&b))
}

pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), OutOfBounds> {
    if labels.len() > MAX_LABELS {
        return reject_field("labels", format!("there are {}; at most {MAX_LABELS} are allowed", labels.len()));
    }
    for (key, value) in labels {
        if !is_label_key(key) {
            return reject_field("labels", "a key has 1 to 63 characters of a-z, 0-9, `.`, `_`, `/` and `-`");
        }
        if key.starts_with("atoll") {
            return reject_field("labels", "keys that begin with `atoll` are reserved");
        }
        if value.len() > MAX_LABEL_VALUE_BYTES || value.contains('\0') {
            return reject_field("labels", format!("a value has at most {MAX_LABEL_VALUE_BYTES} bytes and no NUL"));
        }
    }
    Ok(())
}

/// Variables that would change how the sandbox itself runs.
const RESERVED_ENV: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "IS_SANDBOX",
    "SANDBOX_ID",
    "CALLBACK_URL",
    "TASK_ID",
    "TASK_DESCRIPTION",
    "TASK_DATA_BASE64",
    "BRANCH_NAME",
    "SPEC_ID",
    "SPEC_PHASE",
    "PROJECT_ID",
];
const RESERVED_ENV_PREFIXES: &[&str] = &["ATOLL_", "LD_", "GIT_CONFIG"];

/// Validates the name of an environment variable of a sandbox.
pub fn check_variable_name(field: &str, name: &str) -> Result<(), OutOfBounds> {
    if !(is_capital_name(name) && name.len() <= 255) {
        return reject_field(field, "a name starts with A-Z or `_`, followed by A-Z, 0-9 and `_`");
    }
    if RESERVED_ENV.contains(&name) || RESERVED_ENV_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return reject_field(field, format!("`{name}` is reserved"));
    }
    Ok(())
}

/// `[A-Z_][A-Z0-9_]*`
pub(crate) fn is_capital_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|b| b.is_ascii_uppercase() || b == b'_');
    first && bytes.all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

pub fn check_env(env: &BTreeMap<String, String>) -> Result<(), OutOfBounds> {
    if env.len() > MAX_ENV_VARIABLES {
        return reject_field("env", format!("there are {}; at most {MAX_ENV_VARIABLES} are allowed", env.len()));
    }
    for (name, value) in env {
        check_variable_name("env", name)?;
        if value.len() > MAX_ENV_VALUE_BYTES || value.contains('\0') {
            return reject_field("env", format!("`{name}` has more than {MAX_ENV_VALUE_BYTES} bytes or a NUL"));
        }
    }
    Ok(())
}

/// Validates a finite number above zero and at most `most`; never clamps.
pub fn check_amount(field: &str, value: f64, most: f64) -> Result<(), OutOfBounds> {
    if !value.is_finite() || value <= 0.0 {
        return reject_field(field, "must be a number above 0");
    }
    if value > most {
        return reject_field(field, format!("is {value}; the provider's maximum is {most}"));
    }
    Ok(())
}

/// Validates an event's `data`.
pub fn check_event_data(data: &str) -> Result<(), OutOfBounds> {
    if data.len() > MAX_EVENT_DATA_BYTES {
        return reject_field(
            "data",
            format!("has {} bytes; at most {MAX_EVENT_DATA_BYTES} are allowed, send a blob", data.len()),
        );
    }
    if crate::json::nesting_depth(data) > MAX_EVENT_DATA_DEPTH {
        return reject_field("data", format!("is deeper than {MAX_EVENT_DATA_DEPTH} levels"));
    }
    if !crate::json::is_portable_json(data) {
        return reject_field("data", "contains half of a surrogate pair, or a number that is too large");
    }
    Ok(())
}

/// Validates the source of a worker's event: the agent or the worker itself.
pub fn check_worker_source(source: EventSource) -> Result<(), OutOfBounds> {
    match source {
        EventSource::Agent | EventSource::Worker => Ok(()),
        EventSource::System | EventSource::Guardian | EventSource::User | EventSource::Forge => {
            reject_field("source", "a worker's event has the source `agent` or `worker`")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn labels_are_bounded() {
        assert!(check_labels(&map(&[("team/a.b_c-1", "x")])).is_ok());
        for bad in ["", "A", "a b", "atoll", "atoll.x", &"k".repeat(64)] {
            assert!(check_labels(&map(&[(bad, "x")])).is_err(), "{bad}");
        }
        assert!(check_labels(&map(&[("k", &"v".repeat(256))])).is_err());
        let many = (0..33).map(|n| (format!("k{n}"), String::new())).collect();
        assert!(check_labels(&many).is_err());
    }

    #[test]
    fn environment_names_are_bounded_and_some_are_reserved() {
        assert!(check_env(&map(&[("_A1", "x")])).is_ok());
        for bad in ["", "a", "1A", "A-B", "PATH", "ATOLL_TOKEN", "LD_PRELOAD"] {
            assert!(check_env(&map(&[(bad, "x")])).is_err(), "{bad}");
        }
    }

    #[test]
    fn content_is_never_blank() {
        assert!(check_content("content", " \n\t", 10).is_err());
        assert!(check_content("content", "12345678901", 10).is_err());
        assert!(check_content("content", "a\0b", 10).is_err());
        assert!(check_content("content", "ä", 2).is_ok());
    }
}
