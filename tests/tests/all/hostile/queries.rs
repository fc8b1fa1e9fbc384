//! Invalid cursors, limits, filters and paths.

use super::{expect_safe_problem, send_raw_request};
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::ManualWorker;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use reqwest::Method;
use serde_json::json;

on_both_databases!(foreign_cursors_are_refused, queries_are_validated);

/// Encodes a cursor in URL-safe Base64 without padding.
fn encode_cursor(text: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            out.push(ALPHABET[(bits >> (18 - 6 * place) & 63) as usize] as char);
        }
    }
    out
}

async fn foreign_cursors_are_refused(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({ "prompt": "one" })).await;
    admin.create_external_sandbox(json!({})).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    worker.send_events(&["agent.message", "agent.message"]).await;
    admin.post(&format!("/sandboxes/{}/messages", sandbox.id), json!({ "content": "two" })).await.expect_status(201);
    for name in ["one", "two"] {
        admin.post("/users", json!({ "name": name })).await.expect_status(201);
        admin.post("/projects", json!({ "name": name })).await.expect_status(201);
        admin.post("/tokens", json!({ "name": name })).await.expect_status(201);
    }
    let lists = [
        ("sandboxes", "/sandboxes?limit=1".to_owned()),
        ("sessions", "/sessions?limit=1".to_owned()),
        ("projects", "/projects?limit=1".to_owned()),
        ("users", "/users?limit=1".to_owned()),
        ("tokens", "/tokens?limit=1".to_owned()),
        ("events", format!("/sandboxes/{}/events?limit=1", sandbox.id)),
        ("events-desc", format!("/sandboxes/{}/events?limit=1&order=desc", sandbox.id)),
        ("trajectory", format!("/sandboxes/{}/trajectory?limit=1", sandbox.id)),
        ("messages", format!("/sandboxes/{}/messages?limit=1", sandbox.id)),
        ("messages", format!("/sessions/{}/messages?limit=1", sandbox.session)),
    ];
    let mut own = Vec::new();
    for (list, path) in &lists {
        let page = admin.get(path).await.expect_status(200);
        let cursor = page["next_cursor"].as_str().unwrap_or_else(|| panic!("{list} has a next page")).to_owned();
        admin.get(&format!("{path}&cursor={cursor}")).await.expect_status(200);
        own.push(cursor);
    }
    for (list, path) in &lists {
        let foreign = lists.iter().zip(&own).filter(|((other, _), _)| other != list).map(|(_, cursor)| cursor.clone());
        let made_up = [
            String::new(),
            "random".into(),
            "%00".into(),
            "%F0%9F%98%80".into(),
            "=".into(),
            "A".repeat(5000),
            encode_cursor(list),
            encode_cursor(&format!("{list}:")),
            encode_cursor(&format!("{list}:-1")),
            encode_cursor(&format!("{list}:99999999999999999999999999")),
            encode_cursor(&format!("{list}:1 OR 1=1")),
            encode_cursor(&format!("{list}:\0")),
            encode_cursor(&format!("{list}:sbx_{}", "z".repeat(26))),
        ];
        for cursor in foreign.chain(made_up) {
            expect_safe_problem(admin.get(&format!("{path}&cursor={cursor}")).await, 400, "bad_cursor");
        }
    }
    // The largest number is past the end of every list, or invalid. It must cause no error of the server.
    for (list, path) in &lists[5..] {
        let cursor = encode_cursor(&format!("{list}:{}", i64::MAX));
        for direction in ["", "&direction=backward"] {
            let direction = if *list == "trajectory" { direction } else { "" };
            let answer = admin.get(&format!("{path}&cursor={cursor}{direction}")).await;
            assert!([200, 400].contains(&answer.status.as_u16()), "{list}: {}", answer.body);
        }
    }
    server.stop().await;
}

