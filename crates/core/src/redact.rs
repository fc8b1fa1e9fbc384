//! Takes known secret values out of text on its way into the log.

/// What stands in a secret's place.
pub const REDACTED: &str = "[redacted]";

/// A secret shorter than this would blank out ordinary words.
const SHORTEST: usize = 8;

const TOKEN_PREFIX: &str = "atoll_";
const TOKEN_SECRET: usize = 43;

#[derive(Clone, Default)]
pub struct Redactor {
    /// Each value as it is, and as it stands inside a JSON string where that differs.
    values: Vec<String>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} values)", self.values.len())
    }
}

impl Redactor {
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut values = Vec::new();
        for secret in secrets.into_iter().filter(|secret| secret.len() >= SHORTEST) {
            values.push(secret.to_owned());
            let quoted = serde_json::Value::from(secret).to_string();
            let escaped = quoted[1..quoted.len() - 1].to_owned();
            if escaped != secret {
                values.push(escaped);
            }
        }
        // Longest first, so that a secret inside another one doesn't leave half of it standing.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self { values }
    }

    /// `None` when there is nothing to take out.
    pub fn redact(&self, text: &str) -> Option<String> {
        let mut changed: Option<String> = None;
        for value in &self.values {
            let current = changed.as_deref().unwrap_or(text);
            if current.contains(value.as_str()) {
                changed = Some(current.replace(value.as_str(), REDACTED));
            }
        }
        let current = changed.as_deref().unwrap_or(text);
        own_tokens(current).or(changed)
    }
}

/// Atoll's own tokens are known by their form: `atoll_<id>_<secret>`.
fn own_tokens(text: &str) -> Option<String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(TOKEN_PREFIX) {
        let tail = &rest[start + TOKEN_PREFIX.len()..];
        let length = tail.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_' || *b == b'-').count();
        let is_token = tail[..length].split_once('_').is_some_and(|(_, secret)| secret.len() >= TOKEN_SECRET);
        let end = start + TOKEN_PREFIX.len() + if is_token { length } else { 0 };
        result.push_str(&rest[..if is_token { start } else { end }]);
        if is_token {
            result.push_str(REDACTED);
        }
        rest = &rest[end..];
    }
    if result.contains(REDACTED) {
        result.push_str(rest);
        Some(result)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_go_also_inside_json_strings() {
        let redactor = Redactor::new(["p\"ss/word1", "short", "longersecret", "longersecret-2"]);
        assert_eq!(redactor.redact(r#"{"a":"x p\"ss/word1 y"}"#).unwrap(), r#"{"a":"x [redacted] y"}"#);
        assert_eq!(redactor.redact("longersecret-2 short").unwrap(), "[redacted] short");
        assert_eq!(redactor.redact("nothing here"), None);
    }

    #[test]
    fn own_tokens_go_without_being_known() {
        let token = format!("atoll_01k2_{}", "s".repeat(43));
        let text = format!("see atoll_core and {token}, twice {token}.");
        assert_eq!(Redactor::default().redact(&text).unwrap(), "see atoll_core and [redacted], twice [redacted].");
        assert_eq!(Redactor::default().redact("atoll_ atoll_x_y"), None);
    }
}
