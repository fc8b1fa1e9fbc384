//! A resource with one field per line. Escapes the values.

use super::{style, text};
use crate::failure::Result;
use crate::output::Output;

pub struct Fields(Vec<(&'static str, String)>);

impl Fields {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    pub fn field(mut self, name: &'static str, value: impl ToString) -> Self {
        self.0.push((name, value.to_string()));
        self
    }

    /// Omits an absent value.
    pub fn optional(self, name: &'static str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    /// A line for each value.
    pub fn entries(mut self, name: &'static str, values: impl IntoIterator<Item = String>) -> Self {
        self.0.extend(values.into_iter().map(|value| (name, value)));
        self
    }

    pub fn print(&self, output: &Output) -> Result {
        let width = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, value) in &self.0 {
            let name = output.apply_style(style::FAINT, &format!("{name:width$}"));
            let value = text::escape_line(value);
            output.print_line(&format!("{name}  {value}"))?;
        }
        Ok(())
    }
}
