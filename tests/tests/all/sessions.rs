//! What is kept of a session between its sandboxes: which transcript is the newest, who gets it, and who does not.

use atoll_tests::actor::{Actor, External};
use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use atoll_tests::worker::{HandWorker, event};
use reqwest::Method;
use serde_json::{Value, json};

on_both_databases!(
    the_newest_transcript_goes_with_the_session,
    a_transcript_that_nobody_sent_counts_for_nothing,
    an_agent_that_is_another_begins_anew,
);

/// Texts with their hashes.
const FIRST: (&str, &str) = ("first\n", "b640e840b19d378660b32fb51ae18d67dccb4a8596a29e7bd72c1b2ae5928f41");
const SECOND: (&str, &str) = ("second\n", "480c2336b410f1ad5f8bf1b28944490255804b65350c527787e74ebdd511e3a4");
const THIRD: (&str, &str) = ("third\n", "5eef8098ed6ec0a16249fc7c12422027fc9fd75b16130cc9382cf09102014796");

async fn put(worker: &HandWorker, id: &str, (text, hash): (&'static str, &str)) {
    let path = format!("/sandboxes/{id}/blobs/{hash}");
    worker.actor.send(worker.actor.request(Method::PUT, &path).body(text)).await.expect(200);
}

fn saved(key: i64, native_id: &str, (_, hash): (&str, &str)) -> Value {
    event(key, "agent.transcript", json!({ "native_id": native_id, "blob": hash }))
}

async fn session(admin: &Actor, id: &str) -> Value {
    admin.get(&format!("/sessions/{id}")).await.expect(200)
}

/// A worker of a new sandbox, and what it was told to begin with.
async fn begun(admin: &Actor, made: &Value) -> (HandWorker, String, Value) {
    let said = |value: &Value| value.as_str().unwrap().to_owned();
    let external =
        External { id: said(&made["id"]), session: said(&made["session_id"]), token: said(&made["worker"]["token"]) };
    let worker = HandWorker::new(admin, &external);
    let start = worker.heartbeat("starting").await.expect(200)["start"].clone();
    (worker, external.id, start)
}

async fn the_newest_transcript_goes_with_the_session(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let made = admin.post("/sandboxes", json!({ "provider": "external", "agent": "mine" })).await.expect(201);
    let (worker, first, start) = begun(&admin, &made).await;
    assert_eq!(start["resume"], Value::Null);
    let id = made["session_id"].as_str().unwrap();
    put(&worker, &first, FIRST).await;
    let begins = event(1, "agent.started", json!({ "native_id": "talk-1" }));
    worker.batch(vec![begins, saved(2, "talk-1", FIRST)]).await.expect(200);
    let row = session(&admin, id).await;
    assert_eq!((&row["native_id"], &row["transcript"]), (&json!("talk-1"), &json!(FIRST.1)));
    put(&worker, &first, SECOND).await;
    worker.batch(vec![saved(3, "talk-1", SECOND)]).await.expect(200);
    assert_eq!(session(&admin, id).await["transcript"], SECOND.1);
    admin.get(&format!("/sandboxes/{first}/blobs/{}", FIRST.1)).await.refused(404, "not_found");
    let native = format!("/sandboxes/{first}/transcript?form=native");
    assert_eq!(admin.get(&native).await.body, SECOND.0);
    // A fork goes on from here, whatever becomes of this one.
    let fork = admin.post(&format!("/sessions/{id}/fork"), json!({})).await.expect(201);
    assert_eq!((&fork["native_id"], &fork["transcript"]), (&json!("talk-1"), &json!(SECOND.1)));
    put(&worker, &first, THIRD).await;
    worker.batch(vec![saved(4, "talk-1", THIRD)]).await.expect(200);
    let portable = admin.get(&format!("/sandboxes/{first}/transcript")).await.expect(200);
    assert_eq!(
        (&portable["format"], &portable["entries"][0]["kind"]),
        (&json!("atoll-transcript"), &json!("turn_begins"))
    );

    admin.post(&format!("/sandboxes/{first}/stop"), json!({ "results": "discard" })).await.expect(200);
    // Nobody reads the ended sandbox any more; what its session goes on with stays.
    admin.post("/gc", json!({ "all": true })).await.expect(200);
    let resumed = admin.post(&format!("/sessions/{id}/resume"), json!({})).await.expect(201);
    let (worker, second, start) = begun(&admin, &resumed).await;
    assert_eq!(start["resume"], json!({ "native_id": "talk-1", "transcript": THIRD.1 }));
    assert_eq!(worker.actor.get(&format!("/sandboxes/{second}/blobs/{}", THIRD.1)).await.body, THIRD.0);
    assert_eq!(admin.get(&format!("/sandboxes/{second}/transcript?form=native")).await.body, THIRD.0);
    let path = format!("/sessions/{}/resume", fork["id"].as_str().unwrap());
    let resumed = admin.post(&path, json!({})).await.expect(201);
    let (worker, forked, start) = begun(&admin, &resumed).await;
    assert_eq!(start["resume"], json!({ "native_id": "talk-1", "transcript": SECOND.1 }));
    assert_eq!(worker.actor.get(&format!("/sandboxes/{forked}/blobs/{}", SECOND.1)).await.body, SECOND.0);
    server.stop().await;
}

async fn a_transcript_that_nobody_sent_counts_for_nothing(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let made = admin.post("/sandboxes", json!({ "provider": "external", "agent": "mine" })).await.expect(201);
    let (worker, id, _) = begun(&admin, &made).await;
    let native = format!("/sandboxes/{id}/transcript?form=native");
    admin.get(&native).await.refused(404, "not_found");
    put(&worker, &id, FIRST).await;
    let events = vec![
        saved(1, "talk-1", SECOND),
        saved(2, "../../etc", FIRST),
        event(3, "agent.transcript", json!({ "native_id": 7 })),
        event(4, "agent.started", json!({ "native_id": "-o" })),
    ];
    worker.batch(events).await.expect(200);
    let row = session(&admin, made["session_id"].as_str().unwrap()).await;
    assert_eq!((&row["native_id"], &row["transcript"]), (&Value::Null, &Value::Null), "{row}");
    // What an older sandbox has to say is not the newest.
    let session_id = made["session_id"].as_str().unwrap();
    admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "discard" })).await.expect(200);
    admin.post(&format!("/sessions/{session_id}/resume"), json!({})).await.expect(201);
    worker.batch(vec![saved(5, "talk-1", FIRST)]).await.expect(200);
    assert_eq!(session(&admin, session_id).await["transcript"], Value::Null);
    server.stop().await;
}

async fn an_agent_that_is_another_begins_anew(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let made = admin.post("/sandboxes", json!({ "provider": "external", "agent": "mine" })).await.expect(201);
    let (worker, id, _) = begun(&admin, &made).await;
    put(&worker, &id, FIRST).await;
    worker.batch(vec![saved(1, "talk-1", FIRST)]).await.expect(200);
    admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "discard" })).await.expect(200);
    let go_on = |more: Value| {
        let mut body = json!({ "provider": "external", "session_id": made["session_id"] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let same = admin.post("/sandboxes", go_on(json!({}))).await.expect(201);
    assert_eq!(same["agent"], "mine", "as it was, though another might be the default");
    let (_, id, start) = begun(&admin, &same).await;
    assert_eq!(start["resume"]["transcript"], FIRST.1);
    admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "discard" })).await.expect(200);
    let other = admin.post("/sandboxes", go_on(json!({ "agent": "yours" }))).await.expect(201);
    let (_, _, start) = begun(&admin, &other).await;
    assert_eq!(start["resume"], Value::Null);
    server.stop().await;
}
