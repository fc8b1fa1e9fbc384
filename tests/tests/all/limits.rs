//! Rate limits: the server refuses excess requests and readers, and slows workers down.

use atoll_server::Options;
use atoll_test_wait::{WAIT_TIMEOUT, poll_until};
use atoll_tests::actor::{Actor, ApiResponse};
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::server::TestServer;
use reqwest::{Method, Response};
use serde_json::json;
use std::num::NonZeroU32;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Checks for a 429 with a plausible Retry-After header.
#[track_caller]
fn assert_rate_limited(answer: ApiResponse, code: &str) {
    let seconds: u64 = answer.retry_after.as_deref().expect("Retry-After").parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    answer.expect_problem(429, code);
}

async fn start_server(change: impl FnOnce(&mut Options)) -> TestServer {
    TestServer::start_with(DatabaseKind::Sqlite, change).await
}

async fn create_user(admin: &Actor, name: &str) -> Actor {
    let user = admin.post("/users", json!({ "name": name })).await.expect_status(201);
    let token = admin.post("/tokens", json!({ "name": name, "user_id": user["id"] })).await.expect_status(201);
    admin.with_token(token["token"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn excess_messages_are_rate_limited() {
    let server = start_server(|options| options.config.limits.messages_per_minute = NonZeroU32::new(3)).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    let to_session = format!("/sessions/{}/messages", sandbox.session);
    let other = create_user(&admin, "other").await;
    for path in [&path, &to_session, &path] {
        admin.post(path, json!({ "content": "x" })).await.expect_status(201);
    }
    assert_rate_limited(admin.post(&path, json!({ "content": "x" })).await, "rate_limited");
    assert_rate_limited(admin.post(&to_session, json!({ "content": "x" })).await, "rate_limited");
    // All tokens of a user share one limit.
    let second = admin.post("/tokens", json!({ "name": "second" })).await.expect_status(201);
    let second = admin.with_token(second["token"].as_str().unwrap());
    assert_rate_limited(second.post(&path, json!({ "content": "x" })).await, "rate_limited");

    // The limit counts only messages, and only those of this user.
    assert_eq!(admin.get(&path).await.expect_status(200)["items"].as_array().unwrap().len(), 3);
    admin.patch(&format!("/sessions/{}", sandbox.session), json!({ "title": "t" })).await.expect_status(200);
    other.post(&path, json!({ "content": "x" })).await.expect_status(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn excess_writes_are_rate_limited() {
    let server = start_server(|options| options.config.limits.writes_per_minute = NonZeroU32::new(5)).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let session = format!("/sessions/{}", sandbox.session);
    for _ in 0..4 {
        admin.patch(&session, json!({ "title": "t" })).await.expect_status(200);
    }
    assert_rate_limited(admin.patch(&session, json!({ "title": "t" })).await, "rate_limited");
    assert_rate_limited(admin.post("/sandboxes", json!({})).await, "rate_limited");
    assert_rate_limited(admin.delete(&format!("/sandboxes/{}", sandbox.id)).await, "rate_limited");
    // Reads, messages and workers are not affected.
    for _ in 0..20 {
        admin.get(&session).await.expect_status(200);
    }
    admin.post(&format!("/sandboxes/{}/messages", sandbox.id), json!({ "content": "x" })).await.expect_status(201);
    ManualWorker::new(&admin, &sandbox).send_heartbeat("starting").await.expect_status(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_catches_up_is_throttled_but_not_refused() {
    const LIMIT: u32 = 90;
    let server =
        start_server(|options| options.config.limits.worker_requests_per_minute = NonZeroU32::new(LIMIT)).await;
    let admin = server.admin();
    let (sandbox, other) =
        (admin.create_external_sandbox(json!({})).await, admin.create_external_sandbox(json!({})).await);
    let worker = ManualWorker::new(&admin, &sandbox);
    // The server stores more than a minute's worth of requests, with delays.
    for key in 1..=i64::from(LIMIT) + 3 {
        worker.send_batch(vec![build_event(key, "agent.message", json!({}))]).await.expect_status(200);
    }
    let stored = admin.all_events(&sandbox.id).await;
    let count = stored.iter().filter(|event| event["type"] == "agent.message").count();
    assert_eq!(count, LIMIT as usize + 3);
    ManualWorker::new(&admin, &other).send_heartbeat("starting").await.expect_status(200);
    server.stop().await;
}

async fn follow_events(actor: &Actor, sandbox: &str) -> Response {
    let path = format!("/sandboxes/{sandbox}/events/stream?since=0");
    actor.request(Method::GET, &path).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn excess_readers_are_refused_until_one_disconnects() {
    // One principal gets a quarter.
    let server = start_server(|options| options.config.limits.max_live_streams = 8).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    // An invalid request does not count as a reader.
    let bad = format!("/sandboxes/{}/events/stream?type=A", sandbox.id);
    for _ in 0..3 {
        admin.get(&bad).await.expect_problem(400, "bad_request");
    }
    let first = follow_events(&admin, &sandbox.id).await;
    let socket = format!("{}/api/v1/events/ws", server.url.replace("http", "ws"));
    let mut request = tokio_tungstenite::tungstenite::client::IntoClientRequest::into_client_request(socket).unwrap();
    let token = format!("Bearer {}", admin.token.as_ref().unwrap());
    request.headers_mut().insert("authorization", token.parse().unwrap());
    let (second, _) = tokio_tungstenite::connect_async(request.clone()).await.unwrap();
    assert_eq!(first.status(), 200);

    assert_rate_limited(ApiResponse::from_response(follow_events(&admin, &sandbox.id).await).await, "too_many_readers");
    let refused = tokio_tungstenite::connect_async(request).await.unwrap_err();
    let tokio_tungstenite::tungstenite::Error::Http(refused) = refused else { panic!("{refused}") };
    assert_eq!(refused.status(), 429);
    // The readers of one principal leave room for others.
    let other = create_user(&admin, "other").await;
    let others = follow_events(&other, &sandbox.id).await;
    assert_eq!(others.status(), 200);
    // Other requests still work, and a reader that disconnects makes room.
    admin.get(&format!("/sandboxes/{}/events", sandbox.id)).await.expect_status(200);
    drop((first, second));
    poll_until("room for a reader", async || follow_events(&admin, &sandbox.id).await.status() == 200).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_leave_room_for_clients() {
    let server = start_server(|options| options.config.limits.max_connections = 40).await;
    let address = server.url.trim_start_matches("http://").to_owned();
    let mut silent = Vec::new();
    for number in 0..60 {
        let mut connection = tokio::net::TcpStream::connect(&address).await.unwrap();
        if number % 2 == 0 {
            connection.write_all(b"GET /healthz HTTP/1.1\r\nHost: local").await.unwrap();
        }
        silent.push(connection);
    }
    // The oldest ones make room for newer ones of the same peer, so that a client gets through.
    let admin = server.admin();
    admin.get("/sandboxes").await.expect_status(200);
    let mut end = [0];
    for connection in &mut silent[..45] {
        let read = tokio::time::timeout(WAIT_TIMEOUT, connection.read(&mut end)).await.expect("it stays open");
        assert!(matches!(read, Ok(0) | Err(_)), "the server must close it: {read:?}");
    }
    // One principal gets a quarter of the connections; another one still gets some.
    let other = create_user(&admin, "other").await;
    let request = |actor: &Actor| {
        let token = actor.token.as_ref().unwrap();
        format!("GET /api/v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n")
    };
    let mut held = Vec::new();
    let mut statuses = Vec::new();
    for _ in 0..11 {
        let mut connection = tokio::net::TcpStream::connect(&address).await.unwrap();
        connection.write_all(request(&other).as_bytes()).await.unwrap();
        let mut head = [0; 12];
        connection.read_exact(&mut head).await.unwrap();
        statuses.push(String::from_utf8_lossy(&head[9..]).into_owned());
        held.push(connection);
    }
    assert_eq!(statuses, [["200"; 10].as_slice(), &["429"]].concat());
    admin.get("/sandboxes").await.expect_status(200);
    drop((silent, held));
    server.stop().await;
}
