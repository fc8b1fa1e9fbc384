//! Tickets over HTTP: keys, filters, pages, dependencies.

use atoll_tests::actor::Actor;
use atoll_tests::database::DatabaseKind;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};
use std::collections::BTreeSet;

on_both_databases!(
    tickets_are_created_changed_and_removed,
    keys_are_unique_and_never_reused,
    concurrent_tickets_get_different_keys,
    lists_filter_and_page_tickets,
    dependencies_form_no_cycle,
    concurrent_dependencies_form_no_cycle,
    a_repeated_request_creates_one_ticket,
);

async fn create_ticket(actor: &Actor, body: Value) -> Value {
    actor.post("/tickets", body).await.expect_status(201)
}

fn keys(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|ticket| ticket["key"].as_str().unwrap()).collect()
}

async fn tickets_are_created_changed_and_removed(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let ticket = create_ticket(&admin, json!({ "title": "Make known-secret-value-123 faster" })).await;
    let defaults = json!({ "key": "ATL-1", "title": "Make [redacted] faster", "type": "feature", "priority": "medium",
        "status": "backlog", "blocked": false, "depends_on": [], "branch": null, "pr": null });
    for (field, value) in defaults.as_object().unwrap() {
        assert_eq!(ticket[field], *value, "{field}");
    }
    let path = format!("/tickets/{}", ticket["id"].as_str().unwrap());
    let change = json!({ "title": "Faster", "type": "bug", "priority": "critical", "status": "building-done",
        "blocked": true, "description": "all of it" });
    let changed = admin.patch(&path, change.clone()).await.expect_status(200);
    for (field, value) in change.as_object().unwrap() {
        assert_eq!(changed[field], *value, "{field}");
    }
    let kept = admin.patch(&path, json!({})).await.expect_status(200);
    assert_eq!(kept["description"], "all of it");
    let without = admin.patch(&path, json!({ "description": null })).await.expect_status(200);
    assert_eq!(without["description"], Value::Null);
    for bad in [
        json!({ "status": "finished" }),
        json!({ "title": " " }),
        json!({ "title": "a\nb" }),
        json!({ "key": "ATL-9" }),
        json!({ "description": "x".repeat(65 * 1024) }),
        json!({ "depends_on": ["nothing"] }),
    ] {
        admin.patch(&path, bad).await.expect_problem(422, "invalid");
    }
    admin.delete(&path).await.expect_status(200);
    admin.get(&path).await.expect_problem(404, "not_found");
    server.stop().await;
}

async fn keys_are_unique_and_never_reused(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let mut prefixes = Vec::new();
    for name in ["parser", "parser of files", "日本"] {
        let project = admin.post("/projects", json!({ "name": name })).await.expect_status(201);
        let new = json!({ "title": "x", "project_id": project["id"] });
        let first = create_ticket(&admin, new.clone()).await;
        admin.delete(&format!("/tickets/{}", first["id"].as_str().unwrap())).await.expect_status(200);
        let second = create_ticket(&admin, new).await;
        prefixes.push((first["key"].as_str().unwrap().to_owned(), second["key"].as_str().unwrap().to_owned()));
        let removal = admin.delete(&format!("/projects/{}", project["id"].as_str().unwrap())).await;
        removal.expect_problem(409, "in_use");
    }
    let expected = [("PAR-1", "PAR-2"), ("PAR2-1", "PAR2-2"), ("ATL-1", "ATL-2")];
    assert_eq!(prefixes, expected.map(|(first, second)| (first.to_owned(), second.to_owned())));
    // The default project comes too late for its usual prefix.
    assert_eq!(create_ticket(&admin, json!({ "title": "x" })).await["key"], "ATL2-1");
    server.stop().await;
}

async fn concurrent_tickets_get_different_keys(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let mut creations = tokio::task::JoinSet::new();
    for number in 0..30 {
        let admin = admin.clone();
        creations.spawn(async move {
            let ticket = create_ticket(&admin, json!({ "title": format!("t{number}") })).await;
            ticket["key"].as_str().unwrap().to_owned()
        });
    }
    let keys: BTreeSet<String> = creations.join_all().await.into_iter().collect();
    assert_eq!(keys, (1..=30).map(|number| format!("ATL-{number}")).collect());
    server.stop().await;
}

