//! Sign-in to the web page: links, cookies, refused requests of other pages, and the end of a sign-in.

use atoll_core::time::{Clock, ManualClock, SystemClock};
use atoll_test_wait::WAIT_TIMEOUT;
use atoll_tests::actor::{Actor, ApiResponse, build_http_client};
use atoll_tests::database::DatabaseKind;
use atoll_tests::on_both_databases;
use atoll_tests::server::TestServer;
use futures_util::StreamExt;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

on_both_databases!(
    a_link_signs_in_once_with_a_strict_cookie,
    a_sign_in_ends_by_age_and_without_use,
    a_sign_in_ends_with_its_token_or_user,
    users_list_and_end_only_their_own_sign_ins,
);

/// A browser on the page.
struct Page {
    anon: Actor,
    cookie: String,
    /// The response that signed in.
    started: Value,
}

async fn post_sign_in(anon: &Actor, body: Value) -> reqwest::Response {
    anon.request(Method::POST, "/sign-in-sessions").json(&body).send().await.unwrap()
}

impl Page {
    async fn sign_in(anon: &Actor, body: Value) -> Self {
        let response = post_sign_in(anon, body).await;
        let cookie = response.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
        let started = ApiResponse::from_response(response).await.expect_status(201);
        Self { anon: anon.clone(), cookie, started }
    }

    /// A request with the cookie but without the page's header.
    fn foreign_request(&self, method: Method, path: &str) -> RequestBuilder {
        self.anon.request(method, path).header("cookie", &self.cookie)
    }

    async fn send(&self, method: Method, path: &str) -> ApiResponse {
        self.anon.send(self.foreign_request(method, path).header("x-atoll-page", "1")).await
    }

    async fn list(&self) -> Vec<Value> {
        let list = self.send(Method::GET, "/sign-in-sessions").await.expect_status(200);
        list["items"].as_array().unwrap().clone()
    }
}

async fn link_code(actor: &Actor) -> String {
    let link = actor.post("/sign-in-links", json!({})).await.expect_status(201);
    link["path"].as_str().unwrap().strip_prefix("/sign-in#code=").unwrap().to_owned()
}

async fn create_member(admin: &Actor, name: &str) -> (String, Value) {
    let user = admin.post("/users", json!({ "name": name, "role": "member" })).await.expect_status(201);
    let id = user["id"].as_str().unwrap().to_owned();
    let token = admin.post("/tokens", json!({ "name": name, "user_id": id })).await.expect_status(201);
    (id, token)
}

async fn a_link_signs_in_once_with_a_strict_cookie(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let code = link_code(&server.admin()).await;
    let response = post_sign_in(&server.anon(), json!({ "code": code })).await;
    let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    let (pair, attributes) = cookie.split_once("; ").unwrap();
    assert!(pair.starts_with("atoll_session=sin_"), "{cookie}");
    assert_eq!(attributes, "Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict");
    let started = ApiResponse::from_response(response).await.expect_status(201);
    assert_eq!((&started["user"]["name"], &started["user"]["role"]), (&json!("admin"), &json!("admin")));

    let page = Page { anon: server.anon(), cookie: pair.to_owned(), started };
    let me = page.send(Method::GET, "/me").await.expect_status(200);
    assert_eq!((&me["sign_in_id"], &me["user"]["name"]), (&page.started["id"], &json!("admin")));
    assert_eq!(server.admin().get("/me").await.expect_status(200)["sign_in_id"], Value::Null);
    // Behind a proxy with TLS, no other host can set the cookie.
    let again = server.anon().request(Method::POST, "/sign-in-sessions").header("x-forwarded-proto", "https");
    let again = again.json(&json!({ "code": link_code(&server.admin()).await })).send().await.unwrap();
    let cookie = again.headers()["set-cookie"].to_str().unwrap();
    assert!(cookie.starts_with("__Host-atoll_session=") && cookie.ends_with("; Secure"), "{cookie}");

    for body in [json!({ "code": code }), json!({ "code": "x" }), json!({ "api_key": "atoll_garbage" })] {
        let response = post_sign_in(&server.anon(), body).await;
        assert!(response.headers().get("set-cookie").is_none());
        ApiResponse::from_response(response).await.expect_problem(401, "unauthorized");
    }
    for body in [json!({}), json!({ "code": "x", "api_key": "y" })] {
        server.anon().post("/sign-in-sessions", body).await.expect_problem(422, "invalid");
    }
    let sandbox = server.admin().create_external_sandbox(json!({})).await;
    server
        .anon()
        .post("/sign-in-sessions", json!({ "api_key": sandbox.token }))
        .await
        .expect_problem(401, "unauthorized");
    server.stop().await;
}

