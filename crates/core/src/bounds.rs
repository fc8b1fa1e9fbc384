//! How large and of what form things may be. Each bound has its own clear refusal.

use crate::event::Source;
use std::collections::BTreeMap;

pub const KB: usize = 1024;
pub const MB: usize = 1024 * KB;

pub const EVENT_DATA: usize = 100 * KB;
pub const EVENT_DEPTH: usize = 32;
pub const BATCH_EVENTS: usize = 500;
pub const BATCH_BYTES: usize = 8 * MB;
pub const BLOB_BYTES: usize = 64 * MB;
pub const MESSAGE_BYTES: usize = 10 * KB;
pub const PROMPT_BYTES: usize = MB;
pub const TITLE_CHARS: usize = 200;
pub const NAME_CHARS: usize = 100;
pub const LABELS: usize = 32;
pub const LABEL_VALUE: usize = 255;
pub const ENV: usize = 64;
pub const ENV_VALUE: usize = 32 * KB;
pub const REQUEST_BYTES: usize = 2 * MB;
pub const LEASE_SECONDS: u64 = 30;
pub const LEASES_AT_ONCE: usize = 100;

/// What a bound was crossed by: the field, and a sentence that says what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct OutOfBounds {
    pub field: String,
    pub detail: String,
}

pub(crate) fn refuse<T>(field: &str, detail: impl Into<String>) -> Result<T, OutOfBounds> {
    Err(OutOfBounds { field: field.to_owned(), detail: detail.into() })
}

/// The words of a message or prompt: not blank, bounded in bytes.
pub fn content(field: &str, text: &str, most: usize) -> Result<(), OutOfBounds> {
    if text.trim().is_empty() {
        return refuse(field, "must not be blank");
    }
    if text.len() > most {
        return refuse(field, format!("has {} bytes; at most {most} are allowed", text.len()));
    }
    if text.contains('\0') {
        return refuse(field, "must not contain NUL characters");
    }
    Ok(())
}

/// A short text for people: a title or a name, on one line.
pub fn line(field: &str, text: &str, most: usize) -> Result<(), OutOfBounds> {
    if text.trim().is_empty() {
        return refuse(field, "must not be blank");
    }
    if text.chars().count() > most {
        return refuse(field, format!("has {} characters; at most {most} are allowed", text.chars().count()));
    }
    if text.chars().any(char::is_control) {
        return refuse(field, "must not contain control characters");
    }
    Ok(())
}

/// The name of an image or a snapshot: it is part of a path on the server's disk.
pub fn stored_name(field: &str, name: &str) -> Result<(), OutOfBounds> {
    let fits = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
        && name.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit());
    if fits {
        return Ok(());
    }
    refuse(field, "must be 1 to 64 of a-z, 0-9, `.`, `_` and `-`, beginning with a letter or digit")
}

/// A snapshot's, which is kept with its project's id before it.
pub fn snapshot_name(field: &str, name: &str) -> Result<(), OutOfBounds> {
    stored_name(field, name)?;
    if name.len() > 32 { refuse(field, "must have at most 32 characters") } else { Ok(()) }
}

fn is_label_key(key: &str) -> bool {
    (1..=63).contains(&key.len())
        && key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._/-".contains(&b))
}

pub fn labels(labels: &BTreeMap<String, String>) -> Result<(), OutOfBounds> {
    if labels.len() > LABELS {
        return refuse("labels", format!("there are {}; at most {LABELS} are allowed", labels.len()));
    }
    for (key, value) in labels {
        if !is_label_key(key) {
            return refuse("labels", "a key has 1 to 63 characters of a-z, 0-9, `.`, `_`, `/` and `-`");
        }
        if key.starts_with("atoll") {
            return refuse("labels", "keys that begin with `atoll` are reserved");
        }
        if value.len() > LABEL_VALUE || value.contains('\0') {
            return refuse("labels", format!("a value has at most {LABEL_VALUE} bytes and no NUL"));
        }
    }
    Ok(())
}

/// Variables that would change how the sandbox itself is run.
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

/// The name of a variable that a sandbox may be given.
pub fn variable(field: &str, name: &str) -> Result<(), OutOfBounds> {
    if !(is_capital_name(name) && name.len() <= 255) {
        return refuse(field, "a name begins with A-Z or `_` and goes on with A-Z, 0-9 and `_`");
    }
    if RESERVED_ENV.contains(&name) || RESERVED_ENV_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return refuse(field, format!("`{name}` is reserved"));
    }
    Ok(())
}

/// `[A-Z_][A-Z0-9_]*`
pub(crate) fn is_capital_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|b| b.is_ascii_uppercase() || b == b'_');
    first && bytes.all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

