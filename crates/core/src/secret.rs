//! Rules for secrets: names, values, upstreams and exposure.

use crate::bounds::{self, KB, OutOfBounds, reject_field};
use crate::login;

pub const MAX_NAME_BYTES: usize = 64;
pub const MAX_VALUE_BYTES: usize = 64 * KB;
/// Maximum per project, and for the deployment.
pub const MAX_SECRETS_PER_PROJECT: usize = 200;
pub const MAX_UPSTREAMS: usize = 50;
const MAX_UPSTREAM_BYTES: usize = 255;

/// Form in which a sandbox that uses the secret gets its value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exposure {
    /// Environment variable, visible to every process in the sandbox.
    Variable(String),
    /// File below the agent's home, without the tokens that renew the login.
    File(String),
}

impl Exposure {
    pub fn check_bounds(&self) -> Result<(), OutOfBounds> {
        match self {
            Self::Variable(name) => bounds::check_variable_name("expose", name),
            Self::File(path) => login::check_login_path("expose_file", path),
        }
    }
}

impl std::fmt::Display for Exposure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Variable(name) => f.write_str(name),
            Self::File(path) => write!(f, "~/{path}"),
        }
    }
}

/// `[A-Z_][A-Z0-9_]{0,63}`
pub fn is_secret_name(name: &str) -> bool {
    bounds::is_capital_name(name) && name.len() <= MAX_NAME_BYTES
}

pub fn check_secret_name(field: &str, name: &str) -> Result<(), OutOfBounds> {
    if is_secret_name(name) {
        return Ok(());
    }
    reject_field(field, "a secret's name starts with A-Z or `_`, followed by A-Z, 0-9 and `_`, at most 64 characters")
}

/// Validates a value. The error reveals neither the value nor its length.
pub fn check_secret_value(value: &str, exposure: Option<&Exposure>) -> Result<(), OutOfBounds> {
    let (most, why) = match exposure {
        Some(Exposure::Variable(_)) => (bounds::MAX_ENV_VALUE_BYTES, " as a variable"),
        Some(Exposure::File(_)) | None => (MAX_VALUE_BYTES, ""),
    };
    if value.is_empty() {
        return reject_field("value", "must not be empty");
    }
    if value.len() > most {
        return reject_field("value", format!("a secret has at most {most} bytes{why}"));
    }
    if value.contains('\0') {
        return reject_field("value", "must not contain NUL characters");
    }
    match exposure {
        Some(Exposure::File(_)) => login::check_login_content("value", value),
        Some(Exposure::Variable(_)) | None => Ok(()),
    }
}

/// Validates the hosts that the value may be sent to: names or `*.` patterns, each with an optional port.
pub fn check_upstreams(patterns: &[String]) -> Result<(), OutOfBounds> {
    if patterns.len() > MAX_UPSTREAMS {
        return reject_field("upstreams", format!("there are {}; at most {MAX_UPSTREAMS} are allowed", patterns.len()));
    }
    match patterns.iter().find(|pattern| !is_upstream(pattern)) {
        None => Ok(()),
        Some(_) => {
            reject_field("upstreams", "write hosts like `api.example.org`, `*.example.org` or `example.org:8443`")
        }
    }
}

fn is_upstream(pattern: &str) -> bool {
    let (host, port) = match pattern.rsplit_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (pattern, None),
    };
    let port_is_good = |port: &str| {
        let digits = port.bytes().all(|b| b.is_ascii_digit()) && !port.starts_with('0');
        digits && port.parse::<u16>().is_ok()
    };
    let name = host.strip_prefix("*.").unwrap_or(host);
    let label = |label: &str| {
        let inner = label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        inner && (1..=63).contains(&label.len()) && !label.starts_with('-') && !label.ends_with('-')
    };
    // All names below a top-level domain are too broad.
    let is_broad = host.starts_with("*.") && !name.contains('.');
    pattern.len() <= MAX_UPSTREAM_BYTES && !is_broad && name.split('.').all(label) && port.is_none_or(port_is_good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_follow_the_rules_of_variables() {
        for good in ["A", "_", "API_KEY_2", &"N".repeat(64)] {
            assert!(check_secret_name("name", good).is_ok(), "{good}");
        }
        for bad in ["", "a", "1A", "A-B", "Ä", "A B", "A\n", &"N".repeat(65)] {
            assert!(check_secret_name("name", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_value_is_bounded_and_errors_do_not_reveal_it() {
        let (variable, file) = (Exposure::Variable("X".into()), Exposure::File("x".into()));
        assert!(
            check_secret_value("x", Some(&variable)).is_ok()
                && check_secret_value(&"x".repeat(MAX_VALUE_BYTES), None).is_ok()
        );
        assert!(check_secret_value(&format!("[{}]", " ".repeat(MAX_VALUE_BYTES - 2)), Some(&file)).is_ok());
        for (bad, exposure) in [
            ("", None),
            (&*"hunter2".repeat(10_000), None),
            (&"hunter2".repeat(5000), Some(&variable)),
            ("hunter2\0", None),
            ("hunter2", Some(&file)),
        ] {
            let refused = check_secret_value(bad, exposure).unwrap_err().to_string();
            assert!(!refused.contains("hunter2") && !refused.contains(&bad.len().to_string()), "{refused}");
        }
    }

    #[test]
    fn upstreams_are_hosts() {
        let one = |pattern: &str| check_upstreams(&[pattern.to_owned()]);
        for good in ["example.org", "*.example.org", "api.example.org:8443", "localhost", "127.0.0.1:80"] {
            assert!(one(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "*",
            "*.",
            "*.org",
            "https://example.org",
            "example.org/x",
            "a..b",
            "-a.b",
            "EXAMPLE.org",
            "a.b:0",
            "a.b:70000",
            "a.b:",
            "a b",
            "a.*.b",
            "u@a.b",
            "a.b:8x",
        ] {
            assert!(one(bad).is_err(), "{bad}");
        }
        assert!(check_upstreams(&vec!["a.b".to_owned(); MAX_UPSTREAMS + 1]).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_judged(text in ".{0,80}") {
            let _judged = (check_secret_name("n", &text), check_secret_value(&text, Some(&Exposure::File("x".into()))), check_upstreams(std::slice::from_ref(&text)));
        }
    }
}
