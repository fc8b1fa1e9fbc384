//! Authentication: tokens, the Host header and the Origin header.

use super::{expect_safe_problem, request_web_socket, send_raw_request};
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::ManualWorker;
use atoll_tests::server::TestServer;
use reqwest::Method;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_complete_and_valid_token_authenticates() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let (admin, anon) = (server.admin(), server.anon());
    let token = admin.token.clone().unwrap();
    expect_safe_problem(anon.get("/sandboxes").await, 401, "unauthorized");
    let response = anon.request(Method::GET, "/sandboxes").send().await.unwrap();
    assert_eq!(response.headers()["www-authenticate"], "Bearer");

    let (name, secret) = token.rsplit_once('_').map_or((token.as_str(), ""), |(name, secret)| (name, secret));
    let mut flipped = secret.to_owned().into_bytes();
    flipped[0] = if flipped[0] == b'A' { b'B' } else { b'A' };
    let wrong = [
        String::new(),
        "garbage".into(),
        "atoll_".into(),
        name.to_owned(),
        format!("{name}_"),
        format!("{name}_{}", String::from_utf8(flipped).unwrap()),
        format!("{token}x"),
        token[..token.len() - 1].to_owned(),
        token.to_uppercase(),
        format!("atoll_{}_{secret}", "0".repeat(26)),
        format!("atoll_{}_{secret}", "'; DROP TABLE tokens; --"),
        "x".repeat(8000),
    ];
    for token in wrong {
        expect_safe_problem(anon.with_token(&token).get("/sandboxes").await, 401, "unauthorized");
    }
    for header in [format!("Basic {token}"), token.clone(), format!("Bearer{token}"), "Bearer".into()] {
        let request = anon.request(Method::GET, "/sandboxes").header("authorization", header);
        expect_safe_problem(anon.send(request).await, 401, "unauthorized");
    }
    // The server ignores tokens in the URL.
    for path in [format!("/sandboxes?token={token}"), format!("/sandboxes?access_token={token}")] {
        expect_safe_problem(anon.get(&path).await, 401, "unauthorized");
    }
    expect_safe_problem(
        request_web_socket(&anon, &format!("/events/ws?ticket={token}"), None).await,
        401,
        "unauthorized",
    );
    expect_safe_problem(request_web_socket(&anon, "/events/ws?ticket=", None).await, 401, "unauthorized");

    let created = admin.post("/tokens", json!({ "name": "short" })).await.expect_status(201);
    let other = anon.with_token(created["token"].as_str().unwrap());
    other.get("/sandboxes").await.expect_status(200);
    admin.delete(&format!("/tokens/{}", created["id"].as_str().unwrap())).await.expect_status(200);
    expect_safe_problem(other.get("/sandboxes").await, 401, "unauthorized");

    // A ticket opens one connection.
    let ticket = admin.post("/ws-tickets", json!({})).await.expect_status(201)["ticket"].as_str().unwrap().to_owned();
    assert_eq!(request_web_socket(&anon, &format!("/events/ws?ticket={ticket}"), None).await.status, 101);
    expect_safe_problem(
        request_web_socket(&anon, &format!("/events/ws?ticket={ticket}"), None).await,
        401,
        "unauthorized",
    );
    expect_safe_problem(admin.get("/events/ws").await, 400, "bad_request");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_token_works_only_for_its_own_sandbox() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let admin = server.admin();
    let (own, other) = (admin.create_external_sandbox(json!({})).await, admin.create_external_sandbox(json!({})).await);
    let worker = ManualWorker::new(&admin, &own);
    worker.send_heartbeat("starting").await.expect_status(200);
    let stranger = ManualWorker { sandbox_id: other.id.clone(), ..worker.clone() };
    expect_safe_problem(stranger.send_heartbeat("starting").await, 403, "forbidden");
    expect_safe_problem(stranger.send_batch(vec![]).await, 403, "forbidden");
    let path = |what: &str| format!("/sandboxes/{}/{what}", other.id);
    let lease = json!({ "stream": worker.stream });
    expect_safe_problem(worker.actor.post(&path("messages/lease"), lease).await, 403, "forbidden");
    expect_safe_problem(worker.actor.get(&format!("/sandboxes/{}", other.id)).await, 403, "forbidden");
    expect_safe_problem(worker.actor.get(&path("messages")).await, 403, "forbidden");
    expect_safe_problem(
        request_web_socket(&worker.actor, &path(&format!("stream?stream={}", worker.stream)), None).await,
        403,
        "forbidden",
    );

    // A new token revokes the old one at once.
    let new = admin.post(&format!("/sandboxes/{}/worker-token", own.id), json!({})).await.expect_status(201);
    expect_safe_problem(worker.send_heartbeat("working").await, 401, "unauthorized");
    let renewed = ManualWorker { actor: admin.with_token(new["token"].as_str().unwrap()), ..worker };
    renewed.send_heartbeat("working").await.expect_status(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_unknown_hosts_are_refused() {
    let server = TestServer::start_with(DatabaseKind::Sqlite, |options| {
        options.config.server.hosts = vec!["box.example".into()];
        options.config.server.public_url = Some("https://atoll.example:8443".into());
    })
    .await;
    let port = server.url.rsplit(':').next().unwrap();
    let get = async |target: &str, host: &str| {
        let request = format!("GET {target} HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        send_raw_request(&server.url, request.as_bytes()).await
    };
    for host in [
        "localhost".to_owned(),
        "LocalHost".to_owned(),
        format!("localhost:{port}"),
        "localhost:1".to_owned(),
        format!("127.0.0.1:{port}"),
        "127.0.0.2".to_owned(),
        "[::1]".to_owned(),
        format!("[::1]:{port}"),
        "box.example".to_owned(),
        "BOX.example:80".to_owned(),
        "atoll.example".to_owned(),
    ] {
        let answer = get("/healthz", &format!("Host: {host}\r\n")).await;
        assert_eq!(answer.status, 200, "{host}: {}", answer.body);
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "evil.example:7700",
        "localhost@evil.example",
        "evil.example@localhost",
        "user:password@localhost",
        "localhost, evil.example",
        "localhost evil.example",
        "localhost/evil.example",
        "localhost.",
        "127.0.0.1.evil.example",
        "0.0.0.0",
        "[::]",
        "[::ffff:8.8.8.8]",
        "[::1",
        "2130706433",
        "10.0.0.1",
        "localhost:port",
        "",
    ] {
        let answer = get("/healthz", &format!("Host: {host}\r\n")).await;
        assert_eq!(answer.status, 403, "{host}: {}", answer.body);
        expect_safe_problem(answer, 403, "foreign_host");
    }
    // The server checks the header even if the request target names a host.
    let absolute = format!("http://localhost:{port}/healthz");
    expect_safe_problem(get(&absolute, "Host: evil.example\r\n").await, 403, "foreign_host");
    expect_safe_problem(get(&absolute, "Host: a@localhost\r\n").await, 403, "foreign_host");
    let answer = get("/healthz", "").await;
    assert!([400, 403].contains(&answer.status.as_u16()), "a request without a host: {}", answer.body);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_origins_cannot_write() {
    let server = TestServer::start_with(DatabaseKind::Sqlite, |options| {
        options.config.server.public_url = Some("https://atoll.example:8443".into());
    })
    .await;
    let admin = server.admin();
    let port: u16 = server.url.rsplit(':').next().unwrap().parse().unwrap();
    let send = async |method: Method, path: &str, origin: &str| {
        admin.send(admin.request(method, path).header("origin", origin).json(&json!({}))).await
    };
    let own = server.url.clone();
    let foreign = [
        "https://evil.example".to_owned(),
        "null".to_owned(),
        "".to_owned(),
        "http://localhost.evil.example".to_owned(),
        "http://localhost@evil.example".to_owned(),
        format!("http://127.0.0.1:{}", port.wrapping_add(1)),
        "http://127.0.0.1".to_owned(),
        format!("http://localhost:{port}"),
        "https://atoll.example".to_owned(),
        "file://".to_owned(),
    ];
    for origin in &foreign {
        for (method, path) in
            [(Method::POST, "/sandboxes"), (Method::PATCH, "/x"), (Method::DELETE, "/x"), (Method::PUT, "/x")]
        {
            expect_safe_problem(send(method, path, origin).await, 403, "foreign_origin");
        }
        expect_safe_problem(request_web_socket(&admin, "/events/ws", Some(origin)).await, 403, "foreign_origin");
        // A foreign page may send reads, but without a CORS header it cannot see the response.
        let read = admin.request(Method::GET, "/sandboxes").header("origin", origin).send().await.unwrap();
        assert_eq!(read.status(), 200);
        assert!(!read.headers().contains_key("access-control-allow-origin"));
    }
    for origin in [own.as_str(), "https://atoll.example:8443"] {
        send(Method::POST, "/sandboxes", origin).await.expect_status(201);
        assert_eq!(request_web_socket(&admin, "/events/ws", Some(origin)).await.status, 101);
    }
    let headers = admin.request(Method::GET, "/sandboxes").send().await.unwrap().headers().clone();
    for (name, value) in [("x-content-type-options", "nosniff"), ("cache-control", "no-store")] {
        assert_eq!(headers[name], value);
    }
    assert!(headers["content-security-policy"].to_str().unwrap().contains("default-src 'none'"));
    server.stop().await;
}