pub fn env(env: &BTreeMap<String, String>) -> Result<(), OutOfBounds> {
    if env.len() > ENV {
        return refuse("env", format!("there are {}; at most {ENV} are allowed", env.len()));
    }
    for (name, value) in env {
        variable("env", name)?;
        if value.len() > ENV_VALUE || value.contains('\0') {
            return refuse("env", format!("`{name}` has more than {ENV_VALUE} bytes or a NUL"));
        }
    }
    Ok(())
}

/// A git URL: https, ssh or git; `file` only where the caller may name paths of the server.
pub fn git_url(field: &str, url: &str, may_use_files: bool) -> Result<(), OutOfBounds> {
    let schemes: &[&str] =
        if may_use_files { &["https://", "ssh://", "git://", "file:///"] } else { &["https://", "ssh://", "git://"] };
    let Some(rest) = schemes.iter().find_map(|scheme| url.strip_prefix(scheme)) else {
        return refuse(field, format!("must begin with {}", schemes.join(", ")));
    };
    if rest.is_empty() || rest.starts_with('-') || url.len() > 2048 {
        return refuse(field, "is not a git URL");
    }
    if url.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return refuse(field, "must not contain white space or control characters");
    }
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if user.contains(':') {
        return refuse(field, "must not carry a password; Atoll keeps credentials apart");
    }
    if user.starts_with('-') || host.starts_with('-') {
        return refuse(field, "is not a git URL"); // it would be taken for an option
    }
    Ok(())
}

/// A number of something, finite, above zero, at most `most`; never clamped.
pub fn amount(field: &str, value: f64, most: f64) -> Result<(), OutOfBounds> {
    if !value.is_finite() || value <= 0.0 {
        return refuse(field, "must be a number above 0");
    }
    if value > most {
        return refuse(field, format!("is {value}; the provider's maximum is {most}"));
    }
    Ok(())
}

/// What an event's `data` may be.
pub fn event_data(data: &str) -> Result<(), OutOfBounds> {
    if data.len() > EVENT_DATA {
        return refuse("data", format!("has {} bytes; at most {EVENT_DATA} are allowed, send a blob", data.len()));
    }
    if crate::json::depth(data) > EVENT_DEPTH {
        return refuse("data", format!("is deeper than {EVENT_DEPTH} levels"));
    }
    if !crate::json::is_sound(data) {
        return refuse("data", "has half of a character, or a number that is too large");
    }
    Ok(())
}

/// A worker may speak for its agent and itself, for nobody else.
pub fn worker_source(source: Source) -> Result<(), OutOfBounds> {
    match source {
        Source::Agent | Source::Worker => Ok(()),
        Source::System | Source::Guardian | Source::User | Source::Forge => {
            refuse("source", "a worker's event has the source `agent` or `worker`")
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
        assert!(labels(&map(&[("team/a.b_c-1", "x")])).is_ok());
        for bad in ["", "A", "a b", "atoll", "atoll.x", &"k".repeat(64)] {
            assert!(labels(&map(&[(bad, "x")])).is_err(), "{bad}");
        }
        assert!(labels(&map(&[("k", &"v".repeat(256))])).is_err());
        let many = (0..33).map(|n| (format!("k{n}"), String::new())).collect();
        assert!(labels(&many).is_err());
    }

    #[test]
    fn environment_names_are_bounded_and_some_are_reserved() {
        assert!(env(&map(&[("_A1", "x")])).is_ok());
        for bad in ["", "a", "1A", "A-B", "PATH", "ATOLL_TOKEN", "LD_PRELOAD"] {
            assert!(env(&map(&[(bad, "x")])).is_err(), "{bad}");
        }
    }

    #[test]
    fn git_urls_have_a_known_scheme_and_no_password() {
        assert!(git_url("repo.url", "https://example.org/a.git", false).is_ok());
        assert!(git_url("repo.url", "ssh://git@example.org:22/a", false).is_ok());
        for bad in [
            "ext::sh -c id",
            "file:///etc",
            "https://",
            "https://-x",
            "https://u:p@h/x",
            "ssh://u:p@h/x",
            "ssh://git@-oProxyCommand=id/x",
            "https://a b",
            "/x",
        ] {
            assert!(git_url("repo.url", bad, false).is_err(), "{bad}");
        }
        assert!(git_url("repo.url", "file:///srv/a", true).is_ok());
    }

    #[test]
    fn content_is_never_blank() {
        assert!(content("content", " \n\t", 10).is_err());
        assert!(content("content", "12345678901", 10).is_err());
        assert!(content("content", "a\0b", 10).is_err());
        assert!(content("content", "ä", 2).is_ok());
    }
}
