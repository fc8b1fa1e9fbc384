//! Measures and wraps text by terminal columns.

/// Combining characters and other characters without a column.
const ZERO_WIDTH: &[(u32, u32)] = &[
    (0x0300, 0x036f),
    (0x0483, 0x0489),
    (0x0591, 0x05bd),
    (0x0610, 0x061a),
    (0x064b, 0x065f),
    (0x06d6, 0x06dc),
    (0x0900, 0x0902),
    (0x093c, 0x093c),
    (0x0941, 0x0948),
    (0x0e31, 0x0e31),
    (0x0e34, 0x0e3a),
    (0x0e47, 0x0e4e),
    (0x1ab0, 0x1aff),
    (0x1dc0, 0x1dff),
    (0x200b, 0x200d),
    (0x20d0, 0x20ff),
    (0x302a, 0x302d),
    (0x3099, 0x309a),
    (0xfe00, 0xfe0f),
    (0xfe20, 0xfe2f),
    (0xfeff, 0xfeff),
    (0x1f3fb, 0x1f3ff),
    (0xe0100, 0xe01ef),
];

/// East Asian wide characters and the emoji that terminals draw like them.
const WIDE: &[(u32, u32)] = &[
    (0x1100, 0x115f),
    (0x231a, 0x231b),
    (0x23e9, 0x23ec),
    (0x23f0, 0x23f0),
    (0x23f3, 0x23f3),
    (0x25fd, 0x25fe),
    (0x2614, 0x2615),
    (0x2648, 0x2653),
    (0x267f, 0x267f),
    (0x2693, 0x2693),
    (0x26a1, 0x26a1),
    (0x26aa, 0x26ab),
    (0x26bd, 0x26be),
    (0x26c4, 0x26c5),
    (0x26ce, 0x26ce),
    (0x26d4, 0x26d4),
    (0x26ea, 0x26ea),
    (0x26f2, 0x26f3),
    (0x26f5, 0x26f5),
    (0x26fa, 0x26fa),
    (0x26fd, 0x26fd),
    (0x2705, 0x2705),
    (0x270a, 0x270b),
    (0x2728, 0x2728),
    (0x274c, 0x274c),
    (0x274e, 0x274e),
    (0x2753, 0x2755),
    (0x2757, 0x2757),
    (0x2795, 0x2797),
    (0x27b0, 0x27b0),
    (0x2b1b, 0x2b1c),
    (0x2b50, 0x2b50),
    (0x2b55, 0x2b55),
    (0x2e80, 0x303e),
    (0x3041, 0x33ff),
    (0x3400, 0x4dbf),
    (0x4e00, 0xa4cf),
    (0xa960, 0xa97c),
    (0xac00, 0xd7a3),
    (0xf900, 0xfaff),
    (0xfe30, 0xfe6f),
    (0xff01, 0xff60),
    (0xffe0, 0xffe6),
    (0x1f300, 0x1f64f),
    (0x1f680, 0x1f6ff),
    (0x1f7e0, 0x1f7eb),
    (0x1f900, 0x1f9ff),
    (0x1fa70, 0x1faff),
    (0x20000, 0x3fffd),
];

fn contains_char(table: &[(u32, u32)], c: char) -> bool {
    let code = u32::from(c);
    let at = table.partition_point(|(_, last)| *last < code);
    table.get(at).is_some_and(|(first, _)| *first <= code)
}

pub fn char_width(c: char) -> usize {
    match c {
        ' '..='~' => 1,
        _ if c.is_control() || contains_char(ZERO_WIDTH, c) => 0,
        _ if contains_char(WIDE, c) => 2,
        _ => 1,
    }
}

pub fn text_width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

/// The length in bytes of the longest prefix that fits into `most` columns.
pub fn fitting_prefix(text: &str, most: usize) -> usize {
    let mut used = 0;
    for (at, c) in text.char_indices() {
        used += char_width(c);
        if used > most {
            return at;
        }
    }
    text.len()
}

/// Wraps text at `most` columns, at spaces if possible.
pub fn wrap_text(text: &str, most: usize) -> Vec<String> {
    // A wide character needs two columns.
    let most = most.max(2);
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut rest = line;
        loop {
            let end = fitting_prefix(rest, most);
            if end == rest.len() {
                lines.push(rest.trim_end().to_owned());
                break;
            }
            let cut = if rest[end..].starts_with(' ') { Some(end) } else { rest[..end].rfind(' ') };
            // Do not break inside the indentation.
            let cut = cut.filter(|cut| !rest[..*cut].trim().is_empty()).unwrap_or(end);
            lines.push(rest[..cut].trim_end().to_owned());
            rest = rest[cut..].trim_start_matches(' ');
            if rest.is_empty() {
                break;
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tables_are_in_order() {
        for table in [ZERO_WIDTH, WIDE] {
            assert!(table.iter().all(|(first, last)| first <= last));
            assert!(table.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }

    #[test]
    fn measures_columns_not_characters() {
        assert_eq!(
            [
                text_width("abc"),
                text_width("日本"),
                text_width("e\u{301}"),
                text_width("✓"),
                text_width("🙂"),
                text_width("✎ −")
            ],
            [3, 4, 1, 1, 2, 3]
        );
        assert_eq!(fitting_prefix("日本語", 5), "日本".len());
    }

    #[test]
    fn prefers_breaks_at_spaces() {
        assert_eq!(wrap_text("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap_text("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap_text("  indented words", 10), ["  indented", "words"]);
        assert_eq!(wrap_text("a\n\nb", 10), ["a", "", "b"]);
        assert_eq!(wrap_text("", 10), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn no_line_is_too_long_and_no_word_is_lost(text in "[a-z日🙂 \n]{0,80}", most in 2usize..20) {
            let lines = wrap_text(&text, most);
            prop_assert!(lines.iter().all(|line| text_width(line) <= most));
            let squeezed = |text: &str| text.split_whitespace().collect::<String>();
            prop_assert_eq!(squeezed(&lines.concat()), squeezed(&text));
        }
    }
}
