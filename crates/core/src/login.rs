//! Login files: JSON that an agent looks for in its home. What would let a sandbox renew the login is blanked before it
//! gets there: whoever renews one makes its owner's worthless. The fields stay, since agents can't read a file that
//! lacks them.

use crate::bounds::{OutOfBounds, refuse};
use serde_json::Value;
use std::collections::BTreeSet;

/// How many a sandbox has at most.
pub const FILES: usize = 16;
const PATH_BYTES: usize = 200;
const PART_BYTES: usize = 100;
/// How many texts there are in one at most: each is looked for in everything that goes into the log.
const TEXTS: usize = 200;
/// What the worker writes itself whenever it starts an agent.
const OWN: [&str; 3] = [".codex/config.toml", ".gemini/settings.json", ".gemini/gemini.md"];
/// How it calls what it has not written to its end.
const UNFINISHED: &str = ".atoll-new";

/// Below the agent's home: `.local/share/opencode/auth.json`.
pub fn path(field: &str, path: &str) -> Result<(), OutOfBounds> {
    if path.starts_with('/') || path.starts_with('~') {
        return refuse(field, "is a path below the agent's home, without `/` or `~` at its beginning");
    }
    if path.len() > PATH_BYTES || !path.split('/').all(is_part) {
        return refuse(
            field,
            "is a path like `.local/share/opencode/auth.json`: parts of letters, digits and `._-+@`, none of them `.` or \
             `..`, at most 200 characters in all",
        );
    }
    let plain = path.to_ascii_lowercase();
    if OWN.contains(&plain.as_str()) || plain.ends_with(UNFINISHED) {
        return refuse(field, "is a file that Atoll writes itself");
    }
    Ok(())
}

fn is_part(part: &str) -> bool {
    let plain = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-+@".contains(&byte));
    plain && (1..=PART_BYTES).contains(&part.len()) && part != "." && part != ".."
}

/// Says nothing of what it holds.
pub fn content(field: &str, text: &str) -> Result<(), OutOfBounds> {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return refuse(field, "a login file must be JSON: what would renew the login is blanked in it");
    };
    let mut texts = BTreeSet::new();
    gather(&value, "", false, &mut texts);
    if texts.len() > TEXTS {
        return refuse(field, format!("a login file has at most {TEXTS} different texts"));
    }
    Ok(())
}

/// The file as a sandbox gets it; nothing where it is no JSON.
pub fn blanked(text: &str) -> Option<String> {
    let mut value = serde_json::from_str(text).ok()?;
    without_renewal(&mut value, false);
    Some(value.to_string())
}

fn without_renewal(value: &mut Value, renews: bool) {
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::Number(number) if renews => *number = 0.into(),
        Value::String(text) if renews && !is_moment(text) => text.clear(),
        Value::Number(_) | Value::String(_) => {}
        Value::Array(items) => items.iter_mut().for_each(|item| without_renewal(item, renews)),
        Value::Object(fields) => {
            fields.iter_mut().for_each(|(name, field)| without_renewal(field, renews || is_of_renewal(name)));
        }
    }
}

fn is_of_renewal(name: &str) -> bool {
    name.to_lowercase().contains("refresh")
}

/// When something was renewed, which renews nothing. Codex can't read a file in which that is blank.
fn is_moment(text: &str) -> bool {
    text.parse::<jiff::Timestamp>().is_ok()
}

/// Texts in a login file that must not be seen in a log: all but those that only say when something was, or of what kind it is.
pub fn texts(text: &str) -> BTreeSet<String> {
    let mut texts = BTreeSet::new();
    if let Ok(value) = serde_json::from_str(text) {
        gather(&value, "", false, &mut texts);
    }
    texts
}

fn gather(value: &Value, name: &str, renews: bool, texts: &mut BTreeSet<String>) {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
        Value::String(text) => {
            if !text.is_empty() && !is_moment(text) && (renews || !is_kind(name)) {
                texts.insert(text.clone());
            }
        }
        Value::Array(items) => items.iter().for_each(|item| gather(item, name, renews, texts)),
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| gather(field, name, renews || is_of_renewal(name), texts));
        }
    }
}

/// Words like `bearer` or `user:profile`: whoever took them out would take ordinary words out of every log.
fn is_kind(name: &str) -> bool {
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    ["type", "tokentype", "scope", "scopes", "subscriptiontype", "ratelimittier", "authmode"].contains(&&*letters)
}

#[cfg(test)]
#[path = "login_tests.rs"]
mod tests;
