//! What the server's answers mean to a worker.

use super::{Bytes, Deserialize, Duration, StatusCode};

/// How much of an answer that is no problem document goes into a log line.
const EXCERPT: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Ok(Bytes),
    /// Not now: try again, at the earliest after this long if the server said so.
    Later {
        why: String,
        after: Option<Duration>,
    },
    /// 409 `stream_fenced`: another worker has taken over.
    Fenced(Problem),
    /// 409 `key_gap`: the server goes on after this key.
    KeyGap {
        last_key: i64,
    },
    TooLarge(Problem),
    /// 401 or 403.
    Unauthorized(Problem),
    /// Any other no, that will be a no the next time too.
    Refused(Problem),
}

/// A problem document, as far as a worker needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Problem {
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
        let words = if self.detail.is_empty() { &self.title } else { &self.detail };
        write!(f, "{} {}", self.status, self.code)?;
        if words.is_empty() { Ok(()) } else { write!(f, ": {words}") }
    }
}

impl Problem {
    pub fn of(status: StatusCode, body: &[u8]) -> Self {
        let mut problem: Self = serde_json::from_slice(body).unwrap_or_else(|_| {
            let text: String =
                String::from_utf8_lossy(body).chars().filter(|c| !c.is_control()).take(EXCERPT).collect();
            Self { detail: text, ..Self::default() }
        });
        problem.status = status.as_u16();
        if problem.code.is_empty() {
            problem.code = status.canonical_reason().unwrap_or("unknown").to_lowercase().replace(' ', "_");
        }
        problem
    }
}

impl Reply {
    pub(super) const fn later(why: String) -> Self {
        Self::Later { why, after: None }
    }

    pub(super) fn of(status: StatusCode, after: Option<Duration>, body: Bytes) -> Self {
        if status.is_success() {
            return Self::Ok(body);
        }
        let problem = Problem::of(status, &body);
        match (status.as_u16(), problem.code.as_str(), problem.last_key) {
            (409, "stream_fenced", _) => Self::Fenced(problem),
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
        Reply::of(StatusCode::from_u16(status).unwrap(), None, Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn answers_are_told_apart() {
        assert_eq!(reply(200, "{}"), Reply::Ok(Bytes::from("{}")));
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
    fn a_problem_reads_as_a_sentence_also_when_a_proxy_wrote_it() {
        let text = |status, body: &str| Problem::of(StatusCode::from_u16(status).unwrap(), body.as_bytes()).to_string();
        assert_eq!(text(401, r#"{"code":"unauthorized","detail":"no such token"}"#), "401 unauthorized: no such token");
        assert_eq!(text(502, "<html>\nbad gateway"), "502 bad_gateway: <html>bad gateway");
        assert_eq!(text(404, ""), "404 not_found");
    }
}
