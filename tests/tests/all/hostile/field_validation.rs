//! Field validation: NUL characters, sizes and formats; and operations that the state forbids.

use super::{assert_nothing_internal, expect_safe_problem};
use atoll_tests::actor::Actor;
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use serde_json::{Value, json};

on_both_databases!(nul_is_refused_in_every_text_field, operations_that_the_state_forbids_have_their_own_codes);

async fn nul_is_refused_in_every_text_field(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let (id, session) = (&sandbox.id, &sandbox.session);
    let nul = "a\0b";
    for (path, body) in [
        ("/sandboxes".to_owned(), json!({ "prompt": nul })),
        ("/sandboxes".to_owned(), json!({ "title": nul })),
        ("/sandboxes".to_owned(), json!({ "agent": nul })),
        ("/sandboxes".to_owned(), json!({ "model": nul })),
        ("/sandboxes".to_owned(), json!({ "image": nul })),
        ("/sandboxes".to_owned(), json!({ "snapshot": nul })),
        ("/sandboxes".to_owned(), json!({ "system_prompt": nul })),
        ("/sandboxes".to_owned(), json!({ "labels": { "k": nul } })),
        ("/sandboxes".to_owned(), json!({ "labels": { nul: "v" } })),
        ("/sandboxes".to_owned(), json!({ "env": { "K": nul } })),
        ("/sandboxes".to_owned(), json!({ "env": { nul: "v" } })),
        ("/sandboxes".to_owned(), json!({ "tools": [nul] })),
        ("/sandboxes".to_owned(), json!({ "secrets": [nul] })),
        ("/sandboxes".to_owned(), json!({ "repo": { "url": "https://example.org/a\0b" } })),
        ("/sandboxes".to_owned(), json!({ "repo": { "path": "/srv/a\0b" } })),
        ("/sandboxes".to_owned(), json!({ "repo": { "url": "https://example.org/a", "branch": nul } })),
        ("/sandboxes".to_owned(), json!({ "network": { "policy": "allow", "allow": [nul] } })),
        (format!("/sandboxes/{id}/messages"), json!({ "content": nul })),
        (format!("/sessions/{session}/messages"), json!({ "content": nul })),
        (format!("/sessions/{session}/fork"), json!({ "title": nul })),
        ("/users".to_owned(), json!({ "name": nul })),
        ("/projects".to_owned(), json!({ "name": nul })),
        ("/projects".to_owned(), json!({ "name": "p", "defaults": { "system_prompt": nul } })),
        ("/tokens".to_owned(), json!({ "name": nul })),
    ] {
        expect_safe_problem(admin.post(&path, body).await, 422, "invalid");
    }
    let sent = admin.post(&format!("/sandboxes/{id}/messages"), json!({ "content": "fine" })).await.expect_status(201);
    let message = sent["id"].as_str().unwrap();
    for path in [format!("/sandboxes/{id}/messages/{message}"), format!("/sessions/{session}/messages/{message}")] {
        expect_safe_problem(admin.patch(&path, json!({ "content": nul })).await, 422, "invalid");
    }
    expect_safe_problem(admin.patch(&format!("/sessions/{session}"), json!({ "title": nul })).await, 422, "invalid");

    // Atoll stores free-form JSON as text, in which an escaped NUL is harmless.
    let created = admin.post("/sandboxes", json!({ "mcp": { nul: { "args": [nul] } } })).await.expect_status(201);
    assert_eq!(created["settings"]["mcp"][nul]["args"][0], nul);
    let mut worker = ManualWorker::new(&admin, &sandbox);
    worker.send_batch(vec![build_event(1, "agent.message", json!({ nul: nul }))]).await.expect_status(200);
    worker.next_key = 2;
    let odd = build_event(2, "agent.message\0", json!({}));
    assert_eq!(worker.send_batch(vec![odd]).await.expect_status(200)["rejected"][0]["key"], 2);
    // The worker gets the queued message as its prompt.
    let first = worker.send_heartbeat("starting").await.expect_status(200)["start"]["prompt"].clone();
    let path = format!("/sandboxes/{id}/messages/{message}/nack");
    let nack = json!({ "stream": worker.stream, "lease": first["lease"], "handed": false, "reason": nul });
    worker.actor.post(&path, nack).await.expect_status(200);
    let listed = admin.get(&format!("/sandboxes/{id}/messages")).await.expect_status(200);
    assert_eq!(listed["items"][0]["reason"], "ab");
    for query in ["label=%00", "label=a%00=b", "label=a=%00"] {
        let answer = admin.get(&format!("/sandboxes?{query}")).await;
        assert!([200, 400, 422].contains(&answer.status.as_u16()), "{query}: {}", answer.body);
        assert_nothing_internal(&answer.body);
    }
    let failed = json!({ "error": nul, "reason": nul });
    worker.send_batch(vec![build_event(3, "agent.failed", failed)]).await.expect_status(200);
    let ended = admin.get(&format!("/sandboxes/{id}")).await.expect_status(200);
    assert_eq!((ended["state"].as_str(), ended["reason"]["detail"].as_str()), (Some("failed"), Some("ab")));
    server.stop().await;
}

