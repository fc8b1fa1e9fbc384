//! Bytes that are not text, as the server writes them into JSON.

/// The standard alphabet with padding; nothing where the text is not of this form.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    let (mut held, mut bits) = (0_u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        let cases: &[(&str, &[u8])] = &[
            ("", b""),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYg==", b"foob"),
            ("Zm9vYmFy", b"foobar"),
            ("//4A", &[0xff, 0xfe, 0x00]),
            ("+/+/", &[0xfb, 0xff, 0xbf]),
        ];
        for (text, bytes) in cases {
            assert_eq!(decode(text).as_deref(), Some(*bytes), "{text}");
        }
        for bad in ["Z", "Zg=", "Z===", "Zm9v=", "Zm 9", "Zm9-"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
