//! Transcripts that a session carries from one sandbox to the next.

use atoll_tests::actor::{Actor, ExternalSandbox};
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use reqwest::Method;
use serde_json::{Value, json};

on_both_databases!(
    a_resumed_session_gets_the_newest_transcript,
    invalid_and_stale_transcripts_are_ignored,
    a_different_agent_starts_without_the_transcript,
);

/// Transcript texts with their SHA-256 hashes.
const FIRST_TRANSCRIPT: (&str, &str) = ("first\n", "b640e840b19d378660b32fb51ae18d67dccb4a8596a29e7bd72c1b2ae5928f41");
const SECOND_TRANSCRIPT: (&str, &str) =
    ("second\n", "480c2336b410f1ad5f8bf1b28944490255804b65350c527787e74ebdd511e3a4");
const THIRD_TRANSCRIPT: (&str, &str) = ("third\n", "5eef8098ed6ec0a16249fc7c12422027fc9fd75b16130cc9382cf09102014796");

async fn put_transcript(worker: &ManualWorker, id: &str, (text, hash): (&'static str, &str)) {
    let path = format!("/sandboxes/{id}/blobs/{hash}");
    worker.actor.send(worker.actor.request(Method::PUT, &path).body(text)).await.expect_status(200);
}

fn transcript_event(key: i64, native_id: &str, (_, hash): (&str, &str)) -> Value {
    build_event(key, "agent.transcript", json!({ "native_id": native_id, "blob": hash }))
}

async fn get_session(admin: &Actor, id: &str) -> Value {
    admin.get(&format!("/sessions/{id}")).await.expect_status(200)
}

/// Starts the worker of a new sandbox. Returns the worker, the sandbox's id and the worker's start instructions.
async fn start_worker(admin: &Actor, sandbox: &Value) -> (ManualWorker, String, Value) {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let external = ExternalSandbox {
        id: text(&sandbox["id"]),
        session: text(&sandbox["session_id"]),
        token: text(&sandbox["worker"]["token"]),
    };
    let worker = ManualWorker::new(admin, &external);
    let start = worker.send_heartbeat("starting").await.expect_status(200)["start"].clone();
    (worker, external.id, start)
}

async fn a_resumed_session_gets_the_newest_transcript(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let created = admin.post("/sandboxes", json!({ "provider": "external", "agent": "mine" })).await.expect_status(201);
    let (worker, first, start) = start_worker(&admin, &created).await;
    assert_eq!(start["resume"], Value::Null);
    let id = created["session_id"].as_str().unwrap();
    put_transcript(&worker, &first, FIRST_TRANSCRIPT).await;
    let started = build_event(1, "agent.started", json!({ "native_id": "talk-1" }));
    worker.send_batch(vec![started, transcript_event(2, "talk-1", FIRST_TRANSCRIPT)]).await.expect_status(200);
    let row = get_session(&admin, id).await;
    assert_eq!((&row["native_id"], &row["transcript"]), (&json!("talk-1"), &json!(FIRST_TRANSCRIPT.1)));
    put_transcript(&worker, &first, SECOND_TRANSCRIPT).await;
    worker.send_batch(vec![transcript_event(3, "talk-1", SECOND_TRANSCRIPT)]).await.expect_status(200);
    assert_eq!(get_session(&admin, id).await["transcript"], SECOND_TRANSCRIPT.1);
    admin.get(&format!("/sandboxes/{first}/blobs/{}", FIRST_TRANSCRIPT.1)).await.expect_problem(404, "not_found");
    let native = format!("/sandboxes/{first}/transcript?form=native");
    assert_eq!(admin.get(&native).await.body, SECOND_TRANSCRIPT.0);
    // A fork keeps this transcript when the original session continues.
    let fork = admin.post(&format!("/sessions/{id}/fork"), json!({})).await.expect_status(201);
    assert_eq!((&fork["native_id"], &fork["transcript"]), (&json!("talk-1"), &json!(SECOND_TRANSCRIPT.1)));
    put_transcript(&worker, &first, THIRD_TRANSCRIPT).await;
    worker.send_batch(vec![transcript_event(4, "talk-1", THIRD_TRANSCRIPT)]).await.expect_status(200);
    let portable = admin.get(&format!("/sandboxes/{first}/transcript")).await.expect_status(200);
    assert_eq!(
        (&portable["format"], &portable["entries"][0]["kind"]),
        (&json!("atoll-transcript"), &json!("turn_begins"))
    );

    admin.post(&format!("/sandboxes/{first}/stop"), json!({ "results": "discard" })).await.expect_status(200);
    // Garbage collection removes the ended sandbox's events, but not the session's transcript.
    admin.post("/gc", json!({ "all": true })).await.expect_status(200);
    let resumed = admin.post(&format!("/sessions/{id}/resume"), json!({})).await.expect_status(201);
    let (worker, second, start) = start_worker(&admin, &resumed).await;
    assert_eq!(start["resume"], json!({ "native_id": "talk-1", "transcript": THIRD_TRANSCRIPT.1 }));
    assert_eq!(
        worker.actor.get(&format!("/sandboxes/{second}/blobs/{}", THIRD_TRANSCRIPT.1)).await.body,
        THIRD_TRANSCRIPT.0
    );
    assert_eq!(admin.get(&format!("/sandboxes/{second}/transcript?form=native")).await.body, THIRD_TRANSCRIPT.0);
    let path = format!("/sessions/{}/resume", fork["id"].as_str().unwrap());
    let resumed = admin.post(&path, json!({})).await.expect_status(201);
    let (worker, forked, start) = start_worker(&admin, &resumed).await;
    assert_eq!(start["resume"], json!({ "native_id": "talk-1", "transcript": SECOND_TRANSCRIPT.1 }));
    assert_eq!(
        worker.actor.get(&format!("/sandboxes/{forked}/blobs/{}", SECOND_TRANSCRIPT.1)).await.body,
        SECOND_TRANSCRIPT.0
    );
    server.stop().await;
}

async fn invalid_and_stale_transcripts_are_ignored(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let created = admin.post("/sandboxes", json!({ "provider": "external", "agent": "mine" })).await.expect_status(201);
    let (worker, id, _) = start_worker(&admin, &created).await;
    let native = format!("/sandboxes/{id}/transcript?form=native");
    admin.get(&native).await.expect_problem(404, "not_found");
    put_transcript(&worker, &id, FIRST_TRANSCRIPT).await;
    let events = vec![
        transcript_event(1, "talk-1", SECOND_TRANSCRIPT),
        transcript_event(2, "../../etc", FIRST_TRANSCRIPT),
        build_event(3, "agent.transcript", json!({ "native_id": 7 })),
        build_event(4, "agent.started", json!({ "native_id": "-o" })),
    ];
    worker.send_batch(events).await.expect_status(200);
    let row = get_session(&admin, created["session_id"].as_str().unwrap()).await;
    assert_eq!((&row["native_id"], &row["transcript"]), (&Value::Null, &Value::Null), "{row}");
    // The session ignores a transcript from a sandbox that is not its newest.
    let session_id = created["session_id"].as_str().unwrap();
    admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "discard" })).await.expect_status(200);
    admin.post(&format!("/sessions/{session_id}/resume"), json!({})).await.expect_status(201);
    worker.send_batch(vec![transcript_event(5, "talk-1", FIRST_TRANSCRIPT)]).await.expect_status(200);
    assert_eq!(get_session(&admin, session_id).await["transcript"], Value::Null);
    server.stop().await;
}

