//! Login files: JSON files that an agent expects in its home.
//!
//! Refresh tokens are blanked before a file enters a sandbox, since a renewal there would invalidate the owner's login.
//! The fields remain, because agents cannot read a file without them.

use crate::bounds::{OutOfBounds, reject_field};
use serde_json::Value;
use std::collections::BTreeSet;

/// Maximum number of login files per sandbox.
pub const MAX_LOGIN_FILES: usize = 16;
const MAX_PATH_BYTES: usize = 200;
const MAX_PART_BYTES: usize = 100;
/// Maximum number of strings per file: the redactor searches for each of them in all logged text.
const MAX_STRINGS: usize = 200;
/// Files that the worker itself writes whenever it starts an agent.
const WORKER_FILES: [&str; 3] = [".codex/config.toml", ".gemini/settings.json", ".gemini/gemini.md"];
/// Suffix of the worker's temporary files.
const TEMPORARY_SUFFIX: &str = ".atoll-new";

/// Validates a path below the agent's home, such as `.local/share/opencode/auth.json`.
pub fn check_login_path(field: &str, path: &str) -> Result<(), OutOfBounds> {
    if path.starts_with('/') || path.starts_with('~') {
        return reject_field(field, "must be a path below the agent's home, without a leading `/` or `~`");
    }
    if path.len() > MAX_PATH_BYTES || !path.split('/').all(is_path_part) {
        return reject_field(
            field,
            "is a path like `.local/share/opencode/auth.json`: parts of letters, digits and `._-+@`, none of them `.` or \
             `..`, at most 200 characters in all",
        );
    }
    let plain = path.to_ascii_lowercase();
    if WORKER_FILES.contains(&plain.as_str()) || plain.ends_with(TEMPORARY_SUFFIX) {
        return reject_field(field, "is a file that Atoll writes itself");
    }
    Ok(())
}

fn is_path_part(part: &str) -> bool {
    let plain = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+@".contains(&byte));
    plain && (1..=MAX_PART_BYTES).contains(&part.len()) && part != "." && part != ".."
}

/// Validates the content. The error does not reveal it.
pub fn check_login_content(field: &str, text: &str) -> Result<(), OutOfBounds> {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return reject_field(field, "a login file must be JSON, so that refresh tokens in it can be blanked");
    };
    let mut texts = BTreeSet::new();
    collect_strings(&value, "", false, &mut texts);
    if texts.len() > MAX_STRINGS {
        return reject_field(field, format!("a login file has at most {MAX_STRINGS} different strings"));
    }
    Ok(())
}

/// Returns the file for a sandbox, with refresh tokens blanked; nothing if it is not JSON.
pub fn blank_refresh_tokens(text: &str) -> Option<String> {
    let mut value = serde_json::from_str(text).ok()?;
    blank_renewal_fields(&mut value, false);
    Some(value.to_string())
}

fn blank_renewal_fields(value: &mut Value, renews: bool) {
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::Number(number) if renews => *number = 0.into(),
        Value::String(text) if renews && !is_timestamp(text) => text.clear(),
        Value::Number(_) | Value::String(_) => {}
        Value::Array(items) => items.iter_mut().for_each(|item| blank_renewal_fields(item, renews)),
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(name, field)| blank_renewal_fields(field, renews || is_renewal_field(name)));
        }
    }
}

fn is_renewal_field(name: &str) -> bool {
    name.to_lowercase().contains("refresh")
}

/// Returns true for a timestamp, such as the last renewal's, which is not secret. Codex rejects a blank one.
fn is_timestamp(text: &str) -> bool {
    text.parse::<jiff::Timestamp>().is_ok()
}

/// Returns the strings of a login file to redact in logs: all but timestamps and kinds.
pub fn secret_strings(text: &str) -> BTreeSet<String> {
    let mut texts = BTreeSet::new();
    if let Ok(value) = serde_json::from_str(text) {
        collect_strings(&value, "", false, &mut texts);
    }
    texts
}

fn collect_strings(value: &Value, name: &str, renews: bool, texts: &mut BTreeSet<String>) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => {
            if !text.is_empty() && !is_timestamp(text) && (renews || !is_readable_field(name)) {
                texts.insert(text.clone());
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_strings(item, name, renews, texts)),
        Value::Object(fields) => {
            fields
                .iter()
                .for_each(|(name, field)| collect_strings(field, name, renews || is_renewal_field(name), texts));
        }
    }
}

/// Returns true for fields with ordinary words like `bearer` or `user:profile`, which must stay readable in logs.
fn is_readable_field(name: &str) -> bool {
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    ["type", "tokentype", "scope", "scopes", "subscriptiontype", "ratelimittier", "authmode"].contains(&&*letters)
}

#[cfg(test)]
#[path = "login_tests.rs"]
mod tests;
