//! Writes results to stdout, and notes and failures to stderr. No other module prints.

use crate::failure::Result;
use crate::render::text;
use anstyle::Style;
use serde::Serialize;
use std::io::{BufWriter, IsTerminal, Stdout, Write};
use std::sync::{Mutex, PoisonError};

/// The output of a command: lines for people, or lines of JSON.
pub struct Output {
    pub json: bool,
    /// stdout is a terminal that shows colours.
    pub colour: bool,
    /// Columns of the terminal; `None` if stdout is not a terminal.
    pub width: Option<usize>,
    writer: Mutex<BufWriter<Stdout>>,
}

impl Output {
    pub fn new(json: bool) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            json,
            colour: terminal && !json && !dumb && !set("NO_COLOR"),
            width: terminal.then(terminal_columns).flatten(),
            writer: Mutex::new(BufWriter::new(std::io::stdout())),
        }
    }

    /// Prints one line, which the caller has escaped.
    pub fn print_line(&self, text: &str) -> Result {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.write_all(text.as_bytes())?;
        writer.write_all(b"\n")?;
        Ok(())
    }

    /// Writes bytes unchanged; the caller makes sure that stdout is not a terminal, or that they are escaped.
    pub fn write_bytes(&self, bytes: &[u8]) -> Result {
        Ok(self.writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes)?)
    }

    /// Prints an object as one line of JSON.
    pub fn print_object(&self, value: &impl Serialize) -> Result {
        let text = serde_json::to_string(value).map_err(std::io::Error::from)?;
        self.print_line(&sanitize_json_line(&text))
    }

    /// Prints a response of the server as one line of JSON, with sorted keys.
    pub fn print_response(&self, response: &impl Serialize) -> Result {
        self.print_object(&serde_json::to_value(response).map_err(std::io::Error::from)?)
    }

    /// Prints each item of a list as one line of JSON.
    pub fn print_responses(&self, items: &[impl Serialize]) -> Result {
        items.iter().try_for_each(|item| self.print_response(item))
    }

    /// Prints a response as JSON, or as a line for people.
    pub fn print_result(&self, response: &impl Serialize, line: impl FnOnce() -> String) -> Result {
        if self.json { self.print_response(response) } else { self.print_line(&line()) }
    }

    /// Prints JSON text of the server as one line.
    pub fn print_raw_object(&self, text: &str) -> Result {
        self.print_line(&sanitize_json_line(text))
    }

    pub fn flush(&self) -> Result {
        Ok(self.writer.lock().unwrap_or_else(PoisonError::into_inner).flush()?)
    }

    /// Prints a note to stderr.
    pub fn print_note(&self, text: &str) {
        print_note(text);
    }

    pub fn apply_style(&self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// Prints escaped lines to stderr and ignores errors: stderr may be closed.
pub fn print_note(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "{}", text::escape_block(text)));
}

fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Replaces line breaks and control characters of JSON text, which keeps its value.
///
/// Outside of strings a line break is white space, and inside of strings JSON escapes all characters below U+0020.
fn sanitize_json_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0'..='\x1f' => line.push(' '),
            '\x7f'..='\u{9f}' => line.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sanitizing_json_keeps_its_value(text in any::<String>()) {
            let value = serde_json::json!({ "text": format!("{text}\u{9b}31m"), "list": [1, 2] });
            let line = sanitize_json_line(&serde_json::to_string_pretty(&value).unwrap());
            prop_assert!(!line.chars().any(char::is_control));
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
        }
    }
}
