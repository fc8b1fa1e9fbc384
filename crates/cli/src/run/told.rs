//! A finished step as it stands above the status line: a mark, a line, and maybe something under it.

use crate::render::spans::Spans;
use crate::render::{style, text, width};
use anstyle::Style;

/// What stands before a line, and says of which kind it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Done,
    Failed,
    Edit,
    Agent,
    User,
    /// Belongs to the line above.
    Under,
    Fact,
    Warning,
    Question,
}

impl Mark {
    const fn shown(self) -> (Style, &'static str) {
        match self {
            Self::Done => (style::GOOD, "✓ "),
            Self::Failed => (style::BAD, "✗ "),
            Self::Edit => (style::NAME, "✎ "),
            Self::Agent => (style::HEAD, "• "),
            Self::User => (style::NAME, "› "),
            Self::Under => (style::FAINT, "  ↳ "),
            Self::Fact => (style::FAINT, "· "),
            Self::Warning => (style::WARN, "! "),
            Self::Question => (style::WARN, "? "),
        }
    }
}

/// Text under a step or after a mark, broken where the terminal ends.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Body {
    text: String,
    style: Style,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    mark: Mark,
    line: Spans,
    /// Said last in the line, and cut last.
    side: Spans,
    body: Option<Body>,
}

/// What is longer is cut where nothing says how wide the output is.
const WIDEST: usize = 200;
/// Longer texts are cut; `atoll logs` has all of it.
const MOST_LINES: usize = 80;

impl Told {
    /// One line, which is cut where the terminal ends.
    pub fn step(mark: Mark, line: Spans) -> Self {
        Self { mark, line, side: Spans::new(), body: None }
    }

    /// Words of any length; not harmless yet.
    pub fn words(mark: Mark, style: Style, words: &str) -> Self {
        Self { body: Some(Body { text: text::block(words.trim_end()), style }), ..Self::step(mark, Spans::new()) }
    }

    /// A remark of this program itself.
    pub fn fact(words: &str) -> Self {
        Self::words(Mark::Fact, style::FAINT, words)
    }

    pub fn warning(words: &str) -> Self {
        Self::words(Mark::Warning, style::WARN, words)
    }

    pub fn failure(words: &str) -> Self {
        Self::words(Mark::Failed, style::BAD, words)
    }

    pub fn side(mut self, side: Spans) -> Self {
        self.side = side;
        self
    }

    /// Text under the line; not harmless yet.
    pub fn under(mut self, style: Style, words: &str) -> Self {
        self.body = Some(Body { text: text::block(words.trim_end()), style }).filter(|body| !body.text.is_empty());
        self
    }

    /// As lines of at most `columns`, or of any length for a pipe.
    pub fn lines(&self, columns: Option<usize>) -> Vec<Spans> {
        let (mark_style, mark) = self.mark.shown();
        let head = Spans::new().put(mark_style, mark);
        let indent = head.columns();
        let mut lines = Vec::new();
        let own_line = self.line.columns() + self.side.columns() > 0;
        if own_line {
            let room = columns.unwrap_or(WIDEST).saturating_sub(indent);
            let line = self.line.clone().clip(room.saturating_sub(self.side.columns()).max(room / 2));
            lines.push(head.clone().then(line.then(self.side.clone()).clip(room)));
        }
        let Some(body) = &self.body else { return lines };
        // Under a line of its own the text is set off from it.
        let indent = if own_line { indent + 2 } else { indent };
        let broken = match columns {
            Some(columns) => width::wrap(&body.text, columns.saturating_sub(indent)),
            None => body.text.lines().map(|line| line.trim_end().to_owned()).collect(),
        };
        let cut = broken.len().saturating_sub(MOST_LINES);
        for (at, line) in broken.into_iter().take(MOST_LINES).enumerate() {
            let before = if at == 0 && !own_line {
                head.clone()
            } else if line.is_empty() {
                Spans::new()
            } else {
                Spans::new().plain(" ".repeat(indent))
            };
            lines.push(before.put(body.style, line));
        }
        if cut > 0 {
            let words = format!("{:indent$}… and {cut} more lines", "");
            lines.push(Spans::new().put(style::FAINT, words));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(told: &Told, columns: Option<usize>) -> String {
        told.lines(columns).iter().map(|line| line.painted(false)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_step_is_one_line_whatever_its_length() {
        let step = Told::step(Mark::Done, Spans::new().plain("Bash  cargo test --workspace --all-features"))
            .side(Spans::new().plain("  12s"));
        assert_eq!(shown(&step, Some(30)), "✓ Bash  cargo test --wor…  12s");
        assert_eq!(shown(&step, Some(200)), "✓ Bash  cargo test --workspace --all-features  12s");
        assert_eq!(shown(&step, Some(8)), "✓ Ba…  …");
        assert!(step.lines(Some(1)).iter().all(|line| line.columns() <= 2));
    }

    #[test]
    fn words_are_broken_and_stay_under_their_mark() {
        let words = Told::words(Mark::Agent, Style::new(), "I changed the parser\n\nand its tests\x1b[2J\n");
        assert_eq!(shown(&words, Some(14)), "• I changed\n  the parser\n\n  and its\n  tests␛[2J");
        assert_eq!(shown(&words, None), "• I changed the parser\n\n  and its tests␛[2J");
    }

    #[test]
    fn what_is_under_a_step_is_set_off() {
        let step = Told::step(Mark::Failed, Spans::new().plain("Bash  false")).under(style::FAINT, "no\nreason");
        assert_eq!(shown(&step, Some(40)), "✗ Bash  false\n    no\n    reason");
        let long = Told::fact(&"x\n".repeat(100));
        assert_eq!(shown(&long, None).lines().last(), Some("  … and 20 more lines"));
    }
}