fn object_with_keys(count: usize, key: impl Fn(usize) -> String) -> Value {
    (0..count).map(|n| (key(n), json!("v"))).collect::<serde_json::Map<_, _>>().into()
}

/// Checks that the request fails with a detail that begins with the field.
async fn assert_out_of_bounds(actor: &Actor, path: &str, field: &str, body: Value) {
    let problem = expect_safe_problem(actor.post(path, body).await, 422, "invalid");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.starts_with(field), "{field}: {detail}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_field_limit_is_enforced() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let admin = server.admin();
    let url = |url: &str| json!({ "repo": { "url": url } });
    let branch = |name: &str| json!({ "repo": { "url": "https://example.org/a", "branch": name } });
    let cases: Vec<(&str, Value)> = vec![
        ("labels", json!({ "labels": object_with_keys(33, |n| format!("k{n}")) })),
        ("labels", json!({ "labels": { "Upper": "v" } })),
        ("labels", json!({ "labels": { "": "v" } })),
        ("labels", json!({ "labels": { "k".repeat(64): "v" } })),
        ("labels", json!({ "labels": { "atoll.owner": "v" } })),
        ("labels", json!({ "labels": { "k": "v".repeat(256) } })),
        ("env", json!({ "env": object_with_keys(65, |n| format!("K{n}")) })),
        ("env", json!({ "env": { "lower": "v" } })),
        ("env", json!({ "env": { "A=B": "v" } })),
        ("env", json!({ "env": { "PATH": "/evil" } })),
        ("env", json!({ "env": { "LD_PRELOAD": "/evil.so" } })),
        ("env", json!({ "env": { "ATOLL_TOKEN": "x" } })),
        ("env", json!({ "env": { "K": "v".repeat(33 * 1024) } })),
        ("prompt", json!({ "prompt": "x".repeat(1024 * 1024 + 1) })),
        ("prompt", json!({ "prompt": " \n\t" })),
        ("system_prompt", json!({ "system_prompt": "x".repeat(101 * 1024) })),
        ("title", json!({ "title": "x".repeat(201) })),
        ("title", json!({ "title": "two\nlines" })),
        ("title", json!({ "title": "\u{1b}[31mred" })),
        ("agent", json!({ "agent": "" })),
        ("timeout_s", json!({ "timeout_s": 0 })),
        ("resources.memory_gb", json!({ "resources": { "memory_gb": 1e9 } })),
        ("resources.cpu", json!({ "resources": { "cpu": 0 } })),
        ("resources.disk_gb", json!({ "resources": { "disk_gb": -1 } })),
        ("resources.pids", json!({ "resources": { "pids": 4_000_000_000u32 } })),
        ("limits.cost_usd", json!({ "limits": { "cost_usd": -1 } })),
        ("tools", json!({ "tools": vec!["t"; 201] })),
        ("network.allow", json!({ "network": { "policy": "allow", "allow": vec!["h"; 201] } })),
        ("mcp", json!({ "mcp": { "x": "x".repeat(101 * 1024) } })),
        ("repo", json!({ "repo": {} })),
        ("repo", json!({ "repo": { "url": "https://example.org/a", "path": "/srv/a" } })),
        ("repo.url", url("http://example.org/a")),
        ("repo.url", url("ext::sh -c id")),
        ("repo.url", url("https://")),
        ("repo.url", url("https://user:password@example.org/a")),
        ("repo.url", url("ssh://user:password@example.org/a")),
        ("repo.url", url("ssh://-oProxyCommand=id/a")),
        ("repo.url", url("ssh://git@-oProxyCommand=id/a")),
        ("repo.url", url("https://example.org/a b")),
        ("repo.url", url(&format!("https://example.org/{}", "a".repeat(2048)))),
        ("repo.branch", branch("--upload-pack=id")),
        ("repo.branch", branch("a..b")),
        ("repo.branch", branch("a b")),
        ("repo.branch", branch("")),
    ];
    for (field, body) in cases {
        assert_out_of_bounds(&admin, "/sandboxes", field, body).await;
    }
    assert_eq!(
        admin.get("/sandboxes").await.expect_status(200)["items"],
        json!([]),
        "an invalid request created a sandbox"
    );

    // The server accepts values at the limit and does not clamp them.
    let at_limit = json!({ "prompt": "x".repeat(1024 * 1024), "title": "ä".repeat(200),
        "labels": object_with_keys(32, |n| format!("k{n}")), "env": object_with_keys(64, |n| format!("K{n}")),
        "resources": { "cpu": 256 } });
    let sandbox = admin.create_external_sandbox(at_limit).await;
    let row = admin.get(&format!("/sandboxes/{}", sandbox.id)).await.expect_status(200);
    assert_eq!(row["settings"]["resources"]["cpu"], 256.0);

    let path = format!("/sandboxes/{}/messages", sandbox.id);
    for content in ["", "  ", &"x".repeat(10_241), &"ä".repeat(5_121)] {
        assert_out_of_bounds(&admin, &path, "content", json!({ "content": content })).await;
    }
    admin.post(&path, json!({ "content": "ä".repeat(5_120) })).await.expect_status(201);
    for name in ["", " ", "two\nlines", &"x".repeat(101)] {
        for path in ["/users", "/projects", "/tokens"] {
            assert_out_of_bounds(&admin, path, "name", json!({ "name": name })).await;
        }
    }
    assert_out_of_bounds(&admin, "/tokens", "expires_at", json!({ "name": "t", "expires_at": "2001-01-01T00:00:00Z" }))
        .await;
    let defaults = json!({ "name": "p", "defaults": { "prompt": "x" } });
    assert_out_of_bounds(&admin, "/projects", "defaults", defaults).await;
    server.stop().await;
}

