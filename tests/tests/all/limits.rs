//! Floods: people and programs are told to wait, workers are slowed down, readers are counted.

use atoll_server::Options;
use atoll_tests::actor::{Actor, Answer};
use atoll_tests::database::Kind;
use atoll_tests::server::TestServer;
use atoll_tests::worker::{HandWorker, event};
use reqwest::{Method, Response};
use serde_json::json;

/// Refused until later, and told when that is.
#[track_caller]
fn told_to_wait(answer: Answer, code: &str) {
    let seconds: u64 = answer.retry_after.as_deref().expect("Retry-After").parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    answer.refused(429, code);
}

async fn start(change: impl FnOnce(&mut Options)) -> TestServer {
    TestServer::start_with(Kind::Sqlite, change).await
}

async fn another_user(admin: &Actor, name: &str) -> Actor {
    let user = admin.post("/users", json!({ "name": name })).await.expect(201);
    let token = admin.post("/tokens", json!({ "name": name, "user_id": user["id"] })).await.expect(201);
    admin.with_token(token["token"].as_str().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_messages_are_told_to_wait() {
    let server = start(|options| options.limits.messages = 3).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    let to_session = format!("/sessions/{}/messages", sandbox.session);
    let other = another_user(&admin, "other").await;
    for path in [&path, &to_session, &path] {
        admin.post(path, json!({ "content": "x" })).await.expect(201);
    }
    told_to_wait(admin.post(&path, json!({ "content": "x" })).await, "rate_limited");
    told_to_wait(admin.post(&to_session, json!({ "content": "x" })).await, "rate_limited");
    // Another token of the same person is the same person.
    let second = admin.post("/tokens", json!({ "name": "second" })).await.expect(201);
    let second = admin.with_token(second["token"].as_str().unwrap());
    told_to_wait(second.post(&path, json!({ "content": "x" })).await, "rate_limited");

    // Only messages are counted, and only this principal's.
    assert_eq!(admin.get(&path).await.expect(200)["items"].as_array().unwrap().len(), 3);
    admin.patch(&format!("/sessions/{}", sandbox.session), json!({ "title": "t" })).await.expect(200);
    other.post(&path, json!({ "content": "x" })).await.expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_writes_are_told_to_wait() {
    let server = start(|options| options.limits.writes = 5).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let session = format!("/sessions/{}", sandbox.session);
    for _ in 0..4 {
        admin.patch(&session, json!({ "title": "t" })).await.expect(200);
    }
    told_to_wait(admin.patch(&session, json!({ "title": "t" })).await, "rate_limited");
    told_to_wait(admin.post("/sandboxes", json!({})).await, "rate_limited");
    told_to_wait(admin.delete(&format!("/sandboxes/{}", sandbox.id)).await, "rate_limited");
    // What is refused costs its sender, too; reading, messages and workers go on.
    for _ in 0..20 {
        admin.get(&session).await.expect(200);
    }
    admin.post(&format!("/sandboxes/{}/messages", sandbox.id), json!({ "content": "x" })).await.expect(201);
    HandWorker::new(&admin, &sandbox).heartbeat("starting").await.expect(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catching_up_worker_is_slowed_not_refused() {
    const LIMIT: u32 = 90;
    let server = start(|options| options.limits.worker_requests = LIMIT).await;
    let admin = server.admin();
    let (sandbox, other) = (admin.external(json!({})).await, admin.external(json!({})).await);
    let worker = HandWorker::new(&admin, &sandbox);
    // More than a minute's worth at once: every one of them is stored in the end.
    for key in 1..=i64::from(LIMIT) + 3 {
        worker.batch(vec![event(key, "agent.message", json!({}))]).await.expect(200);
    }
    let stored = admin.all_events(&sandbox.id).await;
    let count = stored.iter().filter(|event| event["type"] == "agent.message").count();
    assert_eq!(count, LIMIT as usize + 3);
    HandWorker::new(&admin, &other).heartbeat("starting").await.expect(200);
    server.stop().await;
}

async fn follow(actor: &Actor, sandbox: &str) -> Response {
    let path = format!("/sandboxes/{sandbox}/events/stream?since=0");
    actor.request(Method::GET, &path).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_readers_are_told_to_wait() {
    let server = start(|options| options.limits.readers = 2).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    // A reader that is refused for another reason holds no place.
    let bad = format!("/sandboxes/{}/events/stream?type=A", sandbox.id);
    for _ in 0..3 {
        admin.get(&bad).await.refused(400, "bad_request");
    }
    let first = follow(&admin, &sandbox.id).await;
    let socket = format!("{}/api/v1/events/ws", server.url.replace("http", "ws"));
    let mut request = tokio_tungstenite::tungstenite::client::IntoClientRequest::into_client_request(socket).unwrap();
    let token = format!("Bearer {}", admin.token.as_ref().unwrap());
    request.headers_mut().insert("authorization", token.parse().unwrap());
    let (second, _) = tokio_tungstenite::connect_async(request.clone()).await.unwrap();
    assert_eq!(first.status(), 200);

    told_to_wait(Answer::of(follow(&admin, &sandbox.id).await).await, "too_many_readers");
    let refused = tokio_tungstenite::connect_async(request).await.unwrap_err();
    let tokio_tungstenite::tungstenite::Error::Http(refused) = refused else { panic!("{refused}") };
    assert_eq!(refused.status(), 429);
    // Everything else goes on, and who goes makes room.
    admin.get(&format!("/sandboxes/{}/events", sandbox.id)).await.expect(200);
    drop((first, second));
    loop {
        if follow(&admin, &sandbox.id).await.status() == 200 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    server.stop().await;
}