async fn queries_are_validated(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let events = format!("/sandboxes/{}/events", sandbox.id);
    let trajectory = format!("/sandboxes/{}/trajectory", sandbox.id);
    let messages = format!("/sandboxes/{}/messages", sandbox.id);
    let stream = format!("/sandboxes/{}/events/stream", sandbox.id);
    for (path, max) in [
        ("/sandboxes", 200),
        ("/sessions", 200),
        ("/projects", 200),
        ("/users", 200),
        ("/tokens", 200),
        (messages.as_str(), 200),
        (events.as_str(), 500),
        (trajectory.as_str(), 1000),
    ] {
        admin.get(&format!("{path}?limit={max}")).await.expect_status(200);
        let too_many = (max + 1).to_string();
        for limit in ["0", "-1", &too_many, "9223372036854775807", "1e3", "ten", "", "%00", "1%201"] {
            expect_safe_problem(admin.get(&format!("{path}?limit={limit}")).await, 400, "bad_request");
        }
        for query in ["unknown=1", "limit=1&limit=2", "%ff=1", "cursor=%ff", "cursor=%C3%28"] {
            expect_safe_problem(admin.get(&format!("{path}?{query}")).await, 400, "bad_request");
        }
    }
    for query in ["state=gone", "activity=asleep", "provider=moon", "project=x", "session=%00", "label=%ff"] {
        expect_safe_problem(admin.get(&format!("/sandboxes?{query}")).await, 400, "bad_request");
    }
    for query in [
        "type=Agent",
        "type=agent*",
        "type=%00",
        "type=a;b",
        "type='%20OR%201=1",
        "source=nobody",
        "since=yesterday",
        "until=2026-01-01",
        "order=sideways",
    ] {
        expect_safe_problem(admin.get(&format!("{events}?{query}")).await, 400, "bad_request");
    }
    let many = vec!["a.*"; 101].join(",");
    expect_safe_problem(admin.get(&format!("{events}?type={many}")).await, 400, "bad_request");
    expect_safe_problem(admin.get(&format!("{trajectory}?direction=up")).await, 400, "bad_request");
    for query in ["since=x", "since=1.5", "type=A", "unknown=1"] {
        expect_safe_problem(admin.get(&format!("{stream}?{query}")).await, 400, "bad_request");
    }
    for last in ["-1", "x", "99999999999999999999"] {
        let request = admin.request(Method::GET, &stream).header("last-event-id", last);
        expect_safe_problem(admin.send(request).await, 400, "bad_cursor");
    }
    // Quotes and wildcards have no special meaning.
    for label in ["x'%20OR%20'1'='1", "%25", "a%25b=_", "'", "%22"] {
        let found = admin.get(&format!("/sandboxes?label={label}")).await.expect_status(200);
        assert_eq!(found["items"], json!([]), "{label}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_paths_are_not_found() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let (id, session) = (&sandbox.id, &sandbox.session);
    let message = format!("msg_{}", "0".repeat(26));
    let hash = "0".repeat(64);
    for path in [
        "/nothing".to_owned(),
        "/sandboxes/".to_owned(),
        "/sandboxes/%ff".to_owned(),
        "/sandboxes/%00".to_owned(),
        "/sandboxes/..%2f..%2fetc%2fpasswd".to_owned(),
        format!("/sandboxes/{session}"),
        format!("/sessions/{id}"),
        format!("/sandboxes/{}", id.to_uppercase()),
        format!("/sandboxes/sbx_{}", "0".repeat(26)),
        format!("/sandboxes/sbx_{}", "z".repeat(26)),
        format!("/sandboxes/{id}%00"),
        format!("/sandboxes/{id}/events/%ff"),
        format!("/sandboxes/{id}/blobs/{hash}"),
        format!("/sandboxes/{id}/blobs/{}", "A".repeat(64)),
        format!("/sandboxes/{id}/blobs/..%2f..%2fadmin-token"),
        format!("/sandboxes/{id}/blobs/%2e%2e%2f{}", "0".repeat(61)),
        format!("/sandboxes/{id}/blobs/{}%00", "0".repeat(64)),
        format!("/users/{id}"),
        format!("/projects/prj_{}", "0".repeat(26)),
        "/docs/errors/%ff".to_owned(),
        "/docs/errors/..%2f..%2fREADME".to_owned(),
        "/docs/errors/nothing".to_owned(),
    ] {
        expect_safe_problem(admin.get(&path).await, 404, "not_found");
    }
    for path in [
        format!("/sandboxes/{id}/messages/{message}"),
        format!("/sandboxes/{id}/messages/%ff"),
        format!("/sessions/{session}/messages/{message}"),
        format!("/sessions/{id}/messages/{message}"),
        format!("/tokens/{id}"),
    ] {
        expect_safe_problem(admin.delete(&path).await, 404, "not_found");
    }
    expect_safe_problem(
        admin.post("/sandboxes", json!({ "project_id": format!("prj_{}", "0".repeat(26)) })).await,
        404,
        "not_found",
    );
    expect_safe_problem(
        admin.post("/sandboxes", json!({ "session_id": format!("ses_{}", "0".repeat(26)) })).await,
        404,
        "not_found",
    );
    for method in ["PUT", "TRACE", "OPTIONS", "NONSENSE"] {
        let request = admin.request(Method::from_bytes(method.as_bytes()).unwrap(), "/sandboxes");
        let response = request.send().await.unwrap();
        let allowed = response.headers()["allow"].to_str().unwrap().to_owned();
        let mut allowed: Vec<&str> = allowed.split(',').collect();
        allowed.sort_unstable();
        assert_eq!(allowed, ["GET", "HEAD", "POST"], "{method}");
        expect_safe_problem(atoll_tests::actor::ApiResponse::from_response(response).await, 405, "method_not_allowed");
    }
    // Dot segments, which an HTTP client would resolve before it sends the request.
    let token = admin.token.clone().unwrap();
    for path in
        ["/api/v1/sandboxes/../../../admin-token", "/../admin-token", "/api/v1/./sandboxes", "//api/v1/sandboxes"]
    {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        );
        expect_safe_problem(send_raw_request(&server.url, request.as_bytes()).await, 404, "not_found");
    }
    server.stop().await;
}
