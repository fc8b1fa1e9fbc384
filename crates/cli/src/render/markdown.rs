//! Renders Markdown for a terminal: headings, lists, quotes, code, bold text and inline code. Other syntax stays as it is.

use super::spans::Spans;
use super::{style, width};
use anstyle::Style;

const CODE: Style = style::NAME;
const CODE_INDENT: &str = "  ";
const QUOTE_MARK: &str = "│ ";

/// Renders escaped text as lines of at most `columns`.
pub fn render_markdown(text: &str, columns: usize) -> Vec<Spans> {
    let mut lines = Vec::new();
    let mut fence: Option<&str> = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        if let Some(mark) = fence_mark(trimmed) {
            match fence {
                None => fence = Some(mark),
                Some(open) if mark == open => fence = None,
                Some(_) => lines.extend(code_lines(line, columns)),
            }
            continue;
        }
        match fence {
            Some(_) => lines.extend(code_lines(line, columns)),
            None => lines.extend(block_lines(line, columns)),
        }
    }
    lines
}

fn fence_mark(line: &str) -> Option<&'static str> {
    ["```", "~~~"].into_iter().find(|mark| line.starts_with(mark))
}

fn code_lines(line: &str, columns: usize) -> Vec<Spans> {
    let room = columns.saturating_sub(CODE_INDENT.len());
    let lines = if line.trim().is_empty() { vec![String::new()] } else { width::wrap_text(line, room) };
    lines.into_iter().map(|line| Spans::new().plain(CODE_INDENT).styled(CODE, line)).collect()
}

/// A line outside of code: heading, list item, quote, rule or text.
fn block_lines(line: &str, columns: usize) -> Vec<Spans> {
    let content = line.trim_start();
    let indent = &line[..line.len() - content.len()];
    if content.is_empty() {
        return vec![Spans::new()];
    }
    if let Some(heading) = heading_text(content) {
        return wrap_parts(&[(style::HEAD, heading.replace(['*', '`'], ""))], "", "", columns);
    }
    if content.len() >= 3 && content.bytes().all(|byte| byte == content.as_bytes()[0]) && "-*_".contains(&content[..1])
    {
        return vec![Spans::new().styled(style::FAINT, "─".repeat(columns.min(24)))];
    }
    if let Some(quoted) = content.strip_prefix("> ") {
        let mark = format!("{indent}{QUOTE_MARK}");
        return wrap_parts(&inline_parts(quoted, style::FAINT), &mark, &mark, columns);
    }
    if let Some((mark, item)) = list_item(content) {
        let first = format!("{indent}{mark}");
        let next = " ".repeat(width::text_width(&first));
        return wrap_parts(&inline_parts(item, Style::new()), &first, &next, columns);
    }
    wrap_parts(&inline_parts(content, Style::new()), indent, indent, columns)
}

fn heading_text(line: &str) -> Option<&str> {
    let level = line.bytes().take_while(|byte| *byte == b'#').count();
    line.get(level..).filter(|_| (1..=6).contains(&level))?.strip_prefix(' ').map(str::trim)
}

/// The mark of a list item and its text.
fn list_item(line: &str) -> Option<(String, &str)> {
    if let Some(item) = ["- ", "* ", "+ "].into_iter().find_map(|mark| line.strip_prefix(mark)) {
        return Some(("• ".to_owned(), item));
    }
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let item = line.get(digits..)?.strip_prefix(". ").filter(|_| (1..=3).contains(&digits))?;
    Some((line[..digits + 2].to_owned(), item))
}

