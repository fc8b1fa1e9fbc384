//! Finds credentials in text by their format. It reads each text once and keeps only counts.

use super::{Detector, Finding, MAX_EVIDENCE};
use crate::redact::REDACTED;
use std::collections::{BTreeMap, VecDeque};

/// Format of a credential: a prefix and the characters after it.
struct SecretFormat {
    kind: &'static str,
    prefix: &'static str,
    /// Minimum number of characters after the prefix.
    least: usize,
    is_part: fn(char) -> bool,
}

const fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

const fn is_upper(c: char) -> bool {
    c.is_ascii_uppercase() || c.is_ascii_digit()
}

const FORMATS: &[SecretFormat] = &[
    SecretFormat { kind: "an AWS access key", prefix: "AKIA", least: 16, is_part: is_upper },
    SecretFormat { kind: "a GitHub token", prefix: "ghp_", least: 36, is_part: is_word },
    SecretFormat { kind: "a GitHub token", prefix: "gho_", least: 36, is_part: is_word },
    SecretFormat { kind: "a GitHub token", prefix: "ghs_", least: 36, is_part: is_word },
    SecretFormat { kind: "a GitHub token", prefix: "github_pat_", least: 50, is_part: is_word },
    SecretFormat { kind: "a GitLab token", prefix: "glpat-", least: 20, is_part: is_word },
    SecretFormat { kind: "an Anthropic key", prefix: "sk-ant-", least: 40, is_part: is_word },
    SecretFormat { kind: "an OpenAI key", prefix: "sk-proj-", least: 40, is_part: is_word },
    SecretFormat { kind: "a Google API key", prefix: "AIza", least: 35, is_part: is_word },
    SecretFormat { kind: "a Slack token", prefix: "xoxb-", least: 30, is_part: is_word },
    SecretFormat { kind: "a Stripe key", prefix: "sk_live_", least: 24, is_part: is_word },
    SecretFormat { kind: "an npm token", prefix: "npm_", least: 36, is_part: is_word },
];

const PRIVATE_KEY: &str = "PRIVATE KEY-----";
const PRIVATE_KEY_KIND: &str = "a private key";
const KNOWN_SECRET_KIND: &str = "a secret of the project";
/// Characters of a private key that its header alone does not have.
const MIN_KEY_CHARS: usize = 100;
/// Placeholders such as `ghp_xxxxxxxx` have fewer different characters.
const MIN_DISTINCT_CHARS: usize = 8;

#[derive(Debug, Default)]
pub(super) struct SecretDetector {
    /// Events by the kind of secret; there are only as many as formats.
    seen: BTreeMap<&'static str, VecDeque<i64>>,
}

impl SecretDetector {
    pub fn check_text(&mut self, seq: i64, text: &str) -> Option<Finding> {
        let kind = find_secret(text)?;
        let seqs = self.seen.entry(kind).or_default();
        if seqs.len() >= MAX_EVIDENCE {
            seqs.pop_front();
        }
        seqs.push_back(seq);
        let detail = Some(kind.to_owned());
        Some(Finding { detail, ..Finding::new(Detector::SecretInOutput, seq, kind, seqs.iter().copied()) })
    }

    pub fn kinds(&self) -> u32 {
        u32::try_from(self.seen.len()).unwrap_or(u32::MAX)
    }
}

/// The kind of the first credential in a text. The redactor has already replaced those that the server knows.
fn find_secret(text: &str) -> Option<&'static str> {
    if text.contains(REDACTED) {
        return Some(KNOWN_SECRET_KIND);
    }
    let found = FORMATS.iter().find(|format| format.is_in(text)).map(|format| format.kind);
    found.or_else(|| has_private_key(text).then_some(PRIVATE_KEY_KIND))
}

impl SecretFormat {
    fn is_in(&self, text: &str) -> bool {
        text.match_indices(self.prefix).any(|(at, _)| {
            let is_start = !text[..at].ends_with(is_word);
            let secret: String =
                text[at + self.prefix.len()..].chars().take_while(|c| (self.is_part)(*c)).take(200).collect();
            is_start && secret.len() >= self.least && looks_random(&secret)
        })
    }
}

fn looks_random(secret: &str) -> bool {
    let distinct: std::collections::BTreeSet<char> = secret.chars().collect();
    distinct.len() >= MIN_DISTINCT_CHARS && !secret.to_ascii_lowercase().contains("example")
}

fn has_private_key(text: &str) -> bool {
    text.match_indices(PRIVATE_KEY).any(|(at, _)| {
        let begins = text[..at].rfind("-----BEGIN ").is_some_and(|begin| at - begin < 40);
        let is_key = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=' | '\n' | '\r' | ' ');
        begins && text[at + PRIVATE_KEY.len()..].chars().take_while(is_key).count() >= MIN_KEY_CHARS
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_credentials_by_their_format_but_no_placeholders() {
        let random = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bD1fG3hJ5kL7nP9rS";
        let key = format!("-----BEGIN RSA PRIVATE KEY-----\n{}\n", "MIIEpAIBAAKCAQEA7".repeat(10));
        for (text, kind) in [
            (format!("token ghp_{random}"), Some("a GitHub token")),
            (format!("ANTHROPIC_API_KEY=sk-ant-{random}"), Some("an Anthropic key")),
            ("id AKIA2E0A8F3B1C9D7G5H".to_owned(), Some("an AWS access key")),
            (key, Some(PRIVATE_KEY_KIND)),
            (format!("KEY={REDACTED}"), Some(KNOWN_SECRET_KIND)),
            ("id AKIAIOSFODNN7EXAMPLE".to_owned(), None),
            ("ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx".to_owned(), None),
            ("-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----".to_owned(), None),
            ("the function npm_install_everything_and_more".to_owned(), None),
            (format!("myghp_{random}"), None),
            (String::new(), None),
        ] {
            assert_eq!(find_secret(&text), kind, "{text}");
        }
    }
}
