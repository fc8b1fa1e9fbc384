//! What the real agents make of a login file in which nothing is left that renews it.

use super::stage::Stage;
use super::{SCRIPTS, told};
use serde_json::{Value, json};

/// Of nobody; it says who one is, and nobody checks who signed it.
const ID_TOKEN: &str = "eyJhbGciOiJub25lIn0.eyJlbWFpbCI6ImFAYi5jIiwiZXhwIjo0MDAwMDAwMDAwfQ.c2ln";

fn login(agent: &str) -> Value {
    let day = 4_000_000_000_000_u64;
    match agent {
        "codex" => json!({
            "OPENAI_API_KEY": null, "last_refresh": "2026-01-31T12:00:00.123456789Z",
            "tokens": { "id_token": ID_TOKEN, "access_token": ID_TOKEN, "refresh_token": "renewing", "account_id": "a" },
        }),
        _ => json!({
            "anthropic": { "type": "oauth", "access": "access-token", "refresh": "renewing", "expires": day },
        }),
    }
}

/// Where it lies in a home that is not the agent's own, how the agent is shown that, and what it says.
const KNOWN: [(&str, &str, &str, &str); 2] = [
    ("codex", "other/auth.json", "CODEX_HOME=~/other; codex login status", "Logged in using ChatGPT"),
    ("opencode", "other/opencode/auth.json", "XDG_DATA_HOME=~/other; opencode auth list", "oauth"),
];

pub(super) async fn are_read(agent: &str) {
    let Some(stage) = Stage::set(agent, "a login file", SCRIPTS).await else { return };
    let (_, path, script, says) = *KNOWN.iter().find(|(name, ..)| *name == agent).unwrap();
    let body = json!({ "value": login(agent).to_string(), "expose_file": path });
    stage.ground.admin.put("/secrets/LOGIN", body).await.expect(201);
    let id = stage.make("go #script:again", json!({ "end": "keep", "secrets": ["LOGIN"] })).await;
    let row = stage.rests(&id).await;
    assert_eq!(row["state"], "running", "{row}");
    let file = stage.ground.shell(&id, &format!("cat ~/{path}")).await.well();
    assert!(!file.contains("renewing") && file.contains("refresh"), "{file}");
    let script = format!("PATH=/opt/atoll/agents/{agent}/bin:$PATH; export {script} 2>&1");
    let said = stage.ground.shell(&id, &script).await;
    assert!(said.stdout.contains(says), "{said:?}");
    let events = stage.ground.admin.all_events(&id).await;
    assert_eq!(told(&events, "secrets.exposed").len(), 1);
    stage.ground.leave().await;
}

/// One that finds its own login is not sent to the gateway.
pub(super) async fn go_before_the_gateway() {
    let Some(stage) = Stage::set("codex", "a login of its own", SCRIPTS).await else { return };
    let body = json!({ "value": login("codex").to_string(), "expose_file": ".codex/auth.json" });
    stage.ground.admin.put("/secrets/LOGIN", body).await.expect(201);
    let mut settings = Vec::new();
    for secrets in [json!([]), json!(["LOGIN"])] {
        let id = stage.make("go #script:again", json!({ "end": "keep", "secrets": secrets })).await;
        // Without a way to its models it may fail; its files stay.
        let has_begun = |event: &Value| event["type"] == "message.acknowledged" || event["type"] == "sandbox.failed";
        stage.ground.event(&id, has_begun).await;
        let file = stage.ground.workspace_of(&id).with_file_name("home").join(".codex/config.toml");
        settings.push(std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
        stage.ground.admin.delete(&format!("/sandboxes/{id}?force=true")).await;
    }
    assert!(settings[0].contains("model_provider") && !settings[1].contains("model_provider"), "{settings:?}");
    stage.ground.leave().await;
}
