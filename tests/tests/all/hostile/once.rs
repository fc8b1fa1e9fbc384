//! The same write twice, and what must never come back out.

use super::refused;
use atoll_tests::actor::{Actor, Answer};
use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use atoll_tests::worker::{HandWorker, event};
use reqwest::Method;
use serde_json::{Value, json};

on_both_databases!(a_write_under_a_key_happens_once, many_at_once_make_one, secrets_stay_inside);

async fn keyed(actor: &Actor, path: &str, key: &str, body: Value) -> Answer {
    actor.send(actor.request(Method::POST, path).header("idempotency-key", key).json(&body)).await
}

async fn a_write_under_a_key_happens_once(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let body = json!({ "provider": "external", "prompt": "once" });
    let first = keyed(&admin, "/sandboxes", "k1", body.clone()).await.expect(201);
    assert!(first["worker"]["token"].is_string());
    let again = keyed(&admin, "/sandboxes", "k1", body.clone()).await.expect(201);
    assert_eq!((&again["worker"]["token"], &again["worker"]["replayed"]), (&Value::Null, &json!(true)));
    let mut shown = first.clone();
    shown["worker"]["token"] = Value::Null;
    shown["worker"]["replayed"] = json!(true);
    assert_eq!(again, shown, "the rest is as it was");
    refused(keyed(&admin, "/sandboxes", "k1", json!({ "title": "other" })).await, 422, "idempotency_mismatch");
    assert_eq!(admin.get("/sandboxes").await.expect(200)["items"].as_array().unwrap().len(), 1);

    // Per route and per principal: elsewhere and for others the key is free.
    let token =
        keyed(&admin, "/tokens", "k1", json!({ "name": "t", "kind": "service", "role": "member" })).await.expect(201);
    let replayed = keyed(&admin, "/tokens", "k1", json!({ "name": "t", "kind": "service", "role": "member" })).await;
    let replayed = replayed.expect(201);
    assert_eq!((&replayed["id"], &replayed["token"]), (&token["id"], &Value::Null));
    let service = admin.with_token(token["token"].as_str().unwrap());
    let other = keyed(&service, "/sandboxes", "k1", body).await.expect(201);
    assert_ne!(other["id"], first["id"]);

    // A session's message that makes a sandbox holds a token further inside.
    let (id, session) = (first["id"].as_str().unwrap(), first["session_id"].as_str().unwrap());
    admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "discard" })).await.expect(200);
    let path = format!("/sessions/{session}/messages");
    let sent = keyed(&admin, &path, "m", json!({ "content": "go on" })).await.expect(201);
    assert!(sent["sandbox"]["worker"]["token"].is_string());
    let again = keyed(&admin, &path, "m", json!({ "content": "go on" })).await.expect(201);
    assert_eq!((&again["id"], &again["sandbox"]["worker"]["token"]), (&sent["id"], &Value::Null));

    // What was refused has not used the key up.
    refused(keyed(&admin, "/users", "u", json!({ "name": "" })).await, 422, "invalid");
    keyed(&admin, "/users", "u", json!({ "name": "somebody" })).await.expect(201);
    for key in [String::new(), "x".repeat(201), "ä".into()] {
        refused(keyed(&admin, "/users", &key, json!({ "name": "x" })).await, 400, "bad_request");
    }
    server.stop().await;
}

async fn many_at_once_make_one(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let admin = admin.clone();
        asking.spawn(async move { keyed(&admin, "/sandboxes", "same", json!({ "provider": "external" })).await });
    }
    let answers = asking.join_all().await;
    let mut tokens = 0;
    for answer in &answers {
        // "In flight" is an answer too; whoever asks again gets the one sandbox.
        assert!([201, 409].contains(&answer.status.as_u16()), "{}", answer.body);
        tokens += usize::from(answer.body["worker"]["token"].is_string());
    }
    assert_eq!(tokens, 1, "one of them made it");
    let listed = admin.get("/sandboxes").await.expect(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    let id = &listed["items"][0]["id"];
    assert!(answers.iter().filter(|answer| answer.status == 201).all(|answer| answer.body["id"] == *id));
    server.stop().await;
}

