//! Delivery of login files to workers.

use atoll_tests::actor::Actor;
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};

on_both_databases!(
    a_worker_gets_the_current_login_files,
    login_files_are_limited_and_have_distinct_paths,
    a_restarted_server_redacts_every_token_of_a_login_file,
);

const LOGIN_PATH: &str = ".codex/auth.json";

fn login_json(token: &str) -> String {
    json!({ "tokens": { "access_token": format!("access-{token}"), "refresh_token": format!("renewing-{token}") } })
        .to_string()
}

async fn store_login(admin: &Actor, name: &str, value: &str) -> Value {
    let answer = admin.put(&format!("/secrets/{name}"), json!({ "value": value, "expose_file": LOGIN_PATH })).await;
    assert!(answer.status.is_success(), "{}", answer.body);
    answer.body
}

/// Requests the login files that the worker has to write, and their version.
async fn fetch_login_files(worker: &ManualWorker, known: Option<&str>) -> (Vec<(String, Value)>, String) {
    let body = json!({ "stream": worker.stream, "known": known });
    let answer = worker.actor.post(&format!("/sandboxes/{}/logins", worker.sandbox_id), body).await.expect_status(200);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let file = |file: &Value| (text(&file["path"]), serde_json::from_str(&text(&file["text"])).unwrap());
    (answer["files"].as_array().unwrap().iter().map(file).collect(), text(&answer["version"]))
}

async fn list_exposures(admin: &Actor, id: &str) -> Vec<Value> {
    let events = admin.all_events(id).await;
    let exposed = events.into_iter().filter(|event| event["type"] == "secrets.exposed");
    exposed.map(|event| event["data"]["secrets"].clone()).collect()
}

fn login_without_refresh(token: &str) -> Value {
    json!({ "tokens": { "access_token": format!("access-{token}"), "refresh_token": "" } })
}

async fn a_worker_gets_the_current_login_files(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let stored = store_login(&admin, "LOGIN", &login_json("one")).await;
    assert_eq!(
        (&stored["exposed"], &stored["expose"], &stored["expose_file"]),
        (&json!(true), &Value::Null, &json!(LOGIN_PATH))
    );
    admin.put("/secrets/LATER", json!({ "value": "{\"key\": \"not-yet-a-file\"}" })).await.expect_status(201);
    let sandbox =
        admin.create_external_sandbox(json!({ "secrets": ["LOGIN", "LATER"], "prompt": "go", "agent": "mine" })).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    let started = worker.send_heartbeat("starting").await.expect_status(200);
    assert!(
        !started.to_string().contains("access-one"),
        "the heartbeat response must not contain login files: {started}"
    );
    let row = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    assert_eq!(row["exposed_secrets"], json!(["LOGIN"]));

    let (files, version) = fetch_login_files(&worker, None).await;
    assert_eq!(files, [(LOGIN_PATH.to_owned(), login_without_refresh("one"))]);
    // A repeated request returns the same version and adds no event.
    assert_eq!(fetch_login_files(&worker, Some(&version)).await, (files, version.clone()));
    assert_eq!(list_exposures(&admin, &sandbox.id).await, [json!([{ "name": "LOGIN", "file": LOGIN_PATH }])]);
    store_login(&admin, "LOGIN", &login_json("two")).await;
    let (files, changed) = fetch_login_files(&worker, Some(&version)).await;
    assert_eq!(files, [(LOGIN_PATH.to_owned(), login_without_refresh("two"))]);
    assert_ne!(version, changed);
    // A secret that becomes a login file later counts as exposed from then on.
    let body = json!({ "value": "{\"key\": \"now-it-is-one\"}", "expose_file": "b" });
    admin.put("/secrets/LATER", body).await.expect_status(200);
    let (files, both) = fetch_login_files(&worker, Some(&changed)).await;
    assert_eq!(files.len(), 2);
    let row = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    assert_eq!(row["exposed_secrets"], json!(["LATER", "LOGIN"]));
    admin.delete("/secrets/LOGIN").await.expect_status(200);
    let (files, _) = fetch_login_files(&worker, Some(&both)).await;
    assert_eq!(files.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(list_exposures(&admin, &sandbox.id).await.len(), 4);

    // The server redacts every token that a file ever contained, including refresh tokens.
    let tokens = ["access-one", "renewing-one", "access-two", "renewing-two", "now-it-is-one"];
    let messages =
        tokens.iter().zip(1..).map(|(token, key)| build_event(key, "agent.message", json!({ "text": token })));
    worker.send_batch(messages.collect()).await.expect_status(200);
    let events = admin.all_events(&sandbox.id).await;
    let texts: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "agent.message").map(|event| &event["data"]["text"]).collect();
    assert_eq!(texts, [&json!("[redacted]"); 5]);
    // Only the sandbox's newest worker gets login files.
    let path = format!("/sandboxes/{}/logins", sandbox.id);
    admin.post(&path, json!({ "stream": worker.stream })).await.expect_problem(403, "forbidden");
    let next = worker.with_new_stream();
    next.send_heartbeat("starting").await.expect_status(200);
    worker.actor.post(&path, json!({ "stream": worker.stream })).await.expect_problem(409, "stream_fenced");
    server.stop().await;
}

async fn login_files_are_limited_and_have_distinct_paths(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let names: Vec<String> = (0..=16).map(|n| format!("LOGIN_{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        let body = json!({ "value": "{}", "expose_file": format!("login-{n}") });
        admin.put(&format!("/secrets/{name}"), body).await.expect_status(201);
    }
    let create = async |secrets: &[String]| {
        admin.post("/sandboxes", json!({ "provider": "external", "agent": "mine", "secrets": secrets })).await
    };
    let refused = create(&names).await.expect_problem(422, "invalid");
    assert!(refused["detail"].as_str().unwrap().contains("at most 16 login files"), "{refused}");
    create(&names[1..]).await.expect_status(201);
    admin.put("/secrets/LOGIN_1", json!({ "value": "{}", "expose_file": "login-0" })).await.expect_status(200);
    let refused = create(&names[..2]).await.expect_problem(422, "invalid");
    assert!(refused["detail"].as_str().unwrap().contains("both the file `~/login-0`"), "{refused}");
    server.stop().await;
}

async fn a_restarted_server_redacts_every_token_of_a_login_file(kind: DatabaseKind) {
    let mut server = TestServer::start(kind).await;
    store_login(&server.admin(), "LOGIN", &login_json("before")).await;
    server.restart().await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({ "prompt": "go", "agent": "mine" })).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("starting").await.expect_status(200);
    let text = json!({ "text": "renewing-before, access-before" });
    worker.send_batch(vec![build_event(1, "agent.message", text)]).await.expect_status(200);
    let events = admin.all_events(&sandbox.id).await;
    let message = events.iter().find(|event| event["type"] == "agent.message").unwrap();
    assert_eq!(message["data"]["text"], "[redacted], [redacted]");
    server.stop().await;
}
