//! What must not be seen is not seen: in no listing, no `Debug`, no error.

use super::*;
use crate::keys::KEYS;
use secrecy::ExposeSecret;

const HIDDEN: &str = "very-hidden";

fn world() -> World {
    World::new()
        .env("DATABASE_URL", "postgres://atoll:very-hidden@db.example/atoll?sslpassword=very-hidden-2")
        .env("REDIS_URL", "redis://:very-hidden-3@redis.example")
        .env("DAYTONA_API_KEY", "very-hidden-4")
        .env("ANTHROPIC_API_KEY", "very-hidden-5")
        .env("GITHUB_TOKEN", "very-hidden-6")
        .file("work/atoll.yaml", "github:\n  token: very-hidden-7\n")
}

#[test]
fn secrets_are_hidden_in_the_listing_and_in_debug() {
    let loaded = world().load();
    for text in [serde_json::to_string(&loaded.shown).unwrap(), format!("{loaded:?}"), format!("{loaded:#?}")] {
        assert!(!text.contains(HIDDEN), "{text}");
    }
    assert_eq!(loaded.value("database_url"), Some("postgres://atoll:***@db.example/atoll?sslpassword=***"));
    assert_eq!(loaded.value("github.token"), Some("***"));
    assert_eq!(World::new().load().value("github.token"), None);
    assert_eq!(loaded.config.github.token.unwrap().expose_secret(), "very-hidden-6");
}

#[test]
fn the_redactor_gets_every_secret_even_one_that_another_layer_hides() {
    let values = world().load().config.secret_values();
    let values: Vec<&str> = values.iter().map(|value| value.expose_secret()).collect();
    for secret in ["", "-2", "-3", "-4", "-5", "-6", "-7"].map(|end| format!("{HIDDEN}{end}")) {
        assert!(values.contains(&secret.as_str()), "{secret}");
    }
}

#[test]
fn no_error_repeats_a_secret() {
    let mut world = World::new();
    for key in KEYS.iter().filter(|key| key.kind.is_secret()) {
        for (n, name) in key.env_names().into_iter().enumerate() {
            world = world.env(&name, if n == 0 { "mysql://u:very-hidden@h" } else { "very-hidden\n" });
        }
    }
    let text = "github:\n  token: [very-hidden]\nanthropic: {api_key: {very-hidden: 1}}\ndatabase_url: very-hidden\n";
    let problems = world.file("work/atoll.yaml", text).env("ATOLL_DAYTONA_KEY", HIDDEN).refused();
    assert!(problems.len() > 8, "{problems:?}");
    assert!(!problems.concat().contains(HIDDEN), "{problems:?}");

    for text in ["github: {token: *very-hidden}", "github: {token: \"very-hidden", "github: {token: very-hidden: x: y"]
    {
        let problems = World::new().file("work/atoll.yaml", text).refused();
        assert!(!problems.concat().contains(HIDDEN), "{problems:?}");
    }
}