async fn a_sign_in_ends_by_age_and_without_use(kind: DatabaseKind) {
    let clock = Arc::new(ManualClock::starting_at(SystemClock::start().now()));
    let change = |options: &mut atoll_server::Options| {
        options.config.sign_in.lifetime = Duration::from_secs(1000);
        options.config.sign_in.idle = Duration::from_secs(300);
    };
    let server = TestServer::start_with_clock(kind, change, Some(clock.clone())).await;
    let (anon, code) = (server.anon(), link_code(&server.admin()).await);
    let page = Page::sign_in(&anon, json!({ "code": code })).await;
    let unused = Page::sign_in(&anon, json!({ "code": link_code(&server.admin()).await })).await;
    for _ in 0..4 {
        clock.advance(Duration::from_secs(240));
        page.send(Method::GET, "/me").await.expect_status(200);
    }
    unused.send(Method::GET, "/me").await.expect_problem(401, "unauthorized");
    assert_eq!(page.list().await.len(), 1, "the list has only live sign-ins");
    clock.advance(Duration::from_secs(41));
    page.send(Method::GET, "/me").await.expect_problem(401, "unauthorized");
    server.admin().post("/gc", json!({})).await.expect_status(200);
    assert_eq!(server.admin().get("/sign-in-sessions").await.expect_status(200)["items"], json!([]));
    server.stop().await;
}

async fn a_sign_in_ends_with_its_token_or_user(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let (user, token) = create_member(&admin, "ada").await;
    let second = admin.post("/tokens", json!({ "name": "second", "user_id": user })).await.expect_status(201);
    let by_token = Page::sign_in(&server.anon(), json!({ "api_key": token["token"] })).await;
    let by_second = Page::sign_in(&server.anon(), json!({ "api_key": second["token"] })).await;
    assert_eq!(by_token.started["user"]["id"], json!(user));
    by_token.send(Method::GET, "/users").await.expect_problem(403, "forbidden");
    admin.delete(&format!("/tokens/{}", token["id"].as_str().unwrap())).await.expect_status(200);
    by_token.send(Method::GET, "/me").await.expect_problem(401, "unauthorized");
    by_second.send(Method::GET, "/me").await.expect_status(200);
    admin.delete(&format!("/users/{user}")).await.expect_status(200);
    by_second.send(Method::GET, "/me").await.expect_problem(401, "unauthorized");
    server.stop().await;
}

