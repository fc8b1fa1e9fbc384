//! Idempotency keys, and secrets that no response may contain.

use super::expect_safe_problem;
use atoll_tests::actor::{Actor, ApiResponse};
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use reqwest::Method;
use serde_json::{Value, json};

on_both_databases!(
    a_write_with_an_idempotency_key_runs_once,
    concurrent_requests_with_one_key_create_one_sandbox,
    responses_and_logs_contain_no_secrets
);

async fn post_with_key(actor: &Actor, path: &str, key: &str, body: Value) -> ApiResponse {
    actor.send(actor.request(Method::POST, path).header("idempotency-key", key).json(&body)).await
}

async fn a_write_with_an_idempotency_key_runs_once(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let body = json!({ "provider": "external", "prompt": "once" });
    let first = post_with_key(&admin, "/sandboxes", "k1", body.clone()).await.expect_status(201);
    assert!(first["worker"]["token"].is_string());
    let again = post_with_key(&admin, "/sandboxes", "k1", body.clone()).await.expect_status(201);
    assert_eq!((&again["worker"]["token"], &again["worker"]["replayed"]), (&Value::Null, &json!(true)));
    let mut expected = first.clone();
    expected["worker"]["token"] = Value::Null;
    expected["worker"]["replayed"] = json!(true);
    assert_eq!(again, expected);
    expect_safe_problem(
        post_with_key(&admin, "/sandboxes", "k1", json!({ "title": "other" })).await,
        422,
        "idempotency_mismatch",
    );
    assert_eq!(admin.get("/sandboxes").await.expect_status(200)["items"].as_array().unwrap().len(), 1);

    // Keys are scoped to a route and a principal.
    let token = post_with_key(&admin, "/tokens", "k1", json!({ "name": "t", "kind": "service", "role": "member" }))
        .await
        .expect_status(201);
    let replayed =
        post_with_key(&admin, "/tokens", "k1", json!({ "name": "t", "kind": "service", "role": "member" })).await;
    let replayed = replayed.expect_status(201);
    assert_eq!((&replayed["id"], &replayed["token"]), (&token["id"], &Value::Null));
    let service = admin.with_token(token["token"].as_str().unwrap());
    let other = post_with_key(&service, "/sandboxes", "k1", body).await.expect_status(201);
    assert_ne!(other["id"], first["id"]);

    // The response to a message that creates a sandbox contains a nested token.
    let (id, session) = (first["id"].as_str().unwrap(), first["session_id"].as_str().unwrap());
    admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "discard" })).await.expect_status(200);
    let path = format!("/sessions/{session}/messages");
    let sent = post_with_key(&admin, &path, "m", json!({ "content": "go on" })).await.expect_status(201);
    assert!(sent["sandbox"]["worker"]["token"].is_string());
    let again = post_with_key(&admin, &path, "m", json!({ "content": "go on" })).await.expect_status(201);
    assert_eq!((&again["id"], &again["sandbox"]["worker"]["token"]), (&sent["id"], &Value::Null));

    // A refused request does not use the key up.
    expect_safe_problem(post_with_key(&admin, "/users", "u", json!({ "name": "" })).await, 422, "invalid");
    post_with_key(&admin, "/users", "u", json!({ "name": "another" })).await.expect_status(201);
    for key in [String::new(), "x".repeat(201), "ä".into()] {
        expect_safe_problem(post_with_key(&admin, "/users", &key, json!({ "name": "x" })).await, 400, "bad_request");
    }
    server.stop().await;
}

async fn concurrent_requests_with_one_key_create_one_sandbox(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let admin = admin.clone();
        requests
            .spawn(async move { post_with_key(&admin, "/sandboxes", "same", json!({ "provider": "external" })).await });
    }
    let answers = requests.join_all().await;
    let mut tokens = 0;
    for answer in &answers {
        // A request that runs meanwhile may get 409. Its retry gets the one sandbox.
        assert!([201, 409].contains(&answer.status.as_u16()), "{}", answer.body);
        tokens += usize::from(answer.body["worker"]["token"].is_string());
    }
    assert_eq!(tokens, 1, "one request must create the sandbox");
    let listed = admin.get("/sandboxes").await.expect_status(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    let id = &listed["items"][0]["id"];
    assert!(answers.iter().filter(|answer| answer.status == 201).all(|answer| answer.body["id"] == *id));
    server.stop().await;
}

