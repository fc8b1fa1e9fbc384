//! Webhooks of GitHub: signatures, repeated deliveries, events and messages of the session that works on the branch.

use atoll_forges::webhook_signature::sign;
use atoll_tests::actor::{Actor, ApiResponse};
use atoll_tests::database::DatabaseKind;
use atoll_tests::local::report_skipped;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;

on_both_databases!(a_webhook_becomes_one_event_of_its_session, reviews_become_messages_where_a_project_wants_them);

const SECRET: &str = "webhook-secret-value";
const URL: &str = "https://github.com/Octo/Hello.git";

async fn start_server(kind: DatabaseKind) -> TestServer {
    TestServer::start_with(kind, |options| options.config.github.webhook_secret = Some(SECRET.into())).await
}

async fn deliver(anon: &Actor, event: &str, delivery: &str, payload: &Value) -> ApiResponse {
    let body = payload.to_string();
    deliver_signed(anon, (event, delivery), &sign(&SECRET.into(), body.as_bytes()), body).await
}

async fn deliver_signed(anon: &Actor, (event, delivery): (&str, &str), signature: &str, body: String) -> ApiResponse {
    let request = anon.request(Method::POST, "/webhooks/github").header("content-type", "application/json");
    let request = request.header("x-github-event", event).header("x-github-delivery", delivery);
    anon.send(request.header("x-hub-signature-256", signature).body(body)).await
}

fn pull_request(merged: bool, branch: &str) -> Value {
    json!({ "action": "closed", "repository": { "id": 7, "clone_url": URL },
        "pull_request": { "number": 3, "html_url": "https://github.com/Octo/Hello/pull/3", "merged": merged,
            "merge_commit_sha": "c0ffee", "head": { "ref": branch, "repo": { "id": 7 } } } })
}

fn review(verdict: &str, text: &str) -> Value {
    json!({ "action": "submitted", "repository": { "id": 7, "clone_url": URL },
        "review": { "state": verdict, "body": text, "html_url": "u", "user": { "login": "ann" } },
        "pull_request": { "number": 3, "html_url": "u", "head": { "ref": "feature/x", "repo": { "id": 7 } } } })
}

fn events_of_type(events: &[Value], event_type: &str) -> Vec<Value> {
    events.iter().filter(|event| event["type"] == event_type).map(|event| event["data"].clone()).collect()
}

async fn a_webhook_becomes_one_event_of_its_session(kind: DatabaseKind) {
    let server = start_server(kind).await;
    let (admin, anon) = (server.admin(), server.anon());
    let ticket = admin.post("/tickets", json!({ "title": "x" })).await.expect_status(201);
    // Another form of the same URL.
    let repo = json!({ "url": "ssh://git@github.com/octo/hello", "branch": "feature/x" });
    let sandbox = admin.create_external_sandbox(json!({ "repo": repo, "ticket_id": ticket["id"] })).await;
    let merged = pull_request(true, "feature/x");

    for (signature, body) in [
        (String::new(), merged.to_string()),
        (sign(&"other-secret".into(), merged.to_string().as_bytes()), merged.to_string()),
        (sign(&SECRET.into(), merged.to_string().as_bytes()), pull_request(false, "feature/x").to_string()),
    ] {
        let refused = deliver_signed(&anon, ("pull_request", "d0"), &signature, body).await;
        let problem = refused.expect_problem(401, "unauthorized");
        assert!(!problem.to_string().contains(SECRET), "{problem}");
    }
    let elsewhere = deliver(&anon, "pull_request", "d1", &pull_request(true, "main")).await.expect_status(202);
    assert_eq!(elsewhere["result"], "ignored");
    let unknown = deliver(&anon, "star", "d2", &json!({ "action": "created" })).await.expect_status(202);
    assert_eq!(unknown["result"], "ignored");

    for expected in ["processed", "duplicate", "duplicate"] {
        let done = deliver(&anon, "pull_request", "d3", &merged).await.expect_status(202);
        assert_eq!(done["result"], expected);
    }
    let events = admin.all_events(&sandbox.id).await;
    let found = events_of_type(&events, "git.pr_merged");
    assert_eq!(found.len(), 1, "{events:?}");
    assert_eq!((found[0]["number"].as_u64(), found[0]["commit"].as_str()), (Some(3), Some("c0ffee")));
    assert!(events.iter().any(|event| event["type"] == "git.pr_merged" && event["source"] == "forge"));
    let path = format!("/tickets/{}", ticket["id"].as_str().unwrap());
    let done = admin.get(&path).await.expect_status(200);
    assert_eq!((done["status"].as_str(), done["pr"]["state"].as_str()), (Some("done"), Some("merged")), "{done}");
    // It was closed and opened again before the merge, and the older report comes last.
    deliver(&anon, "pull_request", "late", &pull_request(false, "feature/x")).await.expect_status(202);
    let done = admin.get(&path).await.expect_status(200);
    assert_eq!(done["pr"]["state"], "merged", "{done}");
    // A sandbox does not get messages by default.
    deliver(&anon, "pull_request_review", "d4", &review("changes_requested", "no")).await.expect_status(202);
    let messages = admin.get(&format!("/sandboxes/{}/messages", sandbox.id)).await.expect_status(200);
    let from_forge = |message: &Value| message["sender"] == "forge:github";
    assert!(!messages["items"].as_array().unwrap().iter().any(from_forge), "{messages}");
    let large = "x".repeat(6 << 20);
    let refused = deliver_signed(&anon, ("push", "d5"), "sha256=00", large).await;
    refused.expect_problem(413, "too_large");
    server.stop().await;
}

