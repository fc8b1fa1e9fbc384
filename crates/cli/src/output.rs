//! The one place that writes: results to the standard output, notes and failures to the error output.

use crate::failure::Result;
use crate::render::text;
use anstyle::Style;
use serde::Serialize;
use std::io::{BufWriter, IsTerminal, Stdout, Write};
use std::sync::{Mutex, PoisonError};

/// What a command says, as lines for people or as lines of JSON.
pub struct Output {
    pub json: bool,
    /// Whether the standard output takes colour.
    pub colour: bool,
    /// Columns of the terminal; none where the output is not one.
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
            width: terminal.then(columns).flatten(),
            writer: Mutex::new(BufWriter::new(std::io::stdout())),
        }
    }

    /// One line, which the caller has made harmless.
    pub fn line(&self, text: &str) -> Result {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.write_all(text.as_bytes())?;
        writer.write_all(b"\n")?;
        Ok(())
    }

    /// Bytes as they are, where no terminal could obey them.
    pub fn bytes(&self, bytes: &[u8]) -> Result {
        Ok(self.writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes)?)
    }

    /// One object as a line of JSON.
    pub fn object(&self, value: &impl Serialize) -> Result {
        let text = serde_json::to_string(value).map_err(std::io::Error::from)?;
        self.line(&one_line_of_json(&text))
    }

    /// JSON text that came from elsewhere, as one line.
    pub fn raw_object(&self, text: &str) -> Result {
        self.line(&one_line_of_json(text))
    }

    pub fn flush(&self) -> Result {
        Ok(self.writer.lock().unwrap_or_else(PoisonError::into_inner).flush()?)
    }

    /// Something beside the result, on the error output.
    pub fn note(&self, text: &str) {
        note(text);
    }

    pub fn paint(&self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// Lines for people on the error output, made harmless; nothing can be done if it is closed.
pub fn note(text: &str) {
    drop(writeln!(std::io::stderr().lock(), "{}", text::block(text)));
}

fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// The same JSON without line breaks and without characters that a terminal could obey. Outside of
/// strings a line break is only space, and inside of them JSON itself has none below U+0020.
fn one_line_of_json(text: &str) -> String {
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
        fn json_stays_the_same_value_and_becomes_harmless(text in any::<String>()) {
            let value = serde_json::json!({ "text": format!("{text}\u{9b}31m"), "list": [1, 2] });
            let line = one_line_of_json(&serde_json::to_string_pretty(&value).unwrap());
            prop_assert!(!line.chars().any(char::is_control));
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
        }
    }
}
