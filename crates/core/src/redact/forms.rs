//! Encodings in which a secret appears: plain, escaped, encoded, in pieces.

/// Minimum length: a shorter secret would redact ordinary words.
const MIN_SECRET_BYTES: usize = 6;
/// Longer values are searched in fewer encodings: each costs as much memory as the value.
const MAX_BYTES_FOR_ALL_FORMS: usize = 4096;
/// Minimum length of a line of a longer secret, such as a key file, to redact the line alone.
const MIN_LINE_BYTES: usize = 16;

/// Returns every text that reveals the secret; empty if the secret is too short.
pub(super) fn secret_forms(secret: &str) -> Vec<String> {
    let secret = secret.trim_end_matches(['\n', '\r']);
    if secret.chars().count() < MIN_SECRET_BYTES {
        return Vec::new();
    }
    let mut forms = vec![secret.to_owned(), escape_json(secret)];
    for url_safe in [false, true] {
        forms.push(base64_fragment(secret.as_bytes(), 0, url_safe));
    }
    if secret.len() <= MAX_BYTES_FOR_ALL_FORMS {
        forms.push(escape_json_ascii(secret));
        forms.push(escape_json(secret).replace('/', "\\/"));
        for url_safe in [false, true] {
            // As part of a longer text, such as `user:secret`.
            forms.extend([1, 2].map(|before| base64_fragment(secret.as_bytes(), before, url_safe)));
        }
        for unescaped in ["-_.~", "-_.~/", "-_.!~*'()"] {
            forms.extend([true, false].map(|upper| percent_encode(secret, unescaped, upper)));
            forms.push(percent_encode(secret, unescaped, true).replace("%20", "+"));
        }
    }
    let lines = secret.lines().map(str::trim).filter(|line| reveals_secret(line) && *line != secret);
    forms.extend(lines.map(str::to_owned));
    forms.retain(|form| form.len() >= MIN_SECRET_BYTES);
    forms.sort_unstable();
    forms.dedup();
    forms
}

/// Returns true if the line alone reveals part of the secret. Words and headings don't.
fn reveals_secret(line: &str) -> bool {
    line.len() >= MIN_LINE_BYTES && !line.starts_with("-----") && !line.contains(char::is_whitespace)
}

/// Escapes the text for a JSON string.
fn escape_json(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Escapes the text for a JSON string in ASCII only.
fn escape_json_ascii(text: &str) -> String {
    let mut all = String::new();
    for c in escape_json(text).chars() {
        if c.is_ascii() {
            all.push(c);
        } else {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| all.push_str(&format!("\\u{unit:04x}")));
        }
    }
    all
}

fn percent_encode(text: &str, unescaped: &str, upper: bool) -> String {
    let mut all = String::new();
    for byte in text.bytes() {
        match byte {
            _ if byte.is_ascii_alphanumeric() || unescaped.as_bytes().contains(&byte) => all.push(char::from(byte)),
            _ if upper => all.push_str(&format!("%{byte:02X}")),
            _ => all.push_str(&format!("%{byte:02x}")),
        }
    }
    all
}

/// Returns the base64 characters that depend on these bytes alone, if `before` bytes (modulo 3) precede them.
fn base64_fragment(bytes: &[u8], before: usize, url_safe: bool) -> String {
    let last_two = if url_safe { *b"-_" } else { *b"+/" };
    let character = |value: u8| match value {
        0..=25 => char::from(b'A' + value),
        26..=51 => char::from(b'a' + value - 26),
        52..=61 => char::from(b'0' + value - 52),
        62 => char::from(last_two[0]),
        _ => char::from(last_two[1]),
    };
    let (first_bit, end_bit) = (before * 8, (before + bytes.len()) * 8);
    let bit = |at: usize| (bytes[(at - first_bit) / 8] >> (7 - at % 8)) & 1;
    let whole = first_bit.div_ceil(6)..end_bit / 6;
    whole.map(|at| character((at * 6..at * 6 + 6).fold(0, |value, at| value << 1 | bit(at)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_found_wherever_the_secret_begins() {
        // `printf 'hunter2!' | base64`, and the same after one and two bytes.
        for (before, whole) in [(0, "aHVudGVyMiE="), (1, "Omh1bnRlcjIh"), (2, "YTpodW50ZXIyIQ==")] {
            let form = base64_fragment(b"hunter2!", before, false);
            assert!(whole.contains(&form) && form.len() >= 9, "{form} in {whole}");
        }
        assert_eq!(base64_fragment(&[0xfb, 0xff, 0xfe], 0, false), "+//+");
        assert_eq!(base64_fragment(&[0xfb, 0xff, 0xfe], 0, true), "-__-");
    }

    #[test]
    fn covers_percent_encoding_dialects() {
        let forms = secret_forms("a b/c+d!ä");
        for form in ["a%20b%2Fc%2Bd%21%C3%A4", "a%20b/c%2Bd%21%C3%A4", "a+b%2Fc%2Bd!%C3%A4", "a%20b%2fc%2bd%21%c3%a4"] {
            assert!(forms.iter().any(|known| known == form), "{form} in {forms:?}");
        }
    }

    #[test]
    fn covers_both_json_escapings() {
        let forms = secret_forms("é\"/x\n1234");
        for form in [r#"é\"/x\n1234"#, r#"\u00e9\"/x\n1234"#, r#"é\"\/x\n1234"#] {
            assert!(forms.iter().any(|known| known == form), "{form} in {forms:?}");
        }
    }

    #[test]
    fn skips_short_secrets_and_ordinary_lines() {
        assert!(
            secret_forms("12345").is_empty()
                && secret_forms("12345\n").is_empty()
                && !secret_forms("123456").is_empty()
        );
        let file = "-----BEGIN A KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nword\n-----END A KEY-----\n";
        let forms = secret_forms(file);
        assert!(forms.iter().any(|form| form == "MIIEvQIBADANBgkqhkiG9w0"));
        assert!(!forms.iter().any(|form| form == "word" || form == "-----BEGIN A KEY-----"));
        let long = "0123456789".repeat(5000);
        assert!(secret_forms(&long).len() <= 4, "a long one is not kept many times");
    }
}
