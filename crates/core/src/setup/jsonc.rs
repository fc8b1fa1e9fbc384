//! JSON with comments and trailing commas, as editors write it.

use serde_json::Value;

/// Parses JSON with comments; `None` if it is invalid without them.
pub(super) fn parse_jsonc(text: &str) -> Option<Value> {
    serde_json::from_str(&strip_comments(text)).ok()
}

/// Replaces comments with spaces and removes commas before a closing bracket. Texts stay unchanged.
fn strip_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.trim_start_matches('\u{feff}');
    // The position of a comma that has only white space and comments after it.
    let mut last_comma = None;
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '"' => string_length(rest),
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => {
                rest.get(2..).and_then(|it| it.find("*/")).map_or(rest.len(), |end| end + 4)
            }
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(taken);
        rest = after;
        if token.starts_with("//") || token.starts_with("/*") {
            plain.push(' ');
            continue;
        }
        match first {
            ',' => last_comma = Some(plain.len()),
            ']' | '}' => {
                if let Some(comma) = last_comma.take() {
                    plain.replace_range(comma..=comma, " ");
                }
            }
            white if white.is_whitespace() => {}
            _ => last_comma = None,
        }
        plain.push_str(token);
    }
    plain
}

/// The length of the text at the start, with its quotes.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            b'"' if !escaped => return at + 1,
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn parses_comments_and_trailing_commas() {
        for (text, expected) in [
            ("{\"a\": 1, // one\n \"b\": [1, 2,], }", json!({"a": 1, "b": [1, 2]})),
            ("/* start */ {\"url\": \"http://x/*y*/\", /* end */}", json!({"url": "http://x/*y*/"})),
            (r#"{"a": "quote \" // no", "b": "\\"} // end"#, json!({"a": "quote \" // no", "b": "\\"})),
            ("\u{feff}[\",]\", 1 , /* c */ ]", json!([",]", 1])),
        ] {
            assert_eq!(parse_jsonc(text), Some(expected), "{text}");
        }
        for text in ["", "{", "/*", "//", "\"", "{\"a\":,}x", "[1 2]", "/", "[,,]"] {
            assert_eq!(parse_jsonc(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn keeps_the_value_of_plain_json(key in any::<String>(), value in any::<String>(), number in any::<i32>()) {
            let value = json!({ key: [value, number] });
            prop_assert_eq!(parse_jsonc(&value.to_string()), Some(value));
        }

        #[test]
        fn never_panics(text in "[\\[\\]{},/*\"\\\\a\n ]{0,40}") {
            parse_jsonc(&text);
        }
    }
}
