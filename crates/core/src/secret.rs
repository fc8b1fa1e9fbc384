//! What a secret may be: its name, its value, where it may be sent, what it is called inside.

use crate::bounds::{self, KB, OutOfBounds, refuse};
use crate::login;

pub const NAME_BYTES: usize = 64;
pub const VALUE_BYTES: usize = 64 * KB;
/// In one project, and for the deployment as a whole.
pub const PER_PROJECT: usize = 200;
pub const UPSTREAMS: usize = 50;
const UPSTREAM_BYTES: usize = 255;

/// How a sandbox that names it holds its value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exposure {
    /// In the environment of everything there.
    Variable(String),
    /// In a file below the agent's home, without what would renew it.
    File(String),
}

impl Exposure {
    pub fn check(&self) -> Result<(), OutOfBounds> {
        match self {
            Self::Variable(name) => bounds::variable("expose", name),
            Self::File(path) => login::path("expose_file", path),
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
pub fn is_name(name: &str) -> bool {
    bounds::is_capital_name(name) && name.len() <= NAME_BYTES
}

pub fn name(field: &str, name: &str) -> Result<(), OutOfBounds> {
    if is_name(name) {
        return Ok(());
    }
    refuse(field, "a secret's name begins with A-Z or `_` and goes on with A-Z, 0-9 and `_`, at most 64 in all")
}

/// Says neither the value nor how long it is.
pub fn value(value: &str, exposure: Option<&Exposure>) -> Result<(), OutOfBounds> {
    let (most, why) = match exposure {
        Some(Exposure::Variable(_)) => (bounds::ENV_VALUE, " as a variable"),
        Some(Exposure::File(_)) | None => (VALUE_BYTES, ""),
    };
    if value.is_empty() {
        return refuse("value", "must not be empty");
    }
    if value.len() > most {
        return refuse("value", format!("a secret has at most {most} bytes{why}"));
    }
    if value.contains('\0') {
        return refuse("value", "must not contain NUL characters");
    }
    match exposure {
        Some(Exposure::File(_)) => login::content("value", value),
        Some(Exposure::Variable(_)) | None => Ok(()),
    }
}

/// Hosts that the value may be sent to: names, `*.` before one for all below it, each with an optional port.
pub fn upstreams(patterns: &[String]) -> Result<(), OutOfBounds> {
    if patterns.len() > UPSTREAMS {
        return refuse("upstreams", format!("there are {}; at most {UPSTREAMS} are allowed", patterns.len()));
    }
    match patterns.iter().find(|pattern| !is_upstream(pattern)) {
        None => Ok(()),
        Some(_) => refuse("upstreams", "write hosts like `api.example.org`, `*.example.org` or `example.org:8443`"),
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
    // All below a top-level domain is nearly everything.
    let is_broad = host.starts_with("*.") && !name.contains('.');
    pattern.len() <= UPSTREAM_BYTES && !is_broad && name.split('.').all(label) && port.is_none_or(port_is_good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_like_variables() {
        for good in ["A", "_", "API_KEY_2", &"N".repeat(64)] {
            assert!(name("name", good).is_ok(), "{good}");
        }
        for bad in ["", "a", "1A", "A-B", "Ä", "A B", "A\n", &"N".repeat(65)] {
            assert!(name("name", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_value_is_bounded_and_its_refusal_says_nothing_of_it() {
        let (variable, file) = (Exposure::Variable("X".into()), Exposure::File("x".into()));
        assert!(value("x", Some(&variable)).is_ok() && value(&"x".repeat(VALUE_BYTES), None).is_ok());
        assert!(value(&format!("[{}]", " ".repeat(VALUE_BYTES - 2)), Some(&file)).is_ok());
        for (bad, exposure) in [
            ("", None),
            (&*"hunter2".repeat(10_000), None),
            (&"hunter2".repeat(5000), Some(&variable)),
            ("hunter2\0", None),
            ("hunter2", Some(&file)),
        ] {
            let refused = value(bad, exposure).unwrap_err().to_string();
            assert!(!refused.contains("hunter2") && !refused.contains(&bad.len().to_string()), "{refused}");
        }
    }

    #[test]
    fn upstreams_are_hosts() {
        let one = |pattern: &str| upstreams(&[pattern.to_owned()]);
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
        assert!(upstreams(&vec!["a.b".to_owned(); UPSTREAMS + 1]).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_judged(text in ".{0,80}") {
            let _judged = (name("n", &text), value(&text, Some(&Exposure::File("x".into()))), upstreams(std::slice::from_ref(&text)));
        }
    }
}
