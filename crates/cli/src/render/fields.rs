//! One thing with its properties, a line each. Values are made harmless here.

use super::{style, text};
use crate::failure::Result;
use crate::output::Output;
use serde_json::Value;

pub struct Fields(Vec<(&'static str, String)>);

impl Fields {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub fn put(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.0.push((name, value.into()));
        self
    }

    /// Left out where it is absent or empty.
    pub fn maybe(self, name: &'static str, value: &Value) -> Self {
        match value {
            Value::Null => self,
            Value::String(text) if text.is_empty() => self,
            Value::Object(map) if map.is_empty() => self,
            Value::String(text) => self.put(name, text.clone()),
            other => self.put(name, other.to_string()),
        }
    }

    pub fn print(&self, output: &Output) -> Result {
        let width = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in &self.0 {
            let name = output.paint(style::FAINT, &format!("{name:width$}"));
            let value = text::inline(value);
            output.line(&format!("{name}  {value}"))?;
        }
        Ok(())
    }
}
