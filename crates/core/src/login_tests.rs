use super::*;
use proptest::prelude::*;
use serde_json::json;

fn blank(value: &Value) -> Value {
    serde_json::from_str(&blank_refresh_tokens(&value.to_string()).unwrap()).unwrap()
}

#[test]
fn refresh_tokens_are_blanked_and_their_fields_remain() {
    let opencode = json!({
        "anthropic": { "type": "oauth", "access": "sk-access", "refresh": "sk-refresh", "expires": 1_760_000_000_000_u64 },
        "zai": { "type": "api", "key": "abcdef" },
    });
    assert_eq!(
        blank(&opencode),
        json!({
            "anthropic": { "type": "oauth", "access": "sk-access", "refresh": "", "expires": 1_760_000_000_000_u64 },
            "zai": { "type": "api", "key": "abcdef" },
        })
    );
    let claude = json!({ "claudeAiOauth": {
        "accessToken": "a", "refreshToken": "r", "refreshTokenExpiresAt": 12.5, "scopes": ["user:inference"],
    } });
    assert_eq!(
        blank(&claude),
        json!({ "claudeAiOauth": {
            "accessToken": "a", "refreshToken": "", "refreshTokenExpiresAt": 0, "scopes": ["user:inference"],
        } })
    );
    let codex = json!({
        "OPENAI_API_KEY": null, "tokens": { "access_token": "a", "refresh_token": "r" },
        "last_refresh": "2026-01-31T12:00:00.123456789Z",
    });
    let blanked = blank(&codex);
    assert_eq!(blanked["tokens"], json!({ "access_token": "a", "refresh_token": "" }));
    assert_eq!(
        blanked["last_refresh"], codex["last_refresh"],
        "it cannot read its file without, and it renews nothing"
    );
}

#[test]
fn names_match_at_any_depth_and_in_any_case() {
    let value = json!([{ "REFRESH": [1, "x", { "inner": "y", "list": [2], "on": true, "none": null }], "other": "z" }]);
    let blanked = json!([{ "REFRESH": [0, "", { "inner": "", "list": [0], "on": true, "none": null }], "other": "z" }]);
    assert_eq!(blank(&value), blanked);
    assert_eq!(blank(&json!("refresh")), json!("refresh"), "a value is no name");
}

#[test]
fn a_path_stays_below_the_home() {
    for good in ["a", ".codex/auth.json", ".claude/.credentials.json", ".config/x/a+b@c-d_e", "...", "a/..b"] {
        assert!(check_login_path("f", good).is_ok(), "{good}");
    }
    let long = ["a"; 101].join("/");
    for bad in [
        "",
        "/etc/passwd",
        "~/.codex/auth.json",
        "..",
        "a/../b",
        ".",
        "a/./b",
        "a//b",
        "a/",
        "a b",
        "a\nb",
        "a\0",
        "a\\b",
        "ä",
        "$HOME",
        ".codex/config.toml",
        ".gemini/GEMINI.md",
        ".codex/auth.atoll-new",
        &"a".repeat(101),
        &long,
    ] {
        assert!(check_login_path("f", bad).is_err(), "{bad}");
    }
}

#[test]
fn rejects_invalid_json_without_revealing_it() {
    for bad in ["", "hunter2", "{\"hunter2\": ", "{'hunter2': 1}", &"[".repeat(1000)] {
        let refused = check_login_content("value", bad).unwrap_err().to_string();
        assert!(refused.contains("JSON") && !refused.contains("hunter2"), "{refused}");
        assert_eq!((blank_refresh_tokens(bad), secret_strings(bad).len()), (None, 0));
    }
    assert!(check_login_content("value", "{}").is_ok());
    let many: Vec<String> = (0..=MAX_STRINGS).map(|n| n.to_string()).collect();
    assert!(check_login_content("value", &json!(many).to_string()).is_err());
    assert!(check_login_content("value", &json!(&many[1..]).to_string()).is_ok());
}

#[test]
fn tokens_are_secret_and_kinds_are_not() {
    let file = json!({ "claudeAiOauth": {
        "accessToken": "the-access", "refreshToken": "the-refresh", "expiresAt": 1_760_000_000_000_u64,
        "scopes": ["user:inference"], "subscriptionType": "enterprise", "token_type": "bearer", "empty": "", "at": "2026-01-31T12:00:00Z",
    }, "refreshing": { "type": "still a secret" } });
    let found: Vec<String> = secret_strings(&file.to_string()).into_iter().collect();
    assert_eq!(found, ["still a secret", "the-access", "the-refresh"]);
}

/// Arbitrary JSON in which some names contain "refresh".
fn any_json() -> impl Strategy<Value = Value> {
    let name = prop_oneof!["[a-c]{1,3}", "[a-c]?(refresh|Refresh|REFRESH)[a-c]?"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1000_i16..1000).prop_map(|eighths| Value::from(f64::from(eighths) / 8.0)),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(name.clone(), inner, 0..6).prop_map(|map| json!(map)),
        ]
    })
}

/// Collects each leaf with its path, and the shape of each container, marked by `#`.
fn leaves(value: &Value, way: &str, all: &mut Vec<(String, Value)>) {
    match value {
        Value::Array(items) => {
            all.push((format!("{way}#"), json!(items.len())));
            items.iter().enumerate().for_each(|(at, item)| leaves(item, &format!("{way}/{at}"), all));
        }
        Value::Object(fields) => {
            all.push((format!("{way}#"), json!(fields.keys().collect::<Vec<_>>())));
            fields.iter().for_each(|(name, field)| leaves(field, &format!("{way}/{name}"), all));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            all.push((way.to_owned(), value.clone()));
        }
    }
}

proptest! {
    #[test]
    fn only_refresh_tokens_change(value in any_json()) {
        // Compare after parsing: numbers may be formatted differently.
        let value: Value = serde_json::from_str(&value.to_string()).unwrap();
        let (mut before, mut after) = (Vec::new(), Vec::new());
        leaves(&value, "", &mut before);
        let blank = blank(&value);
        leaves(&blank, "", &mut after);
        prop_assert_eq!(before.len(), after.len());
        for ((way, was), (same_way, is)) in before.iter().zip(&after) {
            prop_assert_eq!(way, same_way);
            let renews = way.to_lowercase().contains("refresh") && !way.ends_with('#');
            match (renews, was) {
                (true, Value::String(_)) => prop_assert_eq!(is, &json!("")),
                (true, Value::Number(_)) => prop_assert_eq!(is, &json!(0)),
                _ => prop_assert_eq!(is, was),
            }
        }
        let again = blank_refresh_tokens(&blank.to_string());
        prop_assert_eq!(again, Some(blank.to_string()), "once is enough");
    }

    #[test]
    fn any_text_is_judged(text in ".{0,80}") {
        let _judged = (check_login_path("f", &text), check_login_content("f", &text), blank_refresh_tokens(&text), secret_strings(&text));
    }

    #[test]
    fn no_path_leaves_the_home(text in "[a./~]{0,12}") {
        if check_login_path("f", &text).is_ok() {
            prop_assert!(std::path::Path::new(&text).components().all(|part| matches!(part, std::path::Component::Normal(_))));
        }
    }
}
