//! Secrets appear in no listing, no `Debug` output and no error.

use super::*;
use crate::format::{BaseDirs, RawInput};
use crate::key::KEYS;
use crate::{Config, key::Key};
use secrecy::ExposeSecret;

const HIDDEN: &str = "very-hidden";

fn with_secrets() -> Fixture {
    Fixture::new()
        .env("DATABASE_URL", "postgres://atoll:very-hidden@db.example/atoll?sslpassword=very-hidden-2")
        .env("REDIS_URL", "redis://:very-hidden-3@redis.example")
        .env("DAYTONA_API_KEY", "very-hidden-4")
        .env("ANTHROPIC_API_KEY", "very-hidden-5")
        .env("GITHUB_TOKEN", "very-hidden-6")
        .file("work/atoll.yaml", "github:\n  token: very-hidden-7\n")
}

#[test]
fn hides_secrets_in_the_listing_and_in_debug() {
    let loaded = with_secrets().load();
    for text in [serde_json::to_string(&loaded.settings).unwrap(), format!("{loaded:?}"), format!("{loaded:#?}")] {
        assert!(!text.contains(HIDDEN), "{text}");
    }
    assert_eq!(loaded.value("database_url"), Some("postgres://atoll:***@db.example/atoll?sslpassword=***"));
    assert_eq!(loaded.value("github.token"), Some("***"));
    assert_eq!(Fixture::new().load().value("github.token"), None);
    assert_eq!(loaded.config.github.token.unwrap().expose_secret(), "very-hidden-6");
}

#[test]
fn the_redactor_gets_every_secret_of_every_layer() {
    let values = with_secrets().load().config.secret_values;
    let values: Vec<&str> = values.iter().map(|value| value.expose_secret()).collect();
    for secret in ["", "-2", "-3", "-4", "-5", "-6", "-7"].map(|end| format!("{HIDDEN}{end}")) {
        assert!(values.contains(&secret.as_str()), "{secret}");
    }
}

fn is_secret(key: &Key) -> bool {
    let dirs = BaseDirs { cwd: Path::new("/"), home: None };
    (key.read)(&mut Config::default(), &RawInput::Text("\n"), &dirs).is_err_and(|rejection| rejection.is_secret)
}

#[test]
fn no_error_repeats_a_secret() {
    let mut fixture = Fixture::new();
    for key in KEYS.iter().filter(|key| is_secret(key)) {
        for (n, name) in key.env_names().into_iter().enumerate() {
            fixture = fixture.env(&name, if n == 0 { "mysql://u:very-hidden@h" } else { "very-hidden\n" });
        }
    }
    let text = "github:\n  token: [very-hidden]\nanthropic: {api_key: {very-hidden: 1}}\ndatabase_url: very-hidden\n";
    let problems = fixture.file("work/atoll.yaml", text).env("ATOLL_DAYTONA_KEY", HIDDEN).problems();
    assert!(problems.len() > 8, "{problems:?}");
    assert!(!problems.concat().contains(HIDDEN), "{problems:?}");

    for text in ["github: {token: *very-hidden}", "github: {token: \"very-hidden", "github: {token: very-hidden: x: y"]
    {
        let problems = Fixture::new().file("work/atoll.yaml", text).problems();
        assert!(!problems.concat().contains(HIDDEN), "{problems:?}");
    }
}