async fn lists_filter_and_page_tickets(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    for (ticket_type, priority, blocked) in [
        ("bug", "high", false),
        ("bug", "low", true),
        ("docs", "high", false),
        ("feature", "medium", false),
        ("chore", "critical", true),
    ] {
        let new = json!({ "title": "x", "type": ticket_type, "priority": priority, "blocked": blocked });
        create_ticket(&admin, new).await;
    }
    for (query, expected) in [
        ("", vec!["ATL-5", "ATL-4", "ATL-3", "ATL-2", "ATL-1"]),
        ("?type=bug", vec!["ATL-2", "ATL-1"]),
        ("?priority=high", vec!["ATL-3", "ATL-1"]),
        ("?blocked=true", vec!["ATL-5", "ATL-2"]),
        ("?blocked=false&type=bug", vec!["ATL-1"]),
        ("?status=backlog&priority=critical", vec!["ATL-5"]),
        ("?status=done", vec![]),
        ("?key=ATL-3", vec!["ATL-3"]),
        ("?key=atl-3", vec!["ATL-3"]),
        ("?key=ATL-33", vec![]),
        ("?branch=%25", vec![]),
    ] {
        assert_eq!(keys(&admin.get(&format!("/tickets{query}")).await.expect_status(200)), expected, "{query}");
    }
    assert_eq!(admin.list_all("/tickets", 2).await.len(), 5);
    admin.get("/tickets?cursor=x").await.expect_problem(400, "bad_cursor");
    admin.get("/tickets?status=x").await.expect_problem(400, "bad_request");
    let project = admin.post("/projects", json!({ "name": "other" })).await.expect_status(201);
    let other = create_ticket(&admin, json!({ "title": "x", "project_id": project["id"] })).await;
    let listed = admin.get(&format!("/tickets?project={}", project["id"].as_str().unwrap())).await.expect_status(200);
    assert_eq!(keys(&listed), [other["key"].as_str().unwrap()]);
    server.stop().await;
}

async fn dependencies_form_no_cycle(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let first = create_ticket(&admin, json!({ "title": "first" })).await;
    create_ticket(&admin, json!({ "title": "second", "depends_on": ["ATL-1"] })).await;
    let third = create_ticket(&admin, json!({ "title": "third", "depends_on": ["ATL-2", "ATL-2"] })).await;
    assert_eq!(third["depends_on"], json!(["ATL-2"]));
    let path = format!("/tickets/{}", first["id"].as_str().unwrap());
    for depends_on in [json!(["ATL-3"]), json!(["ATL-1"])] {
        let change = json!({ "title": "changed", "depends_on": depends_on });
        admin.patch(&path, change).await.expect_problem(422, "dependency_cycle");
    }
    let problem = admin.patch(&path, json!({ "depends_on": ["ATL-3"] })).await.expect_problem(422, "dependency_cycle");
    assert!(problem["detail"].as_str().unwrap().contains("ATL-1, ATL-3, ATL-2, ATL-1"), "{problem}");
    assert_eq!(admin.get(&path).await.expect_status(200)["title"], "first", "a refused change stores nothing");
    // A ticket of another project is unknown here.
    let project = admin.post("/projects", json!({ "name": "other" })).await.expect_status(201);
    let other = create_ticket(&admin, json!({ "title": "x", "project_id": project["id"] })).await;
    admin.patch(&path, json!({ "depends_on": [other["key"]] })).await.expect_problem(422, "invalid");
    let problem = admin.delete(&path).await.expect_problem(409, "in_use");
    assert!(problem["detail"].as_str().unwrap().contains("ATL-2"), "{problem}");
    let third = format!("/tickets/{}", third["id"].as_str().unwrap());
    let without = admin.patch(&third, json!({ "depends_on": [] })).await.expect_status(200);
    assert_eq!(without["depends_on"], json!([]));
    admin.patch(&path, json!({ "depends_on": ["ATL-3"] })).await.expect_status(200);
    server.stop().await;
}

async fn concurrent_dependencies_form_no_cycle(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let mut paths = Vec::new();
    for _ in 0..6 {
        let ticket = create_ticket(&admin, json!({ "title": "x" })).await;
        paths.push(format!("/tickets/{}", ticket["id"].as_str().unwrap()));
    }
    // A ring of dependencies: at least one must be refused.
    let mut changes = tokio::task::JoinSet::new();
    for (place, path) in paths.iter().enumerate() {
        let (admin, path) = (admin.clone(), path.clone());
        let next = format!("ATL-{}", (place + 1) % 6 + 1);
        changes.spawn(async move { admin.patch(&path, json!({ "depends_on": [next] })).await.status.as_u16() });
    }
    let statuses = changes.join_all().await;
    assert_eq!(statuses.iter().filter(|status| **status == 422).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 5, "{statuses:?}");
    server.stop().await;
}

async fn a_repeated_request_creates_one_ticket(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let mut keys = Vec::new();
    for _ in 0..2 {
        let request = admin.request(reqwest::Method::POST, "/tickets").header("idempotency-key", "one");
        let created = admin.send(request.json(&json!({ "title": "x" }))).await.expect_status(201);
        keys.push(created["key"].clone());
    }
    assert_eq!(keys, [json!("ATL-1"), json!("ATL-1")]);
    server.stop().await;
}
