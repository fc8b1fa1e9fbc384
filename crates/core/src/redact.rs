//! Takes known secret values out of text on its way into the log.
//!
//! It keeps what an agent shows by mistake out of what is stored. An agent that means to pass a secret on can write
//! it in a form that nobody looks for.

mod forms;
mod patterns;

use patterns::Patterns;
use serde_json::Value;
use std::sync::Arc;

/// What stands in a secret's place.
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
    /// Knows these values in all their usual forms, and Atoll's own tokens by their form.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        Self { patterns: Arc::new(Patterns::new(secrets.into_iter().flat_map(forms::of))) }
    }

    /// `None` when there is nothing to take out.
    pub fn redact(&self, text: &str) -> Option<String> {
        if self.patterns.count() == 0 && !text.contains("atoll_") {
            return None;
        }
        let mut out = Vec::new();
        let (_, found) = self.patterns.pass(text.as_bytes(), text.len(), 0, REDACTED.as_bytes(), &mut out);
        // What was taken out began and ended at characters.
        found.then(|| String::from_utf8(out).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into()))
    }

    /// The same for JSON text, which stays JSON: where a secret is found outside of a string, or could hide behind
    /// escapes, each text in it is looked at by itself.
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
        let found = self.in_value(&mut value) || by_text.is_some();
        // A secret that is itself a piece of JSON can't be cut out of it.
        found.then(|| value.to_string()).map(|text| if self.redact(&text).is_some() { whole() } else { text })
    }

    fn in_value(&self, value: &mut Value) -> bool {
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
            Value::Array(items) => items.iter_mut().fold(false, |found, item| self.in_value(item) | found),
            Value::Object(fields) => {
                let mut found = false;
                for (name, mut item) in std::mem::take(fields) {
                    found |= self.in_value(&mut item);
                    let redacted = self.redact(&name);
                    found |= redacted.is_some();
                    fields.insert(redacted.unwrap_or(name), item);
                }
                found
            }
        }
    }

    /// For what comes in pieces.
    pub fn stream(&self) -> Stream {
        Stream { redactor: self.clone(), held: Vec::new(), covered: 0, found: false }
    }
}

/// Redacts bytes as they come. It holds back as many as the longest secret has.
#[derive(Debug)]
pub struct Stream {
    redactor: Redactor,
    held: Vec<u8>,
    /// How many of the held bytes belong to what was taken out already.
    covered: usize,
    found: bool,
}

impl Stream {
    /// What can be passed on now.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(bytes);
        let undecided = self.redactor.patterns.longest() - 1;
        self.pass(self.held.len().saturating_sub(undecided))
    }

    /// The rest.
    pub fn end(&mut self) -> Vec<u8> {
        self.pass(self.held.len())
    }

    /// Whether anything was taken out.
    pub const fn found(&self) -> bool {
        self.found
    }

    fn pass(&mut self, until: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(until);
        let patterns = &self.redactor.patterns;
        let (covered, found) = patterns.pass(&self.held, until, self.covered, REDACTED.as_bytes(), &mut out);
        self.covered = covered;
        self.found |= found;
        self.held.drain(..until);
        out
    }
}

#[cfg(test)]
mod tests;
