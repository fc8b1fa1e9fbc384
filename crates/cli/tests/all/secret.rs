//! `atoll secret` without a running server.

use crate::program::{atoll, objects, text, with_input};

#[test]
fn a_model_key_is_stored_as_the_advice_says() {
    let dir = tempfile::tempdir().unwrap();
    let secret = |arguments: &[&str]| {
        let mut command = atoll(dir.path());
        command.env_remove("ANTHROPIC_BASE_URL").arg("secret").args(arguments);
        command
    };
    let set = with_input(secret(&["set", "ANTHROPIC_API_KEY"]), "sk-ant-test-0815\n");
    assert_eq!((text(&set.stderr).as_str(), set.status.code()), ("", Some(0)));
    assert_eq!(text(&set.stdout).trim(), "ANTHROPIC_API_KEY is set for api.anthropic.com");
    let other = with_input(secret(&["set", "OTHER_KEY"]), "x");
    assert!(text(&other.stdout).contains("nothing can use it: add --upstream HOST"), "{}", text(&other.stdout));
    let listed = secret(&["ls", "--json"]).output().unwrap();
    let names: Vec<_> =
        objects(&listed).into_iter().map(|secret| (secret["name"].clone(), secret["upstreams"].clone())).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(names.contains(&("ANTHROPIC_API_KEY".into(), serde_json::json!(["api.anthropic.com"]))), "{names:?}");
}
