//! A login file in a real sandbox: fresh before each prompt, good for nothing but one's own work, and gone from what is
//! kept.

use super::secrets::{atoll, holding};
use atoll_tests::local::{Ground, told};
use serde_json::{Value, json};

const PATH: &str = ".local/share/demo/auth.json";

/// Of one login; the word is in every token.
fn login(word: &str) -> String {
    let first = json!({ "type": "oauth", "access": format!("access-{word}"), "refresh": format!("renew-{word}"),
        "expires": 1_900_000_000_000_u64, "refreshTokenExpiresAt": 1_900_000_000_000_u64 });
    json!({ "someone": first, "other": { "type": "api", "key": format!("key-{word}") } }).to_string()
}

/// As it has to be inside.
fn blank(word: &str) -> Value {
    let first = json!({ "type": "oauth", "access": format!("access-{word}"), "refresh": "",
        "expires": 1_900_000_000_000_u64, "refreshTokenExpiresAt": 0 });
    json!({ "someone": first, "other": { "type": "api", "key": format!("key-{word}") } })
}

async fn found(ground: &Ground, id: &str) -> Value {
    let text = ground.shell(id, &format!("cat ~/{PATH}")).await.well();
    serde_json::from_str(&text).unwrap()
}

async fn is_there(ground: &Ground, id: &str) -> bool {
    ground.shell(id, &format!("test -e ~/{PATH}")).await.code() == Some(0)
}

/// Sends a prompt and waits until the agent has done all that it says.
async fn prompted(ground: &Ground, id: &str, lines: &str, last: &str) {
    ground.send(id, json!({ "content": format!("{lines}\nsay {last}") })).await;
    ground.event(id, |event| event["type"] == "agent.message" && event["data"]["text"] == last).await;
    ground.until(id, |row| row["activity"] == "waiting_message").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_file_is_written_before_each_prompt_without_what_renews_it() {
    let [word, later] = [(), ()].map(|()| uuid::Uuid::new_v4().simple().to_string());
    let ground = Ground::start_as("", &["--log-level", "trace"]);
    let set = ["secret", "set", "LOGIN", "--expose-file", PATH];
    let (well, told_so) = atoll(&ground, &set, "access=plain-text");
    assert!(!well && told_so.contains("must be JSON") && !told_so.contains("plain-text"), "{told_so}");
    for bad in ["../auth.json", "/etc/auth.json", "a//b", ".codex/config.toml"] {
        let (well, told_so) = atoll(&ground, &["secret", "set", "LOGIN", "--expose-file", bad], "{}");
        assert!(!well && told_so.contains("expose_file"), "{told_so}");
    }
    let (well, told_so) = atoll(&ground, &set, &login(&word));
    assert!(well && told_so.contains(&format!("as ~/{PATH}")) && !told_so.contains(&word), "{told_so}");
    let (_, listed) = atoll(&ground, &["secret", "ls"], "");
    assert!(listed.contains(&format!("as ~/{PATH}")) && !listed.contains(&word), "{listed}");

    let without = ground.make(json!({ "prompt": "say ready", "end": "keep" })).await;
    let prompt = format!("run cat ~/{PATH}\nrun stat -c '%a %U' ~/{PATH}\nrun rm ~/{PATH}; echo mine > ~/{PATH}");
    let id = ground.make(json!({ "prompt": prompt, "end": "keep", "secrets": ["LOGIN"] })).await;
    ground.until(&id, |row| row["activity"] == "waiting_message").await;
    let events = ground.admin.all_events(&id).await;
    let outputs: Vec<&str> =
        told(&events, "agent.tool_completed").iter().map(|data| data["output"].as_str().unwrap()).collect();
    assert_eq!(outputs.len(), 3, "{events:#?}");
    // The agent had it, and the log has none of it; the words around it stay.
    assert!(outputs[0].contains("[redacted]") && outputs[0].contains("oauth"), "{outputs:?}");
    assert_eq!(outputs[1].trim(), "600 agent");
    let exposed = told(&events, "secrets.exposed");
    assert_eq!(exposed.len(), 1);
    assert_eq!(exposed[0]["secrets"], json!([{ "name": "LOGIN", "file": PATH }]));
    assert!(!is_there(&ground, &without).await, "it names no secret");

    // What the agent made of it does not last, and the same is not told twice.
    prompted(&ground, &id, "", "again").await;
    assert_eq!(found(&ground, &id).await, blank(&word));
    // What the server has now, in the sandbox that began with another.
    let (well, told_so) = atoll(&ground, &set, &login(&later));
    assert!(well, "{told_so}");
    prompted(&ground, &id, &format!("run grep -o renew- ~/{PATH} || echo nothing renews"), "renewed").await;
    assert_eq!(found(&ground, &id).await, blank(&later));
    let events = ground.admin.all_events(&id).await;
    assert_eq!(told(&events, "secrets.exposed").len(), 2);
    let text = Value::from(events).to_string();
    assert!(text.contains("nothing renews") && !text.contains(&word) && !text.contains(&later), "{text}");
    let row = ground.row(&id).await;
    assert_eq!(row["exposed_secrets"], json!(["LOGIN"]));

    // Nothing of it is kept in a snapshot; the next prompt brings it back.
    ground.admin.post(&format!("/sandboxes/{id}/snapshot"), json!({ "name": "kept" })).await.expect(201);
    let copy = ground.make(json!({ "prompt": "say ready", "end": "keep", "snapshot": "kept" })).await;
    ground.until(&copy, |row| row["activity"] == "waiting_message").await;
    assert!(!is_there(&ground, &copy).await && !is_there(&ground, &id).await);
    prompted(&ground, &id, "", "back").await;
    assert_eq!(found(&ground, &id).await, blank(&later));
    // Nor when it is a secret no more.
    let (well, told_so) = atoll(&ground, &["secret", "rm", "LOGIN"], "");
    assert!(well, "{told_so}");
    prompted(&ground, &id, "", "without").await;
    assert!(!is_there(&ground, &id).await);

    for id in [&id, &copy, &without] {
        ground.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect(200);
        ground.gone(id).await;
    }
    assert_eq!(holding(&ground.data(), &[&word, &later]), "");
    let said = ground.server.said();
    assert!(!said.contains(&word) && !said.contains(&later), "the server's log says it");
    ground.leave().await;
}
