//! Sessions outlive their sandboxes: the next sandbox of one gets the agent's own transcript, and the agent remembers.
//! What the model was asked is the proof again: what was said in the first sandbox is in the second one's requests.

use super::stage::Stage;
use atoll_tests::local::told;
use serde_json::{Value, json};

const SCRIPTS: &str = r#"
scripts:
  - name: first
    steps:
      - run: echo the-result-is-KIWI
      - say: I have seen it, PAPAYA.
  - name: again
    steps:
      - say: I went on.
  - name: apart
    steps:
      - say: I went another way.
  - name: slow
    steps:
      - run: echo the-result-is-KIWI
      - run: tail -f /dev/null
"#;

/// What the agent was told, what its tool said and, where it came so far, what it answered.
const SAID: [&str; 2] = ["remember PINEAPPLE", "the-result-is-KIWI"];

macro_rules! with_each {
    ($($agent:ident),+) => {
        $(mod $agent {
            const AGENT: &str = stringify!($agent);

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn remembers_in_a_new_sandbox() {
                super::remembers(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn remembers_after_it_was_killed() {
                super::remembers_death(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_fork_remembers_and_leaves_its_origin_alone() {
                super::forks(AGENT).await;
            }
        })+
    };
}

with_each!(claude, codex, opencode);

impl Stage {
    async fn session_of(&self, id: &str) -> Value {
        let session = self.ground.row(id).await["session_id"].as_str().unwrap().to_owned();
        self.ground.admin.get(&format!("/sessions/{session}")).await.expect(200)
    }

    /// Says something to a session that has no sandbox; gives the one that it gets.
    async fn say(&self, session: &Value, content: &str) -> String {
        let path = format!("/sessions/{}", session["id"].as_str().unwrap());
        self.ground.admin.post(&format!("{path}/messages"), json!({ "content": content })).await.expect(201);
        let row = self.ground.admin.get(&path).await.expect(200);
        let id = row["sandbox_id"].as_str().unwrap_or_else(|| panic!("no new sandbox: {row}")).to_owned();
        self.ground.remember(&id);
        id
    }

    /// Another sandbox for a session, without a word about its agent.
    async fn go_on(&self, session: &Value, prompt: &str) -> String {
        let request =
            json!({ "provider": "local", "session_id": session["id"], "prompt": prompt, "approvals": "full" });
        let made = self.ground.admin.post("/sandboxes", request).await.expect(201);
        let id = made["id"].as_str().unwrap().to_owned();
        self.ground.remember(&id);
        id
    }

    /// The texts of those requests that mention `word`.
    fn asked_about(&self, word: &str) -> Vec<String> {
        let requests = self.model.requests();
        requests.iter().filter(|request| request.mentions(word)).map(|request| request.body.to_string()).collect()
    }

    fn assert_remembered(&self, word: &str, what: &[&str]) {
        let asked = self.asked_about(word);
        assert!(!asked.is_empty(), "the model was never asked about {word}");
        for said in what {
            assert!(asked.iter().any(|text| text.contains(said)), "{said} is forgotten: {asked:#?}");
        }
    }

    async fn completes(&self, id: &str) {
        self.ground.event(id, |event| event["type"] == "agent.completed" || event["type"] == "sandbox.failed").await;
        let events = self.ground.admin.all_events(id).await;
        assert_eq!(told(&events, "agent.completed").len(), 1, "{events:#?}");
    }

    async fn remove(&self, id: &str) {
        self.ground.admin.delete(&format!("/sandboxes/{id}")).await;
        self.ground.gone(id).await;
    }
}

async fn remembers(agent: &str) {
    let Some(stage) = Stage::set(agent, "a session that goes on", SCRIPTS).await else { return };
    let first = stage.make("remember PINEAPPLE #script:first", json!({ "approvals": "full", "end": "keep" })).await;
    stage.completes(&first).await;
    let saved = stage.ground.event(&first, |event| event["type"] == "agent.transcript").await;
    stage.remove(&first).await;
    let session = stage.session_of(&first).await;
    assert_eq!((&session["native_id"], &session["sandbox_id"]), (&saved["data"]["native_id"], &Value::Null));
    assert!(session["transcript"].is_string(), "{session}");

    // Both forms are there, though the sandbox is not.
    let portable = stage.ground.admin.get(&format!("/sandboxes/{first}/transcript")).await.expect(200);
    assert_eq!((&portable["format"], &portable["version"]), (&json!("atoll-transcript"), &json!(1)), "{portable}");
    let of = |kind: &str| {
        let entries = portable["entries"].as_array().unwrap().iter();
        entries.filter(|entry| entry["kind"] == kind).map(|entry| entry["data"].to_string()).collect::<String>()
    };
    assert!(of("user").contains(SAID[0]) && of("tool_result").contains(SAID[1]), "{portable:#}");
    assert!(of("assistant").contains("PAPAYA"), "{portable:#}");
    let url = format!("/sandboxes/{first}/transcript?form=native");
    let native = stage.ground.admin.request(reqwest::Method::GET, &url).send().await.unwrap();
    assert_eq!(native.status(), 200);
    let native = native.text().await.unwrap();
    assert!(SAID.iter().all(|said| native.contains(said)), "{native}");

    let second = stage.say(&session, "what was it? #script:again").await;
    stage.completes(&second).await;
    stage.assert_remembered("#script:again", &SAID);
    stage.assert_remembered("#script:again", &["PAPAYA"]);
    let events = stage.ground.admin.all_events(&second).await;
    assert_eq!(told(&events, "session.resumed")[0]["transcript"], session["transcript"], "{events:#?}");
    assert_eq!(told(&events, "agent.started")[0]["native_id"], session["native_id"], "{events:#?}");
    // The third remembers what the second heard.
    stage.ground.event(&second, |event| event["type"] == "agent.transcript").await;
    stage.remove(&second).await;
    let third = stage.go_on(&session, "and then? #script:apart").await;
    stage.completes(&third).await;
    stage.assert_remembered("#script:apart", &[SAID[0], SAID[1], "I went on"]);
    stage.leave().await;
}

async fn remembers_death(agent: &str) {
    let Some(stage) = Stage::set(agent, "a session whose agent was killed", SCRIPTS).await else { return };
    let first = stage.make("remember PINEAPPLE #script:slow", json!({ "approvals": "full", "end": "keep" })).await;
    let sleeps = |event: &Value| event["type"] == "agent.tool_use" && event["data"].to_string().contains("tail -f");
    stage.ground.event(&first, sleeps).await;
    // What an agent says is not yet what it has written down, and only that can outlive it.
    for said in SAID {
        let written = format!("for n in $(seq 600); do grep -rqsaF '{said}' ~ && exit; sleep 0.1; done; exit 1");
        stage.ground.shell(&first, &written).await.well();
    }
    stage.kill_agent(&first).await;
    let row = stage.ground.ended(&first).await;
    assert_eq!(row["state"], "failed", "{row}");
    let events = stage.ground.admin.all_events(&first).await;
    let at = |kind: &str| events.iter().position(|event| event["type"] == kind);
    assert!(at("agent.transcript") < at("agent.failed") && at("agent.transcript").is_some(), "{events:#?}");
    let session = stage.session_of(&first).await;
    let second = stage.go_on(&session, "what was it? #script:again").await;
    stage.completes(&second).await;
    stage.assert_remembered("#script:again", &SAID);
    let row = stage.ground.row(&second).await;
    assert_eq!(row["agent"], agent, "it has the agent that it had: {row}");
    stage.leave().await;
}

async fn forks(agent: &str) {
    let Some(stage) = Stage::set(agent, "a fork of a session", SCRIPTS).await else { return };
    let first = stage.make("remember PINEAPPLE #script:first", json!({ "approvals": "full" })).await;
    stage.ground.ended(&first).await;
    let origin = stage.session_of(&first).await;
    assert!(origin["transcript"].is_string(), "it was saved at the end: {origin}");
    let path = format!("/sessions/{}/fork", origin["id"].as_str().unwrap());
    let fork = stage.ground.admin.post(&path, json!({})).await.expect(201);
    assert_eq!((&fork["forked_from"], &fork["transcript"]), (&origin["id"], &origin["transcript"]));
    let apart = stage.say(&fork, "another way, BANANA #script:apart").await;
    stage.completes(&apart).await;
    stage.assert_remembered("BANANA", &SAID);
    stage.ground.ended(&apart).await;
    let after = stage.session_of(&first).await;
    assert_eq!((&after["transcript"], &after["native_id"]), (&origin["transcript"], &origin["native_id"]));
    assert_ne!(stage.session_of(&apart).await["transcript"], origin["transcript"], "the fork has its own");
    let again = stage.say(&origin, "go on #script:again").await;
    stage.completes(&again).await;
    stage.assert_remembered("#script:again", &SAID);
    let asked = stage.asked_about("#script:again");
    assert!(asked.iter().all(|text| !text.contains("BANANA")), "it heard what was said to its fork: {asked:#?}");
    stage.leave().await;
}

/// It can't, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gemini_begins_anew_and_it_is_told() {
    let Some(stage) = Stage::set("gemini", "a session that can't go on", SCRIPTS).await else { return };
    let first = stage.make("remember PINEAPPLE #script:first", json!({ "approvals": "full" })).await;
    stage.ground.ended(&first).await;
    let session = stage.session_of(&first).await;
    assert!(session["native_id"].is_string() && session["transcript"].is_null(), "{session}");
    stage.ground.admin.get(&format!("/sandboxes/{first}/transcript?form=native")).await.refused(404, "not_found");
    let second = stage.say(&session, "what was it? #script:again").await;
    stage.completes(&second).await;
    let events = stage.ground.admin.all_events(&second).await;
    let told = told(&events, "agent.system_message");
    assert_eq!(told[0]["subtype"], "resume_failed", "{events:#?}");
    assert!(told[0]["text"].as_str().unwrap().contains("can't go on with an earlier conversation"), "{told:?}");
    assert!(stage.asked_about("#script:again").iter().all(|text| !text.contains("PINEAPPLE")));
    stage.leave().await;
}
