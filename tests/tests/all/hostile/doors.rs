//! Who is let in at all: tokens, the Host header, the Origin of a page.

use super::{raw, refused, upgrade};
use atoll_tests::database::Kind;
use atoll_tests::server::TestServer;
use atoll_tests::worker::HandWorker;
use reqwest::Method;
use serde_json::json;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_whole_and_living_token_opens() {
    let server = TestServer::start(Kind::Sqlite).await;
    let (admin, anon) = (server.admin(), server.anon());
    let token = admin.token.clone().unwrap();
    refused(anon.get("/sandboxes").await, 401, "unauthorized");
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
        refused(anon.with_token(&token).get("/sandboxes").await, 401, "unauthorized");
    }
    for header in [format!("Basic {token}"), token.clone(), format!("Bearer{token}"), "Bearer".into()] {
        let request = anon.request(Method::GET, "/sandboxes").header("authorization", header);
        refused(anon.send(request).await, 401, "unauthorized");
    }
    // Never in the URL, nor in a cookie that nobody set.
    for path in [format!("/sandboxes?token={token}"), format!("/sandboxes?access_token={token}")] {
        refused(anon.get(&path).await, 401, "unauthorized");
    }
    refused(upgrade(&anon, &format!("/events/ws?ticket={token}"), None).await, 401, "unauthorized");
    refused(upgrade(&anon, "/events/ws?ticket=", None).await, 401, "unauthorized");

    let made = admin.post("/tokens", json!({ "name": "short" })).await.expect(201);
    let other = anon.with_token(made["token"].as_str().unwrap());
    other.get("/sandboxes").await.expect(200);
    admin.delete(&format!("/tokens/{}", made["id"].as_str().unwrap())).await.expect(200);
    refused(other.get("/sandboxes").await, 401, "unauthorized");

    // A ticket is good once.
    let ticket = admin.post("/ws-tickets", json!({})).await.expect(201)["ticket"].as_str().unwrap().to_owned();
    assert_eq!(upgrade(&anon, &format!("/events/ws?ticket={ticket}"), None).await.status, 101);
    refused(upgrade(&anon, &format!("/events/ws?ticket={ticket}"), None).await, 401, "unauthorized");
    refused(admin.get("/events/ws").await, 400, "bad_request");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_s_token_is_for_its_own_sandbox_only() {
    let server = TestServer::start(Kind::Sqlite).await;
    let admin = server.admin();
    let (own, other) = (admin.external(json!({})).await, admin.external(json!({})).await);
    let worker = HandWorker::new(&admin, &own);
    worker.heartbeat("starting").await.expect(200);
    let stranger = HandWorker { id: other.id.clone(), ..worker.clone() };
    refused(stranger.heartbeat("starting").await, 403, "forbidden");
    refused(stranger.batch(vec![]).await, 403, "forbidden");
    let path = |what: &str| format!("/sandboxes/{}/{what}", other.id);
    let lease = json!({ "stream": worker.stream });
    refused(worker.actor.post(&path("messages/lease"), lease).await, 403, "forbidden");
    refused(worker.actor.get(&format!("/sandboxes/{}", other.id)).await, 403, "forbidden");
    refused(worker.actor.get(&path("messages")).await, 403, "forbidden");
    refused(upgrade(&worker.actor, &path(&format!("stream?stream={}", worker.stream)), None).await, 403, "forbidden");

    // A new token ends the old one at once.
    let new = admin.post(&format!("/sandboxes/{}/worker-token", own.id), json!({})).await.expect(201);
    refused(worker.heartbeat("working").await, 401, "unauthorized");
    let renewed = HandWorker { actor: admin.with_token(new["token"].as_str().unwrap()), ..worker };
    renewed.heartbeat("working").await.expect(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_own_hosts_are_served() {
    let server = TestServer::start_with(Kind::Sqlite, |options| {
        options.hosts = vec!["box.example".into()];
        options.public_url = Some("https://atoll.example:8443".into());
    })
    .await;
    let port = server.url.rsplit(':').next().unwrap();
    let ask = async |target: &str, host: &str| {
        let request = format!("GET {target} HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        raw(&server.url, request.as_bytes()).await
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
        let answer = ask("/healthz", &format!("Host: {host}\r\n")).await;
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
        let answer = ask("/healthz", &format!("Host: {host}\r\n")).await;
        assert_eq!(answer.status, 403, "{host}: {}", answer.body);
        refused(answer, 403, "foreign_host");
    }
    // The header counts where the target names a host too.
    let absolute = format!("http://localhost:{port}/healthz");
    refused(ask(&absolute, "Host: evil.example\r\n").await, 403, "foreign_host");
    refused(ask(&absolute, "Host: a@localhost\r\n").await, 403, "foreign_host");
    let answer = ask("/healthz", "").await;
    assert!([400, 403].contains(&answer.status.as_u16()), "a request without a host: {}", answer.body);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_origins_may_not_write() {
    let server = TestServer::start_with(Kind::Sqlite, |options| {
        options.public_url = Some("https://atoll.example:8443".into());
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
            refused(send(method, path, origin).await, 403, "foreign_origin");
        }
        refused(upgrade(&admin, "/events/ws", Some(origin)).await, 403, "foreign_origin");
        // What it may ask for it still can't read: nothing allows another origin to.
        let read = admin.request(Method::GET, "/sandboxes").header("origin", origin).send().await.unwrap();
        assert_eq!(read.status(), 200);
        assert!(!read.headers().contains_key("access-control-allow-origin"));
    }
    for origin in [own.as_str(), "https://atoll.example:8443"] {
        send(Method::POST, "/sandboxes", origin).await.expect(201);
        assert_eq!(upgrade(&admin, "/events/ws", Some(origin)).await.status, 101);
    }
    let headers = admin.request(Method::GET, "/sandboxes").send().await.unwrap().headers().clone();
    for (name, value) in [("x-content-type-options", "nosniff"), ("cache-control", "no-store")] {
        assert_eq!(headers[name], value);
    }
    assert!(headers["content-security-policy"].to_str().unwrap().contains("default-src 'none'"));
    server.stop().await;
}
