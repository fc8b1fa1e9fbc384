//! The real agents with a login file without a refresh token.

use super::agent_fixture::AgentFixture;
use super::{SCRIPTS, event_data};
use serde_json::{Value, json};

/// An unsigned token; the agents do not verify it.
const ID_TOKEN: &str = "eyJhbGciOiJub25lIn0.eyJlbWFpbCI6ImFAYi5jIiwiZXhwIjo0MDAwMDAwMDAwfQ.c2ln";

fn login_json(agent: &str) -> Value {
    let expires_at = 4_000_000_000_000_u64;
    match agent {
        "codex" => json!({
            "OPENAI_API_KEY": null, "last_refresh": "2026-01-31T12:00:00.123456789Z",
            "tokens": { "id_token": ID_TOKEN, "access_token": ID_TOKEN, "refresh_token": "renewing", "account_id": "a" },
        }),
        _ => json!({
            "anthropic": { "type": "oauth", "access": "access-token", "refresh": "renewing", "expires": expires_at },
        }),
    }
}

/// Agent, path of the login file in the home, command that reads it, and expected output.
const LOGIN_CASES: [(&str, &str, &str, &str); 2] = [
    ("codex", "other/auth.json", "CODEX_HOME=~/other; codex login status", "Logged in using ChatGPT"),
    ("opencode", "other/opencode/auth.json", "XDG_DATA_HOME=~/other; opencode auth list", "oauth"),
];

pub(super) async fn reads_login(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "a login file", SCRIPTS).await else { return };
    let (_, path, script, expected) = *LOGIN_CASES.iter().find(|(name, ..)| *name == agent).unwrap();
    let body = json!({ "value": login_json(agent).to_string(), "expose_file": path });
    fixture.server.admin.put("/secrets/LOGIN", body).await.expect_status(201);
    let id = fixture.create_sandbox("go #script:again", json!({ "end": "keep", "secrets": ["LOGIN"] })).await;
    let row = fixture.wait_until_idle(&id).await;
    assert_eq!(row["state"], "running", "{row}");
    let file = fixture.server.run_shell(&id, &format!("cat ~/{path}")).await.expect_success();
    assert!(!file.contains("renewing") && file.contains("refresh"), "{file}");
    let script = format!("PATH=/opt/atoll/agents/{agent}/bin:$PATH; export {script} 2>&1");
    let ran = fixture.server.run_shell(&id, &script).await;
    assert!(ran.stdout.contains(expected), "{ran:?}");
    let events = fixture.server.admin.all_events(&id).await;
    assert_eq!(event_data(&events, "secrets.exposed").len(), 1);
    fixture.server.stop_and_check().await;
}

/// Codex with its own login does not use the gateway.
pub(super) async fn prefers_login_to_gateway() {
    let Some(fixture) = AgentFixture::start("codex", "a login of its own", SCRIPTS).await else { return };
    let body = json!({ "value": login_json("codex").to_string(), "expose_file": ".codex/auth.json" });
    fixture.server.admin.put("/secrets/LOGIN", body).await.expect_status(201);
    let mut settings = Vec::new();
    for secrets in [json!([]), json!(["LOGIN"])] {
        let id = fixture.create_sandbox("go #script:again", json!({ "end": "keep", "secrets": secrets })).await;
        // Without access to its models Codex may fail; its files stay.
        let has_started = |event: &Value| event["type"] == "message.acknowledged" || event["type"] == "sandbox.failed";
        fixture.server.wait_for_event(&id, has_started).await;
        let file = fixture.server.workspace_dir(&id).with_file_name("home").join(".codex/config.toml");
        settings.push(std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
        fixture.server.admin.delete(&format!("/sandboxes/{id}?force=true")).await;
    }
    assert!(settings[0].contains("model_provider") && !settings[1].contains("model_provider"), "{settings:?}");
    fixture.server.stop_and_check().await;
}
