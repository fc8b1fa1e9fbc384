//! A line of styled spans that can be measured and clipped.

use super::width;
use anstyle::Style;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spans(Vec<(Style, String)>);

impl Spans {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends text, which the caller has escaped.
    pub fn styled(mut self, style: Style, text: impl Into<String>) -> Self {
        let text = text.into();
        if !text.is_empty() {
            self.0.push((style, text));
        }
        self
    }

    pub fn plain(self, text: impl Into<String>) -> Self {
        self.styled(Style::new(), text)
    }

    pub fn append(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub fn columns(&self) -> usize {
        self.0.iter().map(|(_, text)| width::text_width(text)).sum()
    }

    /// Clips to this many columns, with an ellipsis.
    pub fn clip(mut self, most: usize) -> Self {
        if self.columns() <= most {
            return self;
        }
        let mut left = most.saturating_sub(1);
        for at in 0..self.0.len() {
            let Some((_, text)) = self.0.get_mut(at) else { break };
            let columns = width::text_width(text);
            if columns > left {
                text.truncate(width::fitting_prefix(text, left));
                if most > 0 {
                    text.push('…');
                }
                self.0.truncate(at + 1);
                break;
            }
            left -= columns;
        }
        self
    }

    pub fn to_ansi(&self, colour: bool) -> String {
        let mut line = String::new();
        for (style, text) in &self.0 {
            if colour && *style != Style::new() {
                line.push_str(&format!("{style}{text}{style:#}"));
            } else {
                line.push_str(text);
            }
        }
        line.truncate(line.trim_end_matches(' ').len());
        line
    }
}

#[cfg(test)]
mod tests {
    use super::super::style;
    use super::*;

    #[test]
    fn clipping_counts_columns_across_spans() {
        let line = Spans::new().styled(style::GOOD, "ab").plain("日本").styled(style::FAINT, "cd");
        assert_eq!(line.columns(), 8);
        assert_eq!(line.clone().clip(8).to_ansi(false), "ab日本cd");
        assert_eq!(line.clone().clip(7).to_ansi(false), "ab日本…");
        assert_eq!(line.clone().clip(4).to_ansi(false), "ab…");
        assert_eq!(line.clone().clip(2).to_ansi(false), "a…");
        assert_eq!(line.clone().clip(1).to_ansi(false), "…");
        assert_eq!(line.clip(0).to_ansi(false), "");
    }

    #[test]
    fn colours_only_when_enabled() {
        let line = Spans::new().styled(style::BAD, "no").plain(" way ");
        assert_eq!(line.to_ansi(false), "no way");
        assert_eq!(line.to_ansi(true), "\u{1b}[31mno\u{1b}[0m way");
    }
}
