//! A line in pieces of one style each, so that it can be measured and cut before it is painted.

use super::width;
use anstyle::Style;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spans(Vec<(Style, String)>);

impl Spans {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// One more piece, which the caller has made harmless.
    pub fn put(mut self, style: Style, text: impl Into<String>) -> Self {
        let text = text.into();
        if !text.is_empty() {
            self.0.push((style, text));
        }
        self
    }

    pub fn plain(self, text: impl Into<String>) -> Self {
        self.put(Style::new(), text)
    }

    pub fn then(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub fn columns(&self) -> usize {
        self.0.iter().map(|(_, text)| width::of(text)).sum()
    }

    /// At most this many columns, with a sign where something is cut off.
    pub fn clip(mut self, most: usize) -> Self {
        if self.columns() <= most {
            return self;
        }
        let mut left = most.saturating_sub(1);
        for at in 0..self.0.len() {
            let Some((_, text)) = self.0.get_mut(at) else { break };
            let columns = width::of(text);
            if columns > left {
                text.truncate(width::fitting(text, left));
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

    pub fn painted(&self, colour: bool) -> String {
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
    fn cutting_counts_columns_over_all_pieces() {
        let line = Spans::new().put(style::GOOD, "ab").plain("日本").put(style::FAINT, "cd");
        assert_eq!(line.columns(), 8);
        assert_eq!(line.clone().clip(8).painted(false), "ab日本cd");
        assert_eq!(line.clone().clip(7).painted(false), "ab日本…");
        assert_eq!(line.clone().clip(4).painted(false), "ab…");
        assert_eq!(line.clone().clip(2).painted(false), "a…");
        assert_eq!(line.clone().clip(1).painted(false), "…");
        assert_eq!(line.clip(0).painted(false), "");
    }

    #[test]
    fn colour_only_where_it_is_wanted() {
        let line = Spans::new().put(style::BAD, "no").plain(" way ");
        assert_eq!(line.painted(false), "no way");
        assert_eq!(line.painted(true), "\u{1b}[31mno\u{1b}[0m way");
    }
}
