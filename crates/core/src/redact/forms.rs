//! The forms in which a secret turns up: as it is, escaped, encoded, in pieces.

/// A secret shorter than this would blank out ordinary words.
const SHORTEST: usize = 6;
/// Values above this are looked for in fewer forms: each form costs as much memory as the value.
const ALL_FORMS: usize = 4096;
/// A line of a longer secret, such as a key file's, that is worth looking for alone.
const SHORTEST_LINE: usize = 16;

/// Every text that gives the secret away; empty where it is too short to be looked for.
pub(super) fn of(secret: &str) -> Vec<String> {
    let secret = secret.trim_end_matches(['\n', '\r']);
    if secret.chars().count() < SHORTEST {
        return Vec::new();
    }
    let mut forms = vec![secret.to_owned(), escaped(secret)];
    for url_safe in [false, true] {
        forms.push(base64(secret.as_bytes(), 0, url_safe));
    }
    if secret.len() <= ALL_FORMS {
        forms.push(escaped_ascii(secret));
        forms.push(escaped(secret).replace('/', "\\/"));
        for url_safe in [false, true] {
            // As part of something longer: `user:secret` and its like.
            forms.extend([1, 2].map(|before| base64(secret.as_bytes(), before, url_safe)));
        }
        for kept in ["-_.~", "-_.~/", "-_.!~*'()"] {
            forms.extend([true, false].map(|upper| percent(secret, kept, upper)));
            forms.push(percent(secret, kept, true).replace("%20", "+"));
        }
    }
    let lines = secret.lines().map(str::trim).filter(|line| is_telling(line) && *line != secret);
    forms.extend(lines.map(str::to_owned));
    forms.retain(|form| form.len() >= SHORTEST);
    forms.sort_unstable();
    forms.dedup();
    forms
}

/// Whether a line says something of the secret by itself. Words and headings don't.
fn is_telling(line: &str) -> bool {
    line.len() >= SHORTEST_LINE && !line.starts_with("-----") && !line.contains(char::is_whitespace)
}

/// As it stands inside a JSON string.
fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The same, by writers that keep to ASCII.
fn escaped_ascii(text: &str) -> String {
    let mut all = String::new();
    for c in escaped(text).chars() {
        if c.is_ascii() {
            all.push(c);
        } else {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| all.push_str(&format!("\\u{unit:04x}")));
        }
    }
    all
}

fn percent(text: &str, kept: &str, upper: bool) -> String {
    let mut all = String::new();
    for byte in text.bytes() {
        match byte {
            _ if byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte) => all.push(char::from(byte)),
            _ if upper => all.push_str(&format!("%{byte:02X}")),
            _ => all.push_str(&format!("%{byte:02x}")),
        }
    }
    all
}

/// The characters of base64 that depend on these bytes alone, when `before` others (modulo 3) precede them.
fn base64(bytes: &[u8], before: usize, url_safe: bool) -> String {
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
        // `printf 'hunter2!' | base64`, and the same behind one and two bytes.
        for (before, whole) in [(0, "aHVudGVyMiE="), (1, "Omh1bnRlcjIh"), (2, "YTpodW50ZXIyIQ==")] {
            let form = base64(b"hunter2!", before, false);
            assert!(whole.contains(&form) && form.len() >= 9, "{form} in {whole}");
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe], 0, false), "+//+");
        assert_eq!(base64(&[0xfb, 0xff, 0xfe], 0, true), "-__-");
    }

    #[test]
    fn percent_encoding_has_several_dialects() {
        let forms = of("a b/c+d!ä");
        for form in ["a%20b%2Fc%2Bd%21%C3%A4", "a%20b/c%2Bd%21%C3%A4", "a+b%2Fc%2Bd!%C3%A4", "a%20b%2fc%2bd%21%c3%a4"] {
            assert!(forms.iter().any(|known| known == form), "{form} in {forms:?}");
        }
    }

    #[test]
    fn json_is_escaped_in_more_than_one_way() {
        let forms = of("é\"/x\n1234");
        for form in [r#"é\"/x\n1234"#, r#"\u00e9\"/x\n1234"#, r#"é\"\/x\n1234"#] {
            assert!(forms.iter().any(|known| known == form), "{form} in {forms:?}");
        }
    }

    #[test]
    fn what_is_short_or_says_nothing_alone_is_left_out() {
        assert!(of("12345").is_empty() && of("12345\n").is_empty() && !of("123456").is_empty());
        let file = "-----BEGIN A KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nword\n-----END A KEY-----\n";
        let forms = of(file);
        assert!(forms.iter().any(|form| form == "MIIEvQIBADANBgkqhkiG9w0"));
        assert!(!forms.iter().any(|form| form == "word" || form == "-----BEGIN A KEY-----"));
        let long = "0123456789".repeat(5000);
        assert!(of(&long).len() <= 4, "a long one is not kept many times");
    }
}
