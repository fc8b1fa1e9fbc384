//! Login files as a worker gets them, on both databases.

use atoll_tests::actor::Actor;
use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use atoll_tests::worker::{HandWorker, event};
use serde_json::{Value, json};

on_both_databases!(
    a_worker_gets_the_files_as_they_are_now,
    files_are_counted_and_apart,
    each_token_of_a_file_is_known_after_a_restart,
);

const PATH: &str = ".codex/auth.json";

fn login(token: &str) -> String {
    json!({ "tokens": { "access_token": format!("access-{token}"), "refresh_token": format!("renewing-{token}") } })
        .to_string()
}

async fn set(admin: &Actor, name: &str, value: &str) -> Value {
    let answer = admin.put(&format!("/secrets/{name}"), json!({ "value": value, "expose_file": PATH })).await;
    assert!(answer.status.is_success(), "{}", answer.body);
    answer.body
}

/// What the worker is told to write, and the name of that.
async fn ask(worker: &HandWorker, known: Option<&str>) -> (Vec<(String, Value)>, String) {
    let body = json!({ "stream": worker.stream, "known": known });
    let answer = worker.actor.post(&format!("/sandboxes/{}/logins", worker.id), body).await.expect(200);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let file = |file: &Value| (text(&file["path"]), serde_json::from_str(&text(&file["text"])).unwrap());
    (answer["files"].as_array().unwrap().iter().map(file).collect(), text(&answer["version"]))
}

async fn exposures(admin: &Actor, id: &str) -> Vec<Value> {
    let events = admin.all_events(id).await;
    let exposed = events.into_iter().filter(|event| event["type"] == "secrets.exposed");
    exposed.map(|event| event["data"]["secrets"].clone()).collect()
}

fn blank(token: &str) -> Value {
    json!({ "tokens": { "access_token": format!("access-{token}"), "refresh_token": "" } })
}

async fn a_worker_gets_the_files_as_they_are_now(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let made = set(&admin, "LOGIN", &login("one")).await;
    assert_eq!((&made["exposed"], &made["expose"], &made["expose_file"]), (&json!(true), &Value::Null, &json!(PATH)));
    admin.put("/secrets/LATER", json!({ "value": "{\"key\": \"not-yet-a-file\"}" })).await.expect(201);
    let sandbox = admin.external(json!({ "secrets": ["LOGIN", "LATER"], "prompt": "go", "agent": "mine" })).await;
    let worker = HandWorker::new(&admin, &sandbox);
    let started = worker.heartbeat("starting").await.expect(200);
    assert!(!started.to_string().contains("access-one"), "it is asked for, not sent along: {started}");
    let row = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200);
    assert_eq!(row["exposed_secrets"], json!(["LOGIN"]));

    let (files, version) = ask(&worker, None).await;
    assert_eq!(files, [(PATH.to_owned(), blank("one"))]);
    // The same again is no news.
    assert_eq!(ask(&worker, Some(&version)).await, (files, version.clone()));
    assert_eq!(exposures(&admin, &sandbox.id).await, [json!([{ "name": "LOGIN", "file": PATH }])]);
    set(&admin, "LOGIN", &login("two")).await;
    let (files, changed) = ask(&worker, Some(&version)).await;
    assert_eq!(files, [(PATH.to_owned(), blank("two"))]);
    assert_ne!(version, changed);
    // One that becomes a file is one from then on, and marked.
    let body = json!({ "value": "{\"key\": \"now-it-is-one\"}", "expose_file": "b" });
    admin.put("/secrets/LATER", body).await.expect(200);
    let (files, both) = ask(&worker, Some(&changed)).await;
    assert_eq!(files.len(), 2);
    let row = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200);
    assert_eq!(row["exposed_secrets"], json!(["LATER", "LOGIN"]));
    admin.delete("/secrets/LOGIN").await.expect(200);
    let (files, _) = ask(&worker, Some(&both)).await;
    assert_eq!(files.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(exposures(&admin, &sandbox.id).await.len(), 4);

    // Every token that there ever was is taken out of the log, those that renew as well.
    let tokens = ["access-one", "renewing-one", "access-two", "renewing-two", "now-it-is-one"];
    let said = tokens.iter().zip(1..).map(|(token, key)| event(key, "agent.message", json!({ "text": token })));
    worker.batch(said.collect()).await.expect(200);
    let events = admin.all_events(&sandbox.id).await;
    let texts: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "agent.message").map(|event| &event["data"]["text"]).collect();
    assert_eq!(texts, [&json!("[redacted]"); 5]);
    // Only the sandbox's worker, and only the newest, gets them.
    let path = format!("/sandboxes/{}/logins", sandbox.id);
    admin.post(&path, json!({ "stream": worker.stream })).await.refused(403, "forbidden");
    let next = worker.restarted();
    next.heartbeat("starting").await.expect(200);
    worker.actor.post(&path, json!({ "stream": worker.stream })).await.refused(409, "stream_fenced");
    server.stop().await;
}

async fn files_are_counted_and_apart(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let names: Vec<String> = (0..=16).map(|n| format!("LOGIN_{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        let body = json!({ "value": "{}", "expose_file": format!("login-{n}") });
        admin.put(&format!("/secrets/{name}"), body).await.expect(201);
    }
    let make = async |secrets: &[String]| {
        admin.post("/sandboxes", json!({ "provider": "external", "agent": "mine", "secrets": secrets })).await
    };
    let refused = make(&names).await.refused(422, "invalid");
    assert!(refused["detail"].as_str().unwrap().contains("at most 16 login files"), "{refused}");
    make(&names[1..]).await.expect(201);
    admin.put("/secrets/LOGIN_1", json!({ "value": "{}", "expose_file": "login-0" })).await.expect(200);
    let refused = make(&names[..2]).await.refused(422, "invalid");
    assert!(refused["detail"].as_str().unwrap().contains("both the file `~/login-0`"), "{refused}");
    server.stop().await;
}

async fn each_token_of_a_file_is_known_after_a_restart(kind: Kind) {
    let mut server = TestServer::start(kind).await;
    set(&server.admin(), "LOGIN", &login("before")).await;
    server.restart().await;
    let admin = server.admin();
    let sandbox = admin.external(json!({ "prompt": "go", "agent": "mine" })).await;
    let worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("starting").await.expect(200);
    let text = json!({ "text": "renewing-before, access-before" });
    worker.batch(vec![event(1, "agent.message", text)]).await.expect(200);
    let events = admin.all_events(&sandbox.id).await;
    let said = events.iter().find(|event| event["type"] == "agent.message").unwrap();
    assert_eq!(said["data"]["text"], "[redacted], [redacted]");
    server.stop().await;
}
