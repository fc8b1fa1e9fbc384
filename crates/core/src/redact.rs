//! Removes known secret values from text before it is logged.
//!
//! This protects against accidental disclosure. An agent that wants to leak a secret can encode it in a form that the
//! redactor does not know.

mod forms;
mod patterns;

use crate::json::to_raw_json;
use patterns::Patterns;
use serde_json::Value;
use serde_json::value::RawValue;
use std::sync::Arc;

/// Replacement for a secret.
pub const REDACTED: &str = "[redacted]";

#[derive(Clone)]
pub struct Redactor {
    patterns: Arc<Patterns>,
}

impl Default for Redactor {
    fn default() -> Self {
        Self::new([])
    }
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redactor({} texts)", self.patterns.count())
    }
}

impl Redactor {
    /// Creates a redactor for these values in all common encodings, and for Atoll's own tokens by their format.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        Self { patterns: Arc::new(Patterns::new(secrets.into_iter().flat_map(forms::secret_forms))) }
    }

    /// Returns the redacted text, or `None` if it contains no secret.
    pub fn redact(&self, text: &str) -> Option<String> {
        if self.patterns.count() == 0 && !text.contains("atoll_") {
            return None;
        }
        let mut out = Vec::new();
        let (_, found) = self.patterns.replace_matches(text.as_bytes(), text.len(), 0, REDACTED.as_bytes(), &mut out);
        // Matches start and end at character boundaries.
        found.then(|| String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into()))
    }

    /// Removes known secrets from a JSON value.
    pub fn redact_raw_json(&self, data: Box<RawValue>) -> Box<RawValue> {
        match self.redact_json(data.get()) {
            None => data,
            // Redacted JSON should parse; if it does not, drop all of it rather than leak.
            Some(text) => RawValue::from_string(text)
                .unwrap_or_else(|_| to_raw_json(&serde_json::json!({ "redacted": "the whole of it" }))),
        }
    }

    /// Redacts JSON text and keeps it valid. If a secret is outside of a string, or escapes could hide one,
    /// it redacts each string separately.
    pub fn redact_json(&self, text: &str) -> Option<String> {
        let hides = self.patterns.count() > 0 && text.contains("\\u");
        let by_text = self.redact(text);
        if let Some(redacted) = &by_text
            && !hides
            && serde_json::from_str::<serde::de::IgnoredAny>(redacted).is_ok()
        {
            return by_text;
        }
        if by_text.is_none() && !hides {
            return None;
        }
        let whole = || serde_json::json!({ "redacted": "the whole of it" }).to_string();
        let Ok(mut value) = serde_json::from_str::<Value>(text) else { return Some(whole()) };
        let found = self.redact_value(&mut value) || by_text.is_some();
        // A secret that is itself a fragment of JSON cannot be cut out: replace everything.
        found.then(|| value.to_string()).map(|text| if self.redact(&text).is_some() { whole() } else { text })
    }

    fn redact_value(&self, value: &mut Value) -> bool {
        match value {
            Value::Null | Value::Bool(_) => false,
            Value::Number(number) => {
                let redacted = self.redact(&number.to_string());
                let found = redacted.is_some();
                if found {
                    *value = REDACTED.into();
                }
                found
            }
            Value::String(text) => match self.redact(text) {
                Some(redacted) => {
                    *text = redacted;
                    true
                }
                None => false,
            },
            Value::Array(items) => items.iter_mut().fold(false, |found, item| self.redact_value(item) | found),
            Value::Object(fields) => {
                let mut found = false;
                for (name, mut item) in std::mem::take(fields) {
                    found |= self.redact_value(&mut item);
                    let redacted = self.redact(&name);
                    found |= redacted.is_some();
                    fields.insert(redacted.unwrap_or(name), item);
                }
                found
            }
        }
    }

    /// Creates a redactor for a stream of chunks.
    pub fn start_stream(&self) -> StreamRedactor {
        StreamRedactor { redactor: self.clone(), buffered: Vec::new(), covered: 0, has_redacted: false }
    }
}

/// Redacts a byte stream. Buffers at most the length of the longest secret.
#[derive(Debug)]
pub struct StreamRedactor {
    redactor: Redactor,
    buffered: Vec<u8>,
    /// Number of buffered bytes that belong to an already replaced match.
    covered: usize,
    has_redacted: bool,
}

impl StreamRedactor {
    /// Adds bytes and returns the output that is ready.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.buffered.extend_from_slice(bytes);
        let undecided = self.redactor.patterns.longest_bytes() - 1;
        self.redact_until(self.buffered.len().saturating_sub(undecided))
    }

    /// Returns the remaining output.
    pub fn finish_stream(&mut self) -> Vec<u8> {
        self.redact_until(self.buffered.len())
    }

    /// Returns true if any secret was redacted.
    pub const fn has_redacted(&self) -> bool {
        self.has_redacted
    }

    fn redact_until(&mut self, until: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(until);
        let patterns = &self.redactor.patterns;
        let (covered, found) =
            patterns.replace_matches(&self.buffered, until, self.covered, REDACTED.as_bytes(), &mut out);
        self.covered = covered;
        self.has_redacted |= found;
        self.buffered.drain(..until);
        out
    }
}

#[cfg(test)]
mod tests;