async fn responses_and_logs_contain_no_secrets(kind: DatabaseKind) {
    const KNOWN_SECRET: &str = "known-secret-value-123";
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let settings = json!({ "env": { "API_KEY": "from-the-request" }, "prompt": format!("use {KNOWN_SECRET}"),
        "title": format!("with {KNOWN_SECRET}") });
    let sandbox = admin.create_external_sandbox(settings).await;
    let path = |what: &str| format!("/sandboxes/{}{what}", sandbox.id);
    let defaults = json!({ "env": { "API_KEY": "from-the-project" } });
    let project = admin.post("/projects", json!({ "name": "p", "defaults": defaults })).await.expect_status(201);
    let project = format!("/projects/{}", project["id"].as_str().unwrap());

    // Only the worker gets the values of environment variables. Others see the names.
    let mut worker = ManualWorker::new(&admin, &sandbox);
    let start = worker.send_heartbeat("starting").await.expect_status(200);
    assert_eq!(start["start"]["settings"]["env"]["API_KEY"], "from-the-request");
    // The server redacts known secrets in messages.
    assert_eq!(start["start"]["prompt"]["content"], "use [redacted]");
    let responses = [
        admin.get(&path("")).await.expect_status(200),
        admin.get("/sandboxes").await.expect_status(200),
        worker.actor.get(&path("")).await.expect_status(200),
        admin.get("/projects").await.expect_status(200),
        admin.get(&project).await.expect_status(200),
        admin.patch(&project, json!({ "name": "q" })).await.expect_status(200),
        admin.get("/tokens").await.expect_status(200),
    ];
    for body in &responses {
        let text = body.to_string();
        assert!(!text.contains("from-the-"), "{text}");
        assert!(!text.contains(&sandbox.token) && !text.contains(admin.token.as_ref().unwrap()), "{text}");
    }
    assert_eq!(responses[0]["settings"]["env"], json!({ "API_KEY": "***" }));

    // Known secrets and tokens never reach the event log, no matter which principal writes them.
    let (worker_token, admin_token) = (sandbox.token.clone(), admin.token.clone().unwrap());
    let data = json!({ "text": format!("{KNOWN_SECRET} {worker_token} {admin_token}"), KNOWN_SECRET: 1,
        "deep": [{ "x": KNOWN_SECRET }] });
    worker.send_batch(vec![build_event(1, "agent.message", data)]).await.expect_status(200);
    worker.next_key = 2;
    let named = json!({ "key": 2, "type": "agent.message", "source": KNOWN_SECRET, "at": "2026-01-01T00:00:00Z" });
    assert_eq!(worker.send_batch(vec![named]).await.expect_status(200)["rejected"][0]["key"], 2);
    let single = json!({ "event_type": "agent.message", "event_data": { "text": KNOWN_SECRET } });
    worker.actor.post(&path("/events"), single).await.expect_status(200);
    let message =
        admin.post(&path("/messages"), json!({ "content": format!("it is {KNOWN_SECRET}") })).await.expect_status(201);
    let one = path(&format!("/messages/{}", message["id"].as_str().unwrap()));
    admin.patch(&one, json!({ "content": format!("{KNOWN_SECRET} or {worker_token}") })).await.expect_status(200);
    worker.ack_message(&start["start"]["prompt"], "new_turn", None).await.expect_status(200);
    let leased = worker.lease_messages(1).await.remove(0);
    let nack = json!({ "stream": worker.stream, "lease": leased["lease"], "handed": true, "reason": KNOWN_SECRET });
    worker.actor.post(&format!("{one}/nack"), nack).await.expect_status(200);
    let title = json!({ "title": format!("again {KNOWN_SECRET}") });
    admin.patch(&format!("/sessions/{}", sandbox.session), title).await.expect_status(200);
    worker
        .send_batch(vec![build_event(3, "agent.failed", json!({ "error": format!("no {KNOWN_SECRET}") }))])
        .await
        .expect_status(200);

    let events = serde_json::to_string(&admin.all_events(&sandbox.id).await).unwrap();
    let trajectory = admin.get(&path("/trajectory?limit=1000")).await.expect_status(200).to_string();
    for text in [&events, &trajectory] {
        for secret in [KNOWN_SECRET, worker_token.as_str(), admin_token.as_str()] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
    assert!(events.matches("[redacted]").count() >= 8, "{events}");
    server.stop().await;
}
