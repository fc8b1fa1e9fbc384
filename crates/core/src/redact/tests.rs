use super::*;
use proptest::prelude::*;

#[test]
fn redacts_known_values_in_json_strings() {
    let redactor = Redactor::new(["p\"ss/word1", "short", "longersecret", "longersecret-2"]);
    assert_eq!(redactor.redact(r#"{"a":"x p\"ss/word1 y"}"#).unwrap(), r#"{"a":"x [redacted] y"}"#);
    assert_eq!(redactor.redact("longersecret-2 short").unwrap(), "[redacted] short");
    assert_eq!(redactor.redact("nothing here"), None);
}

#[test]
fn redacts_own_tokens_by_format() {
    let token = format!("atoll_01k2_{}", "s".repeat(43));
    let text = format!("see atoll_core and {token}, twice {token}.");
    for redactor in [Redactor::default(), Redactor::new(["something else"])] {
        assert_eq!(redactor.redact(&text).unwrap(), "see atoll_core and [redacted], twice [redacted].");
        assert_eq!(redactor.redact("atoll_ atoll_x_y"), None);
    }
}

#[test]
fn redacts_encoded_forms() {
    let redactor = Redactor::new(["tok/en+1 ä"]);
    for encoded in [
        "tok%2Fen%2B1%20%C3%A4",
        "tok%2Fen%2B1+%C3%A4",
        "tok%2fen%2b1%20%c3%a4",
        "dG9rL2VuKzEgw6Q",
        "tok\\/en+1 ä",
        "tok/en+1 \\u00e4",
    ] {
        let redacted = redactor.redact(&format!("<{encoded}>"));
        assert!(redacted.as_deref().is_some_and(|text| text.len() <= REDACTED.len() + 4), "{encoded}: {redacted:?}");
    }
    // `curl -u user:hunter2secret` as sent over the wire.
    let basic = Redactor::new(["hunter2secret"]).redact("Basic dXNlcjpodW50ZXIyc2VjcmV0").unwrap();
    assert!(basic.starts_with("Basic dXNlcj") && basic.contains(REDACTED), "{basic}");
}

#[test]
fn redacts_overlapping_secrets_entirely() {
    let redactor = Redactor::new(["abcdefgh", "efghijkl"]);
    assert_eq!(redactor.redact("<abcdefghijkl>").unwrap(), "<[redacted]>");
    assert_eq!(redactor.redact("<abcdefghabcdefgh>").unwrap(), "<[redacted][redacted]>");
}

#[test]
fn json_stays_json() {
    let redactor = Redactor::new(["1234567", "hunter2!"]);
    let value = |text: &str| -> Value { serde_json::from_str(&redactor.redact_json(text).unwrap()).unwrap() };
    assert_eq!(value(r#"{"n":12345678,"m":5}"#), serde_json::json!({ "n": REDACTED, "m": 5 }));
    assert_eq!(value(r#"["\u0068unter2!"]"#), serde_json::json!([REDACTED]));
    assert_eq!(value(r#"{"hunter2!":{"a":["hunter2!"]}}"#), serde_json::json!({ REDACTED: { "a": [REDACTED] } }));
    assert_eq!(redactor.redact_json(r#"{"a":"\u00e4"}"#), None);
    // A secret that is JSON itself.
    let key = r#""key":"abcdef","more":1"#;
    let redacted = Redactor::new([key]).redact_json(&format!("{{{key}}}")).unwrap();
    assert_eq!(redacted, r#"{"redacted":"the whole of it"}"#);
    assert_eq!(Redactor::default().redact_json(r#"{"a":"\u0061toll"}"#), None);
}

#[test]
fn debug_output_has_no_secrets() {
    let redactor = Redactor::new(["hunter2!"]);
    let stream = format!("{:?}", redactor.start_stream());
    assert!(!format!("{redactor:?}{stream}").contains("hunter2!"));
}

proptest! {
    #[test]
    fn chunked_redaction_equals_whole_redaction(text in "[abc]{0,600}", cuts in proptest::collection::vec(1usize..300, 0..8)) {
        let redactor = Redactor::new(["abcabca", "cccbbb", "abacab"]);
        let whole = redactor.redact(&text).unwrap_or_else(|| text.clone());
        let (mut stream, mut out, mut rest) = (redactor.start_stream(), Vec::new(), text.as_bytes());
        for cut in cuts {
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            out.extend(stream.push(piece));
            rest = after;
        }
        out.extend(stream.push(rest));
        out.extend(stream.finish_stream());
        prop_assert_eq!(String::from_utf8(out).unwrap(), whole.clone());
        prop_assert_eq!(stream.has_redacted(), whole != text);
    }

    #[test]
    fn removes_the_secret_and_nothing_else(secret in r#"[A-Z0-9"/\\ ä]{6,40}"#, before in "[a-z]{0,9}", after in "[a-z]{0,9}") {
        let redactor = Redactor::new([secret.as_str()]);
        let text = serde_json::json!({ "a": format!("{before}{secret}{after}") }).to_string();
        let value: Value = serde_json::from_str(&redactor.redact_json(&text).unwrap()).unwrap();
        prop_assert_eq!(value, serde_json::json!({ "a": format!("{before}{REDACTED}{after}") }));
    }
}
