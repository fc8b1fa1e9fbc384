//! Lists by reference, names and removal from lists, over HTTP.

use atoll_tests::actor::Actor;
use atoll_tests::database::DatabaseKind;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};

on_both_databases!(lists_find_a_sandbox_by_reference, removed_sandboxes_and_sessions_leave_the_lists);

async fn create_sandbox(admin: &Actor, settings: Value) -> Value {
    let mut body = json!({ "provider": "fake", "agent": "demo", "end": "keep" });
    body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    admin.post("/sandboxes", body).await.expect_status(201)
}

async fn listed_ids(actor: &Actor, path: &str) -> Vec<String> {
    let page = actor.get(path).await.expect_status(200);
    page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

async fn lists_find_a_sandbox_by_reference(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let repo = json!({ "url": "https://example.org/x.git", "branch": "atoll/fix_it" });
    let first = create_sandbox(&admin, json!({ "name": "web", "title": "The page", "repo": repo })).await;
    let second = create_sandbox(&admin, json!({ "env": { "PLACE": "/x/fix-it" } })).await;
    assert_eq!((first["name"].as_str(), first["title"].as_str()), (Some("web"), Some("The page")));
    let (first, second) = (first["id"].as_str().unwrap(), second["id"].as_str().unwrap());
    let end = &first[first.len() - 6..];
    let begin = &second[..second.len() - 1];
    for (reference, expected) in [
        ("web", vec![first]),
        (end, vec![first]),
        (begin, vec![second]),
        (&begin[4..], vec![second]),
        ("atoll/fix_it", vec![first]),
        ("fix_it", vec![first]),
        // A wildcard of SQL and another setting match nothing.
        ("fix-it", vec![]),
        ("%25", vec![]),
        ("we", vec![]),
        ("sbx_0", vec![second, first]),
    ] {
        assert_eq!(listed_ids(&admin, &format!("/sandboxes?reference={reference}")).await, expected, "{reference}");
    }
    let taken = json!({ "provider": "fake", "name": "web" });
    let problem = admin.post("/sandboxes", taken.clone()).await.expect_problem(409, "name_taken");
    assert!(problem["detail"].as_str().unwrap().contains("a live sandbox named `web`"), "{problem}");
    admin.post("/sandboxes", json!({ "provider": "fake", "name": "last" })).await.expect_problem(422, "invalid");
    let project = admin.post("/projects", json!({ "name": "other" })).await.expect_status(201);
    create_sandbox(&admin, json!({ "name": "web", "project_id": project["id"] })).await;

    let user = admin.post("/users", json!({ "name": "ann", "role": "admin" })).await.expect_status(201);
    let token = admin.post("/tokens", json!({ "name": "t", "user_id": user["id"] })).await.expect_status(201);
    let ann = admin.with_token(token["token"].as_str().unwrap());
    assert_eq!(listed_ids(&ann, "/sandboxes?mine=true").await, Vec::<String>::new());
    assert_eq!(listed_ids(&admin, "/sandboxes?mine=true").await.len(), 3);
    server.stop().await;
}

async fn removed_sandboxes_and_sessions_leave_the_lists(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let created = create_sandbox(&admin, json!({ "name": "web" })).await;
    let (id, session) = (created["id"].as_str().unwrap(), created["session_id"].as_str().unwrap());
    let archive = json!({ "archived": true });
    admin.patch(&format!("/sessions/{session}"), archive.clone()).await.expect_problem(409, "session_busy");
    admin.delete(&format!("/sandboxes/{id}")).await.expect_status(200);
    assert_eq!(listed_ids(&admin, "/sandboxes").await, Vec::<String>::new());
    assert_eq!(listed_ids(&admin, "/sandboxes?archived=true").await, [id]);
    assert_eq!(admin.get(&format!("/sandboxes/{id}")).await.expect_status(200)["archived"], true);
    assert_eq!(listed_ids(&admin, "/sessions").await, [session]);
    admin.patch(&format!("/sessions/{session}"), archive).await.expect_status(200);
    assert_eq!(listed_ids(&admin, "/sessions").await, Vec::<String>::new());
    assert_eq!(listed_ids(&admin, "/sessions?archived=true").await, [session]);
    // The name is free again, and a new sandbox brings its session back.
    create_sandbox(&admin, json!({ "name": "web", "session_id": session })).await;
    assert_eq!(listed_ids(&admin, "/sessions").await, [session]);
    server.stop().await;
}