/// Splits a line at bold text and inline code.
fn inline_parts(line: &str, base: Style) -> Vec<(Style, String)> {
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(['`', '*']) {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        let found = [("`", CODE), ("**", base.bold())].into_iter().find_map(|(mark, style)| {
            let inner = from.strip_prefix(mark)?;
            let end = inner.find(mark).filter(|end| *end > 0)?;
            let text = inner[..end].to_owned();
            // A space inside the marks means that they are not marks: `2 ** 3`.
            let is_marked = mark == "`" || (text.trim() == text);
            is_marked.then(|| (style, text, &inner[end + mark.len()..]))
        });
        match found {
            Some((style, text, after)) => {
                parts.push((base, std::mem::take(&mut plain)));
                parts.push((style, text));
                rest = after;
            }
            None => {
                let run = from.bytes().take_while(|byte| Some(byte) == from.as_bytes().first()).count();
                plain.push_str(&from[..run]);
                rest = &from[run..];
            }
        }
    }
    plain.push_str(rest);
    parts.push((base, plain));
    parts.retain(|(_, text)| !text.is_empty());
    parts
}

/// Columns of a wide character, which every line must have room for.
const MIN_ROOM: usize = 2;

/// Wraps styled text at spaces, with a prefix before the first and the other lines, unless it would leave no room.
fn wrap_parts(parts: &[(Style, String)], first: &str, next: &str, columns: usize) -> Vec<Spans> {
    let has_room = width::text_width(first) + MIN_ROOM <= columns;
    let (first, next) = if has_room { (first, next) } else { ("", "") };
    let room = columns.saturating_sub(width::text_width(first));
    let text: String = parts.iter().map(|(_, text)| text.as_str()).collect();
    let mut runs = parts.iter().flat_map(|(style, text)| text.chars().map(|c| (*style, c))).peekable();
    let mut lines = Vec::new();
    for (at, wrapped) in width::wrap_text(&text, room).into_iter().enumerate() {
        let mut line = Spans::new().styled(style::FAINT, if at == 0 { first } else { next });
        let mut piece = (Style::new(), String::new());
        // The wrapped lines have the characters of the text in order, without the spaces at the breaks.
        for c in wrapped.chars() {
            while runs.next_if(|(_, next)| *next != c).is_some() {}
            let Some((style, c)) = runs.next() else { break };
            if style != piece.0 {
                line = line.styled(piece.0, std::mem::take(&mut piece.1));
                piece.0 = style;
            }
            piece.1.push(c);
        }
        lines.push(line.styled(piece.0, piece.1));
        // Leading spaces of the next line were removed by the wrap.
        while runs.next_if(|(_, next)| *next == ' ').is_some() {}
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: &str = "# What I did\n\nI fixed the **parser** in `src/parser.rs`, which had 2 ** 3 problems.\n\n\
        - first item with `code`\n- a second item that is long enough to be wrapped\n  1. nested\n\n> quoted **words**\n\n\
        ```rust\nfn main() {\n    println!(\"**not bold**\");\n}\n```\n---\nsnake_case_name and __init__ stay";

    fn plain(text: &str, columns: usize) -> String {
        render_markdown(text, columns).iter().map(|line| line.to_ansi(false)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn renders_blocks_and_inline_marks() {
        insta::assert_snapshot!("markdown", format!("{}\n────\n{}", plain(SAMPLE, 60), plain(SAMPLE, 24)));
        let colours = render_markdown("a **b** `c`", 40).pop().unwrap().to_ansi(true);
        assert_eq!(colours, "a \u{1b}[1mb\u{1b}[0m \u{1b}[36mc\u{1b}[0m");
    }

    #[test]
    fn an_indentation_that_leaves_no_room_is_dropped() {
        assert_eq!(plain("        deep", 6), "deep");
        assert_eq!(plain("    deep", 6), "    de\n    ep");
    }

    proptest! {
        #[test]
        fn loses_no_words_and_fits(text in "[a-z日*`_#>\\- \n]{0,120}", columns in 12usize..60) {
            // The language after a fence is not shown.
            prop_assume!(!text.contains("```"));
            let lines = render_markdown(&text, columns);
            prop_assert!(lines.iter().all(|line| line.columns() <= columns.max(24)));
            let letters = |text: &str| text.chars().filter(|c| c.is_alphabetic()).collect::<String>();
            prop_assert_eq!(letters(&plain(&text, columns)), letters(&text));
        }
    }
}