async fn operations_that_the_state_forbids_have_their_own_codes(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let (id, session) = (&sandbox.id, &sandbox.session);
    let again = json!({ "session_id": session });
    let busy = expect_safe_problem(admin.post("/sandboxes", again.clone()).await, 409, "session_busy");
    assert_eq!(busy["sandbox_id"], **id);
    expect_safe_problem(admin.post(&format!("/sessions/{session}/resume"), json!({})).await, 409, "session_busy");
    expect_safe_problem(admin.post(&format!("/sandboxes/{id}/results"), json!({})).await, 409, "illegal_transition");

    let path = format!("/sandboxes/{id}/messages");
    let message = admin.post(&path, json!({ "content": "hello" })).await.expect_status(201);
    let one = format!("{path}/{}", message["id"].as_str().unwrap());
    admin.delete(&one).await.expect_status(200);
    expect_safe_problem(admin.patch(&one, json!({ "content": "again" })).await, 409, "message_not_queued");
    expect_safe_problem(admin.delete(&one).await, 409, "message_not_queued");

    admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "discard" })).await.expect_status(200);
    let ended = expect_safe_problem(admin.post(&path, json!({ "content": "late" })).await, 409, "sandbox_ended");
    assert_eq!(ended["session_id"], **session);
    admin.patch(&format!("/sessions/{session}"), json!({ "state": "closed" })).await.expect_status(200);
    expect_safe_problem(admin.post("/sandboxes", again).await, 409, "session_closed");
    expect_safe_problem(
        admin.post(&format!("/sessions/{session}/messages"), json!({ "content": "x" })).await,
        409,
        "session_closed",
    );
    expect_safe_problem(admin.post(&format!("/sessions/{session}/resume"), json!({})).await, 409, "session_closed");
    expect_safe_problem(
        admin.patch(&format!("/sessions/{session}"), json!({ "state": "open" })).await,
        409,
        "session_closed",
    );

    admin.post("/projects", json!({ "name": "twice" })).await.expect_status(201);
    expect_safe_problem(admin.post("/projects", json!({ "name": "twice" })).await, 409, "name_taken");
    let me = admin.get("/users").await.expect_status(200)["items"][0]["id"].as_str().unwrap().to_owned();
    expect_safe_problem(admin.delete(&format!("/users/{me}")).await, 409, "in_use");
    expect_safe_problem(admin.patch(&format!("/users/{me}"), json!({ "role": "viewer" })).await, 409, "in_use");
    server.stop().await;
}
