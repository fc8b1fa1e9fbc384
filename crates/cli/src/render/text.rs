//! Text from elsewhere, made harmless: what a terminal could obey becomes something to see.

/// One line: line breaks and tabs too become visible.
pub fn inline(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => line.push('⏎'),
            '\r' => {}
            '\t' => line.push(' '),
            _ => put(c, &mut line),
        }
    }
    line
}

/// Several lines: line breaks stay, and are the only control characters that do.
pub fn block(text: &str) -> String {
    let mut lines = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\n' => lines.push('\n'),
            '\r' if characters.peek() == Some(&'\n') => {}
            '\t' => lines.push_str("    "),
            _ => put(c, &mut lines),
        }
    }
    lines
}

/// One line of at most `most` characters.
pub fn clipped(text: &str, most: usize) -> String {
    // What is cut off needs no work; every character gives at least one, but for carriage returns.
    let end = text.char_indices().nth(most.saturating_mul(2) + 2).map_or(text.len(), |(at, _)| at);
    clip(&inline(&text[..end]), most)
}

/// The beginning, with a sign where something is cut off.
pub fn clip(text: &str, most: usize) -> String {
    if text.chars().nth(most).is_none() {
        return text.to_owned();
    }
    let mut kept: String = text.chars().take(most.saturating_sub(1)).collect();
    kept.push('…');
    kept
}

fn put(c: char, out: &mut String) {
    match c {
        // The pictures of the control characters stand in the same order.
        '\0'..='\x1f' => out.push(char::from_u32(0x2400 + u32::from(c)).unwrap_or('␀')),
        '\x7f' => out.push('␡'),
        '\u{80}'..='\u{9f}' => out.push_str(&format!("<{:02x}>", u32::from(c))),
        // They change the order or the lines of what is shown.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            out.push_str(&format!("<U+{:04X}>", u32::from(c)));
        }
        _ => out.push(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_become_visible() {
        assert_eq!(inline("\x1b[31mred\x07\u{9b}2J\x7f"), "␛[31mred␇<9b>2J␡");
        assert_eq!(inline("a\r\nb\tc"), "a⏎b c");
        assert_eq!(block("a\r\nb\rc\td"), "a\nb␍c    d");
        assert_eq!(inline("x\u{202e}y"), "x<U+202E>y");
    }

    #[test]
    fn clipping_counts_characters() {
        assert_eq!(clipped("äöü", 3), "äöü");
        assert_eq!(clipped("äöüß", 3), "äö…");
        assert_eq!(clipped("\r\r\r\r\r\r\r\rabc", 3).chars().count(), 0);
    }

    proptest! {
        #[test]
        fn nothing_a_terminal_obeys_is_left(text in any::<String>(), most in 1usize..40) {
            prop_assert!(!inline(&text).chars().any(char::is_control));
            prop_assert!(!block(&text).chars().any(|c| c.is_control() && c != '\n'));
            let short = clipped(&text, most);
            prop_assert!(short.chars().count() <= most && !short.chars().any(char::is_control));
        }
    }
}
