//! Sessions outlive their sandboxes: the next sandbox gets the agent's transcript, and the agent remembers. The second
//! sandbox's requests to the model must contain the texts of the first one.

use super::agent_fixture::AgentFixture;
use atoll_tests::local::event_data;
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

/// The user's message and the output of the tool.
const REMEMBERED_TEXTS: [&str; 2] = ["remember PINEAPPLE", "the-result-is-KIWI"];

macro_rules! test_each_agent {
    (#[$variation:meta] $($agent:ident),+) => {
        $(mod $agent {
            const AGENT: &str = stringify!($agent);

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[$variation]
            async fn remembers_the_conversation_in_a_new_sandbox() {
                super::remembers_conversation(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[$variation]
            async fn remembers_the_conversation_after_a_kill() {
                super::remembers_after_kill(AGENT).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            #[$variation]
            async fn a_fork_remembers_and_does_not_change_its_origin() {
                super::fork_remembers(AGENT).await;
            }
        })+
    };
}

test_each_agent!(
    #[cfg(all())]
    claude,
    codex
);
test_each_agent!(
    #[cfg_attr(not(feature = "soak"), ignore = "`make soak` runs it")]
    opencode
);

impl AgentFixture {
    async fn get_session(&self, id: &str) -> Value {
        let session = self.server.get_sandbox(id).await["session_id"].as_str().unwrap().to_owned();
        self.server.admin.get(&format!("/sessions/{session}")).await.expect_status(200)
    }

    /// Sends a message to a session without a sandbox, and returns the sandbox that the server creates.
    async fn send_to_session(&self, session: &Value, content: &str) -> String {
        let path = format!("/sessions/{}", session["id"].as_str().unwrap());
        self.server.admin.post(&format!("{path}/messages"), json!({ "content": content })).await.expect_status(201);
        let row = self.server.admin.get(&path).await.expect_status(200);
        let id = row["sandbox_id"].as_str().unwrap_or_else(|| panic!("no new sandbox: {row}")).to_owned();
        self.server.track_sandbox(&id);
        id
    }

    /// Creates another sandbox for a session, without naming the agent.
    async fn create_sandbox_for_session(&self, session: &Value, prompt: &str) -> String {
        let request =
            json!({ "provider": "local", "session_id": session["id"], "prompt": prompt, "approvals": "full" });
        let created = self.server.admin.post("/sandboxes", request).await.expect_status(201);
        let id = created["id"].as_str().unwrap().to_owned();
        self.server.track_sandbox(&id);
        id
    }

    /// The bodies of the requests that contain `word`.
    fn requests_mentioning(&self, word: &str) -> Vec<String> {
        let requests = self.model.requests();
        requests.iter().filter(|request| request.body_contains(word)).map(|request| request.body.to_string()).collect()
    }

    fn assert_remembered(&self, word: &str, texts: &[&str]) {
        let requests = self.requests_mentioning(word);
        assert!(!requests.is_empty(), "no request mentions {word}");
        for expected in texts {
            assert!(requests.iter().any(|text| text.contains(expected)), "{expected} is forgotten: {requests:#?}");
        }
    }

    async fn wait_until_completed(&self, id: &str) {
        self.server
            .wait_for_event(id, |event| event["type"] == "agent.completed" || event["type"] == "sandbox.failed")
            .await;
        let events = self.server.admin.all_events(id).await;
        assert_eq!(event_data(&events, "agent.completed").len(), 1, "{events:#?}");
    }

    async fn remove_sandbox(&self, id: &str) {
        self.server.admin.delete(&format!("/sandboxes/{id}")).await;
        self.server.wait_until_removed(id).await;
    }
}

async fn remembers_conversation(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "a session that goes on", SCRIPTS).await else { return };
    let first =
        fixture.create_sandbox("remember PINEAPPLE #script:first", json!({ "approvals": "full", "end": "keep" })).await;
    fixture.wait_until_completed(&first).await;
    let saved = fixture.server.wait_for_event(&first, |event| event["type"] == "agent.transcript").await;
    fixture.remove_sandbox(&first).await;
    let session = fixture.get_session(&first).await;
    assert_eq!((&session["native_id"], &session["sandbox_id"]), (&saved["data"]["native_id"], &Value::Null));
    assert!(session["transcript"].is_string(), "{session}");

    // Both forms of the transcript outlive the sandbox.
    let portable = fixture.server.admin.get(&format!("/sandboxes/{first}/transcript")).await.expect_status(200);
    assert_eq!((&portable["format"], &portable["version"]), (&json!("atoll-transcript"), &json!(1)), "{portable}");
    let entries_of_kind = |kind: &str| {
        let entries = portable["entries"].as_array().unwrap().iter();
        entries.filter(|entry| entry["kind"] == kind).map(|entry| entry["data"].to_string()).collect::<String>()
    };
    assert!(
        entries_of_kind("user").contains(REMEMBERED_TEXTS[0])
            && entries_of_kind("tool_result").contains(REMEMBERED_TEXTS[1]),
        "{portable:#}"
    );
    assert!(entries_of_kind("assistant").contains("PAPAYA"), "{portable:#}");
    let url = format!("/sandboxes/{first}/transcript?form=native");
    let native = fixture.server.admin.request(reqwest::Method::GET, &url).send().await.unwrap();
    assert_eq!(native.status(), 200);
    let native = native.text().await.unwrap();
    assert!(REMEMBERED_TEXTS.iter().all(|text| native.contains(text)), "{native}");

    let second = fixture.send_to_session(&session, "what was it? #script:again").await;
    fixture.wait_until_completed(&second).await;
    fixture.assert_remembered("#script:again", &REMEMBERED_TEXTS);
    fixture.assert_remembered("#script:again", &["PAPAYA"]);
    let events = fixture.server.admin.all_events(&second).await;
    assert_eq!(event_data(&events, "session.resumed")[0]["transcript"], session["transcript"], "{events:#?}");
    assert_eq!(event_data(&events, "agent.started")[0]["native_id"], session["native_id"], "{events:#?}");
    // The third sandbox remembers the second one's conversation.
    fixture.server.wait_for_event(&second, |event| event["type"] == "agent.transcript").await;
    fixture.remove_sandbox(&second).await;
    let third = fixture.create_sandbox_for_session(&session, "and then? #script:apart").await;
    fixture.wait_until_completed(&third).await;
    fixture.assert_remembered("#script:apart", &[REMEMBERED_TEXTS[0], REMEMBERED_TEXTS[1], "I went on"]);
    fixture.stop_and_check().await;
}

async fn remembers_after_kill(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "a session whose agent was killed", SCRIPTS).await else {
        return;
    };
    let first =
        fixture.create_sandbox("remember PINEAPPLE #script:slow", json!({ "approvals": "full", "end": "keep" })).await;
    let is_long_command =
        |event: &Value| event["type"] == "agent.tool_use" && event["data"].to_string().contains("tail -f");
    fixture.server.wait_for_event(&first, is_long_command).await;
    // Only what the agent has written to its files can outlive it: wait for that.
    for text in REMEMBERED_TEXTS {
        let wait_until_written =
            format!("for n in $(seq 600); do grep -rqsaF '{text}' ~ && exit; sleep 0.1; done; exit 1");
        fixture.server.run_shell(&first, &wait_until_written).await.expect_success();
    }
    fixture.kill_agent(&first).await;
    let row = fixture.server.wait_until_ended(&first).await;
    assert_eq!(row["state"], "failed", "{row}");
    let events = fixture.server.admin.all_events(&first).await;
    let position_of = |kind: &str| events.iter().position(|event| event["type"] == kind);
    assert!(
        position_of("agent.transcript") < position_of("agent.failed") && position_of("agent.transcript").is_some(),
        "{events:#?}"
    );
    let session = fixture.get_session(&first).await;
    let second = fixture.create_sandbox_for_session(&session, "what was it? #script:again").await;
    fixture.wait_until_completed(&second).await;
    fixture.assert_remembered("#script:again", &REMEMBERED_TEXTS);
    let row = fixture.server.get_sandbox(&second).await;
    assert_eq!(row["agent"], agent, "the session must keep its agent: {row}");
    fixture.stop_and_check().await;
}

async fn fork_remembers(agent: &str) {
    let Some(fixture) = AgentFixture::start(agent, "a fork of a session", SCRIPTS).await else { return };
    let first = fixture.create_sandbox("remember PINEAPPLE #script:first", json!({ "approvals": "full" })).await;
    fixture.server.wait_until_ended(&first).await;
    let origin = fixture.get_session(&first).await;
    assert!(origin["transcript"].is_string(), "the transcript must be saved at the end: {origin}");
    let path = format!("/sessions/{}/fork", origin["id"].as_str().unwrap());
    let fork = fixture.server.admin.post(&path, json!({})).await.expect_status(201);
    assert_eq!((&fork["forked_from"], &fork["transcript"]), (&origin["id"], &origin["transcript"]));
    let apart = fixture.send_to_session(&fork, "another way, BANANA #script:apart").await;
    fixture.wait_until_completed(&apart).await;
    fixture.assert_remembered("BANANA", &REMEMBERED_TEXTS);
    fixture.server.wait_until_ended(&apart).await;
    let after = fixture.get_session(&first).await;
    assert_eq!((&after["transcript"], &after["native_id"]), (&origin["transcript"], &origin["native_id"]));
    assert_ne!(fixture.get_session(&apart).await["transcript"], origin["transcript"], "the fork must have its own");
    let again = fixture.send_to_session(&origin, "go on #script:again").await;
    fixture.wait_until_completed(&again).await;
    fixture.assert_remembered("#script:again", &REMEMBERED_TEXTS);
    let requests = fixture.requests_mentioning("#script:again");
    assert!(
        requests.iter().all(|text| !text.contains("BANANA")),
        "the origin received a message of its fork: {requests:#?}"
    );
    fixture.stop_and_check().await;
}

/// Gemini cannot resume a conversation, and the log reports it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gemini_starts_a_new_conversation_and_reports_it() {
    let Some(fixture) = AgentFixture::start("gemini", "a session that cannot go on", SCRIPTS).await else { return };
    let first = fixture.create_sandbox("remember PINEAPPLE #script:first", json!({ "approvals": "full" })).await;
    fixture.server.wait_until_ended(&first).await;
    let session = fixture.get_session(&first).await;
    assert!(session["native_id"].is_string() && session["transcript"].is_null(), "{session}");
    fixture
        .server
        .admin
        .get(&format!("/sandboxes/{first}/transcript?form=native"))
        .await
        .expect_problem(404, "not_found");
    let second = fixture.send_to_session(&session, "what was it? #script:again").await;
    fixture.wait_until_completed(&second).await;
    let events = fixture.server.admin.all_events(&second).await;
    let notices = event_data(&events, "agent.system_message");
    assert_eq!(notices[0]["subtype"], "resume_failed", "{events:#?}");
    assert!(notices[0]["text"].as_str().unwrap().contains("cannot resume a conversation"), "{notices:?}");
    assert!(fixture.requests_mentioning("#script:again").iter().all(|text| !text.contains("PINEAPPLE")));
    fixture.stop_and_check().await;
}
