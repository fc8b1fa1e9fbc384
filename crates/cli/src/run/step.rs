//! A finished step of a run: a mark, a line and an optional body.

use crate::render::markdown::render_markdown;
use crate::render::spans::Spans;
use crate::render::{style, text, width};
use anstyle::Style;

/// The mark before a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Done,
    Failed,
    Edit,
    Agent,
    User,
    /// Continues the step above.
    Under,
    Fact,
    Warning,
    Question,
}

impl Mark {
    const fn symbol(self) -> (Style, &'static str) {
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

/// Wrapped text under a step or after its mark.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StepBody {
    text: String,
    style: Style,
    /// A terminal shows the text as Markdown.
    is_markdown: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewStep {
    mark: Mark,
    line: Spans,
    /// The end of the line, which is clipped last.
    side: Spans,
    body: Option<StepBody>,
}

/// The width of lines if stdout is not a terminal.
const DEFAULT_WIDTH: usize = 200;
/// Longer bodies are cut; `atoll logs` prints all of it.
const MAX_BODY_LINES: usize = 80;

impl ViewStep {
    /// A line that is clipped to the terminal's width.
    pub fn one_line(mark: Mark, line: Spans) -> Self {
        Self { mark, line, side: Spans::new(), body: None }
    }

    /// Wrapped text after a mark; escapes it.
    pub fn text_block(mark: Mark, style: Style, words: &str) -> Self {
        Self {
            body: Some(StepBody { text: text::escape_block(words.trim_end()), style, is_markdown: false }),
            ..Self::one_line(mark, Spans::new())
        }
    }

    /// Text of the agent, which a terminal shows as Markdown.
    pub fn agent_text(words: &str) -> Self {
        let text = text::escape_block(words.trim_end());
        let body = Some(StepBody { text, style: Style::new(), is_markdown: true });
        Self { body, ..Self::one_line(Mark::Agent, Spans::new()) }
    }

    /// A remark of the program.
    pub fn note(words: &str) -> Self {
        Self::text_block(Mark::Fact, style::FAINT, words)
    }

    pub fn warning(words: &str) -> Self {
        Self::text_block(Mark::Warning, style::WARN, words)
    }

    pub fn failure(words: &str) -> Self {
        Self::text_block(Mark::Failed, style::BAD, words)
    }

    pub fn with_side(mut self, side: Spans) -> Self {
        self.side = side;
        self
    }

    /// Adds text under the line; escapes it.
    pub fn with_body(mut self, style: Style, words: &str) -> Self {
        let body = StepBody { text: text::escape_block(words.trim_end()), style, is_markdown: false };
        self.body = Some(body).filter(|body| !body.text.is_empty());
        self
    }

    /// Renders lines of at most `columns`, or of any length for a pipe.
    pub fn lines(&self, columns: Option<usize>) -> Vec<Spans> {
        let (mark_style, mark) = self.mark.symbol();
        let head = Spans::new().styled(mark_style, mark);
        let indent = head.columns();
        let mut lines = Vec::new();
        let own_line = self.line.columns() + self.side.columns() > 0;
        if own_line {
            let room = columns.unwrap_or(DEFAULT_WIDTH).saturating_sub(indent);
            let line = self.line.clone().clip(room.saturating_sub(self.side.columns()).max(room / 2));
            lines.push(head.clone().append(line.append(self.side.clone()).clip(room)));
        }
        let Some(body) = &self.body else { return lines };
        // Indent the body below a line.
        let indent = if own_line { indent + 2 } else { indent };
        let styled = |line: String| Spans::new().styled(body.style, line);
        let broken: Vec<Spans> = match columns.map(|columns| columns.saturating_sub(indent)) {
            Some(room) if body.is_markdown => render_markdown(&body.text, room),
            Some(room) => width::wrap_text(&body.text, room).into_iter().map(styled).collect(),
            None => body.text.lines().map(|line| styled(line.trim_end().to_owned())).collect(),
        };
        let cut = broken.len().saturating_sub(MAX_BODY_LINES);
        for (at, line) in broken.into_iter().take(MAX_BODY_LINES).enumerate() {
            let before = if at == 0 && !own_line {
                head.clone()
            } else if line.columns() == 0 {
                Spans::new()
            } else {
                Spans::new().plain(" ".repeat(indent))
            };
            lines.push(before.append(line));
        }
        if cut > 0 {
            let words = format!("{:indent$}… and {cut} more lines", "");
            lines.push(Spans::new().styled(style::FAINT, words).clip(columns.unwrap_or(usize::MAX)));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step_text(step: &ViewStep, columns: Option<usize>) -> String {
        step.lines(columns).iter().map(|line| line.to_ansi(false)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_long_step_is_clipped_to_one_line() {
        let step = ViewStep::one_line(Mark::Done, Spans::new().plain("Bash  cargo test --workspace --all-features"))
            .with_side(Spans::new().plain("  12s"));
        assert_eq!(step_text(&step, Some(30)), "✓ Bash  cargo test --wor…  12s");
        assert_eq!(step_text(&step, Some(200)), "✓ Bash  cargo test --workspace --all-features  12s");
        assert_eq!(step_text(&step, Some(8)), "✓ Ba…  …");
        assert!(step.lines(Some(1)).iter().all(|line| line.columns() <= 2));
    }

    #[test]
    fn wraps_text_under_its_mark() {
        let words = ViewStep::text_block(Mark::Agent, Style::new(), "I changed the parser\n\nand its tests\x1b[2J\n");
        assert_eq!(step_text(&words, Some(14)), "• I changed\n  the parser\n\n  and its\n  tests␛[2J");
        assert_eq!(step_text(&words, None), "• I changed the parser\n\n  and its tests␛[2J");
    }

    #[test]
    fn indents_the_body_of_a_step() {
        let step =
            ViewStep::one_line(Mark::Failed, Spans::new().plain("Bash  false")).with_body(style::FAINT, "no\nreason");
        assert_eq!(step_text(&step, Some(40)), "✗ Bash  false\n    no\n    reason");
        let long = ViewStep::note(&"x\n".repeat(100));
        assert_eq!(step_text(&long, None).lines().last(), Some("  … and 20 more lines"));
    }
}