async fn reviews_become_messages_where_a_project_wants_them(kind: DatabaseKind) {
    let server = start_server(kind).await;
    let (admin, anon) = (server.admin(), server.anon());
    let defaults = json!({ "git": { "webhook_messages": true } });
    let project = admin.post("/projects", json!({ "name": "ours", "defaults": defaults })).await.expect_status(201);
    let repo = json!({ "url": URL, "branch": "feature/x" });
    let sandbox = admin.create_external_sandbox(json!({ "repo": repo, "project_id": project["id"] })).await;
    for (delivery, payload) in
        [("a", review("approved", "nice")), ("b", review("changes_requested", "add a test")), ("b", review("x", "y"))]
    {
        deliver(&anon, "pull_request_review", delivery, &payload).await.expect_status(202);
    }
    let messages = admin.get(&format!("/sandboxes/{}/messages", sandbox.id)).await.expect_status(200);
    let contents: Vec<&str> =
        messages["items"].as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(contents, ["ann requests changes in pull request #3 of your branch feature/x:\n\nadd a test"]);
    assert_eq!(events_of_type(&admin.all_events(&sandbox.id).await, "git.reviewed").len(), 2);
    server.stop().await;
}

/// Every payload that GitHub publishes as an example gets an answer, and the ones about a session's branch become events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn githubs_example_payloads_are_accepted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let file = root.join("target/forge-tools/node_modules/@octokit/webhooks-examples/api.github.com/index.json");
    let Ok(text) = std::fs::read(file) else {
        assert!(std::env::var_os("CI").is_none(), "run scripts/forge-tools first");
        return report_skipped("GitHub's example payloads", "scripts/forge-tools did not run");
    };
    let events: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let server = start_server(DatabaseKind::Sqlite).await;
    let (admin, anon) = (server.admin(), server.anon());
    let repo = json!({ "url": "https://github.com/Codertocat/Hello-World.git", "branch": "changes" });
    let sandbox = admin.create_external_sandbox(json!({ "repo": repo })).await;
    let mut count = 0;
    for event in &events {
        for payload in event["examples"].as_array().unwrap() {
            count += 1;
            deliver(&anon, event["name"].as_str().unwrap(), &format!("d{count}"), payload).await.expect_status(202);
        }
    }
    assert!(count > 100, "{count} payloads");
    let logged = admin.all_events(&sandbox.id).await;
    for event_type in ["git.pr_closed", "git.reviewed", "git.check_failed"] {
        assert!(!events_of_type(&logged, event_type).is_empty(), "no {event_type} in {logged:?}");
    }
    server.stop().await;
}
