//! Classifies the server's replies.

use bytes::Bytes;
use serde::Deserialize;
use std::time::Duration;

/// Part of a body that is not a problem document, for the log.
const MAX_EXCERPT_CHARS: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Ok(Bytes),
    /// Retry, at the earliest after the time that the server gave.
    Later {
        why: String,
        after: Option<Duration>,
    },
    /// 409 `stream_fenced`: another worker has taken over.
    Fenced(Problem),
    /// 409 `key_gap`: the server expects the key after this one.
    KeyGap {
        last_key: i64,
    },
    TooLarge(Problem),
    /// 401 or 403.
    Unauthorized(Problem),
    /// Any other permanent rejection.
    Refused(Problem),
}

/// The part of a problem document that the worker uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Problem {
    /// 0 for a server in the same process.
    #[serde(default)]
    pub status: u16,
    #[serde(default)]
    pub code: String,
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub detail: String,
    #[serde(default)]
    pub last_key: Option<i64>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = if self.detail.is_empty() { &self.title } else { &self.detail };
        if self.status > 0 {
            write!(f, "{} ", self.status)?;
        }
        f.write_str(&self.code)?;
        if text.is_empty() { Ok(()) } else { write!(f, ": {text}") }
    }
}

impl Problem {
    /// Parses a problem document. `reason` is the name of the HTTP status.
    pub fn from_body(status: u16, reason: &str, body: &[u8]) -> Self {
        let mut problem: Self = serde_json::from_slice(body).unwrap_or_else(|_| {
            let text: String =
                String::from_utf8_lossy(body).chars().filter(|c| !c.is_control()).take(MAX_EXCERPT_CHARS).collect();
            Self { detail: text, ..Self::default() }
        });
        problem.status = status;
        if problem.code.is_empty() {
            problem.code = reason.to_lowercase().replace(' ', "_");
        }
        problem
    }
}

impl Reply {
    pub const fn later(why: String) -> Self {
        Self::Later { why, after: None }
    }

    /// Classifies a response that is not a success.
    pub fn from_problem(problem: Problem, after: Option<Duration>) -> Self {
        match (problem.status, problem.code.as_str(), problem.last_key) {
            (0 | 409, "stream_fenced", _) => Self::Fenced(problem),
            (409, "key_gap", Some(last_key)) => Self::KeyGap { last_key },
            (413, ..) => Self::TooLarge(problem),
            (401 | 403, ..) => Self::Unauthorized(problem),
            (408 | 425 | 429 | 500.., ..) => Self::Later { why: problem.to_string(), after },
            _ => Self::Refused(problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, body: &str) -> Reply {
        Reply::from_problem(Problem::from_body(status, "", body.as_bytes()), None)
    }

    #[test]
    fn classifies_replies() {
        assert_eq!(reply(409, r#"{"code":"key_gap","last_key":7}"#), Reply::KeyGap { last_key: 7 });
        assert!(matches!(reply(409, r#"{"code":"stream_fenced"}"#), Reply::Fenced(_)));
        assert!(matches!(reply(409, r#"{"code":"not_your_lease"}"#), Reply::Refused(_)));
        assert!(matches!(reply(409, r#"{"code":"key_gap"}"#), Reply::Refused(_)));
        assert!(matches!(reply(413, ""), Reply::TooLarge(_)));
        assert!(matches!(reply(401, ""), Reply::Unauthorized(_)));
        assert!(matches!(reply(403, ""), Reply::Unauthorized(_)));
        for later in [408, 429, 500, 502, 503, 599] {
            assert!(matches!(reply(later, ""), Reply::Later { .. }), "{later}");
        }
        for refused in [302, 400, 404, 422] {
            assert!(matches!(reply(refused, ""), Reply::Refused(_)), "{refused}");
        }
    }

    #[test]
    fn formats_problems_of_servers_and_proxies() {
        let text = |status, reason, body: &str| Problem::from_body(status, reason, body.as_bytes()).to_string();
        let problem = r#"{"code":"unauthorized","detail":"no such token"}"#;
        assert_eq!(text(401, "Unauthorized", problem), "401 unauthorized: no such token");
        assert_eq!(text(502, "Bad Gateway", "<html>\nbad gateway"), "502 bad_gateway: <html>bad gateway");
        assert_eq!(text(404, "Not Found", ""), "404 not_found");
    }
}
