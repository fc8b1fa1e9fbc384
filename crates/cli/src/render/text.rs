//! Escapes untrusted text: makes control characters visible, so that a terminal cannot obey them.

/// Escapes text into one line; makes line breaks visible, too.
pub fn escape_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => line.push('⏎'),
            '\r' => {}
            '\t' => line.push(' '),
            _ => escape_char(c, &mut line),
        }
    }
    line
}

/// Escapes text into several lines; keeps only line breaks.
pub fn escape_block(text: &str) -> String {
    let mut lines = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\n' => lines.push('\n'),
            '\r' if characters.peek() == Some(&'\n') => {}
            '\t' => lines.push_str("    "),
            _ => escape_char(c, &mut lines),
        }
    }
    lines
}

/// Escapes text into one line of at most `most` characters.
pub fn escape_clipped(text: &str, most: usize) -> String {
    // Skip the part that would be clipped: every character except carriage returns yields at least one.
    let end = text.char_indices().nth(most.saturating_mul(2) + 2).map_or(text.len(), |(at, _)| at);
    clip_text(&escape_line(&text[..end]), most)
}

/// Clips text to `most` characters, with an ellipsis.
pub fn clip_text(text: &str, most: usize) -> String {
    if text.chars().nth(most).is_none() {
        return text.to_owned();
    }
    let mut clipped: String = text.chars().take(most.saturating_sub(1)).collect();
    clipped.push('…');
    clipped
}

fn escape_char(c: char, out: &mut String) {
    match c {
        // The control pictures have the same order as the control characters.
        '\0'..='\x1f' => out.push(char::from_u32(0x2400 + u32::from(c)).unwrap_or('␀')),
        '\x7f' => out.push('␡'),
        '\u{80}'..='\u{9f}' => out.push_str(&format!("<{:02x}>", u32::from(c))),
        // These characters change the direction or the lines of the text.
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
    fn makes_control_characters_visible() {
        assert_eq!(escape_line("\x1b[31mred\x07\u{9b}2J\x7f"), "␛[31mred␇<9b>2J␡");
        assert_eq!(escape_line("a\r\nb\tc"), "a⏎b c");
        assert_eq!(escape_block("a\r\nb\rc\td"), "a\nb␍c    d");
        assert_eq!(escape_line("x\u{202e}y"), "x<U+202E>y");
    }

    #[test]
    fn clipping_counts_characters() {
        assert_eq!(escape_clipped("äöü", 3), "äöü");
        assert_eq!(escape_clipped("äöüß", 3), "äö…");
        assert_eq!(escape_clipped("\r\r\r\r\r\r\r\rabc", 3).chars().count(), 0);
    }

    proptest! {
        #[test]
        fn leaves_no_control_characters(text in any::<String>(), most in 1usize..40) {
            prop_assert!(!escape_line(&text).chars().any(char::is_control));
            prop_assert!(!escape_block(&text).chars().any(|c| c.is_control() && c != '\n'));
            let short = escape_clipped(&text, most);
            prop_assert!(short.chars().count() <= most && !short.chars().any(char::is_control));
        }
    }
}