async fn users_list_and_end_only_their_own_sign_ins(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let (anon, admin) = (server.anon(), server.admin());
    let (_, token) = create_member(&admin, "ada").await;
    let first = Page::sign_in(&anon, json!({ "api_key": token["token"] })).await;
    let second = Page::sign_in(&anon, json!({ "api_key": token["token"] })).await;
    let own_list = first.list().await;
    let ids: Vec<&Value> = own_list.iter().map(|item| &item["id"]).collect();
    assert_eq!(ids, [&first.started["id"], &second.started["id"]]);
    assert_eq!([&own_list[0]["is_current"], &own_list[1]["is_current"]], [true, false]);
    let path = |page: &Page| format!("/sign-in-sessions/{}", page.started["id"].as_str().unwrap());
    admin.delete(&path(&first)).await.expect_problem(404, "not_found");
    admin.delete("/sign-in-sessions/current").await.expect_problem(404, "not_found");
    first.send(Method::DELETE, &path(&second)).await.expect_status(200);
    second.send(Method::GET, "/me").await.expect_problem(401, "unauthorized");
    let out = first.foreign_request(Method::DELETE, "/sign-in-sessions/current").header("x-atoll-page", "1");
    let out = out.send().await.unwrap();
    assert!(out.headers()["set-cookie"].to_str().unwrap().starts_with("atoll_session=; Path=/; Max-Age=0;"));
    first.send(Method::GET, "/me").await.expect_problem(401, "unauthorized");

    // The newest 50 sign-ins stay.
    for _ in 0..51 {
        drop(Page::sign_in(&anon, json!({ "api_key": token["token"] })).await);
    }
    let ada = admin.with_token(token["token"].as_str().unwrap());
    let listed = ada.get("/sign-in-sessions").await.expect_status(200);
    assert_eq!(listed["items"].as_array().unwrap().len(), 50);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cookie_works_only_for_requests_of_the_page() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let page = Page::sign_in(&server.anon(), json!({ "code": link_code(&server.admin()).await })).await;
    let send = |request: RequestBuilder| page.anon.send(request);
    let write = || page.foreign_request(Method::POST, "/ws-tickets");
    send(write()).await.expect_problem(403, "csrf");
    send(write().header("x-atoll-page", "2")).await.expect_problem(403, "csrf");
    let own = || write().header("x-atoll-page", "1");
    send(own()).await.expect_status(201);
    send(own().header("sec-fetch-site", "same-site")).await.expect_problem(403, "csrf");
    send(own().header("origin", "http://evil.example")).await.expect_problem(403, "foreign_origin");
    let read = || page.foreign_request(Method::GET, "/me");
    send(read()).await.expect_status(200);
    send(read().header("sec-fetch-site", "cross-site")).await.expect_problem(403, "csrf");
    // A page of a preview reads nothing, whether or not it has a cookie.
    let preview = "http://abcdefghijklmnopqrstuvwxyz234567.localhost:7700";
    send(read().header("origin", preview)).await.expect_problem(403, "foreign_origin");

    let socket = |origin: Option<&str>| {
        let mut request =
            format!("{}/api/v1/events/ws", server.url.replace("http", "ws")).into_client_request().unwrap();
        request.headers_mut().insert("cookie", page.cookie.parse().unwrap());
        if let Some(origin) = origin {
            request.headers_mut().insert("origin", origin.parse().unwrap());
        }
        tokio_tungstenite::connect_async(request)
    };
    for foreign in [None, Some("http://evil.example"), Some(preview)] {
        assert!(socket(foreign).await.is_err(), "{foreign:?}");
    }
    let (mut open, _) = socket(Some(&server.url)).await.unwrap();
    page.send(Method::DELETE, "/sign-in-sessions/current").await.expect_status(200);
    // Signing out ends what the page has open.
    let frames = async { while let Some(Ok(_)) = open.next().await {} };
    tokio::time::timeout(WAIT_TIMEOUT, frames).await.expect("the socket stays open");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_to_sign_in_are_limited() {
    let few = std::num::NonZeroU32::new(3);
    let server =
        TestServer::start_with(DatabaseKind::Sqlite, |options| options.config.limits.sign_ins_per_minute = few).await;
    for _ in 0..3 {
        server.anon().post("/sign-in-sessions", json!({ "code": "guess" })).await.expect_problem(401, "unauthorized");
    }
    let limited = server.anon().post("/sign-in-sessions", json!({ "code": "guess" })).await;
    assert!(limited.retry_after.is_some());
    limited.expect_problem(429, "rate_limited");
    server.admin().get("/me").await.expect_status(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_root_answers_with_a_page_that_confines_itself() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let response = build_http_client().get(&server.url).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let headers = response.headers();
    let policy = headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'; script-src 'self'") && policy.contains("frame-ancestors 'none'"));
    for (name, value) in [
        ("x-frame-options", "DENY"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    assert!(response.text().await.unwrap().contains("make build"));
    server.anon().get("/api/v1/nothing").await.expect_problem(404, "not_found");
    server.stop().await;
}