async fn a_different_agent_starts_without_the_transcript(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let created = admin.post("/sandboxes", json!({ "provider": "external", "agent": "mine" })).await.expect_status(201);
    let (worker, id, _) = start_worker(&admin, &created).await;
    put_transcript(&worker, &id, FIRST_TRANSCRIPT).await;
    worker.send_batch(vec![transcript_event(1, "talk-1", FIRST_TRANSCRIPT)]).await.expect_status(200);
    admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "discard" })).await.expect_status(200);
    let continue_session = |settings: Value| {
        let mut body = json!({ "provider": "external", "session_id": created["session_id"] });
        body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        body
    };
    let same = admin.post("/sandboxes", continue_session(json!({}))).await.expect_status(201);
    assert_eq!(same["agent"], "mine", "the session's agent takes precedence over the default");
    let (_, id, start) = start_worker(&admin, &same).await;
    assert_eq!(start["resume"]["transcript"], FIRST_TRANSCRIPT.1);
    admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "discard" })).await.expect_status(200);
    let other = admin.post("/sandboxes", continue_session(json!({ "agent": "yours" }))).await.expect_status(201);
    let (_, _, start) = start_worker(&admin, &other).await;
    assert_eq!(start["resume"], Value::Null);
    server.stop().await;
}