async fn secrets_stay_inside(kind: Kind) {
    const KNOWN: &str = "known-secret-value-123";
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let settings = json!({ "env": { "API_KEY": "from-the-request" }, "prompt": format!("use {KNOWN}"),
        "title": format!("with {KNOWN}") });
    let sandbox = admin.external(settings).await;
    let path = |what: &str| format!("/sandboxes/{}{what}", sandbox.id);
    let defaults = json!({ "env": { "API_KEY": "from-the-project" } });
    let project = admin.post("/projects", json!({ "name": "p", "defaults": defaults })).await.expect(201);
    let project = format!("/projects/{}", project["id"].as_str().unwrap());

    // The names of variables are shown, their values only to the worker.
    let mut worker = HandWorker::new(&admin, &sandbox);
    let start = worker.heartbeat("starting").await.expect(200);
    assert_eq!(start["start"]["settings"]["env"]["API_KEY"], "from-the-request");
    // A known secret in a message is a mistake that the agent is spared.
    assert_eq!(start["start"]["prompt"]["content"], "use [redacted]");
    let shown = [
        admin.get(&path("")).await.expect(200),
        admin.get("/sandboxes").await.expect(200),
        worker.actor.get(&path("")).await.expect(200),
        admin.get("/projects").await.expect(200),
        admin.get(&project).await.expect(200),
        admin.patch(&project, json!({ "name": "q" })).await.expect(200),
        admin.get("/tokens").await.expect(200),
    ];
    for body in &shown {
        let text = body.to_string();
        assert!(!text.contains("from-the-"), "{text}");
        assert!(!text.contains(&sandbox.token) && !text.contains(admin.token.as_ref().unwrap()), "{text}");
    }
    assert_eq!(shown[0]["settings"]["env"], json!({ "API_KEY": "***" }));

    // Whoever writes them, known secrets and tokens don't reach the log.
    let (own, admins) = (sandbox.token.clone(), admin.token.clone().unwrap());
    let said = json!({ "text": format!("{KNOWN} {own} {admins}"), KNOWN: 1, "deep": [{ "x": KNOWN }] });
    worker.batch(vec![event(1, "agent.message", said)]).await.expect(200);
    worker.next_key = 2;
    let named = json!({ "key": 2, "type": "agent.message", "source": KNOWN, "at": "2026-01-01T00:00:00Z" });
    assert_eq!(worker.batch(vec![named]).await.expect(200)["rejected"][0]["key"], 2);
    let single = json!({ "event_type": "agent.message", "event_data": { "text": KNOWN } });
    worker.actor.post(&path("/events"), single).await.expect(200);
    let message = admin.post(&path("/messages"), json!({ "content": format!("it is {KNOWN}") })).await.expect(201);
    let one = path(&format!("/messages/{}", message["id"].as_str().unwrap()));
    admin.patch(&one, json!({ "content": format!("{KNOWN} or {own}") })).await.expect(200);
    worker.ack(&start["start"]["prompt"], "new_turn", None).await.expect(200);
    let leased = worker.lease(1).await.remove(0);
    let nack = json!({ "stream": worker.stream, "lease": leased["lease"], "handed": true, "reason": KNOWN });
    worker.actor.post(&format!("{one}/nack"), nack).await.expect(200);
    let title = json!({ "title": format!("again {KNOWN}") });
    admin.patch(&format!("/sessions/{}", sandbox.session), title).await.expect(200);
    worker.batch(vec![event(3, "agent.failed", json!({ "error": format!("no {KNOWN}") }))]).await.expect(200);

    let events = serde_json::to_string(&admin.all_events(&sandbox.id).await).unwrap();
    let trajectory = admin.get(&path("/trajectory?limit=1000")).await.expect(200).to_string();
    for text in [&events, &trajectory] {
        for secret in [KNOWN, own.as_str(), admins.as_str()] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
    assert!(events.matches("[redacted]").count() >= 8, "{events}");
    server.stop().await;
}
