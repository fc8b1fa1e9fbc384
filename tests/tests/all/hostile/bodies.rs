//! Bodies that are too large, too deep, malformed or not JSON.

use super::{expect_safe_problem, send_as, send_raw_request, send_text};
use atoll_tests::actor::Actor;
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::{ManualWorker, build_event};
use atoll_tests::server::TestServer;
use flate2::Compression;
use flate2::write::GzEncoder;
use reqwest::Method;
use serde_json::{Value, json};
use std::io::Write;

const MB: usize = 1024 * 1024;

fn gzip_bytes(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

async fn send_encoded(actor: &Actor, path: &str, encoding: &str, body: Vec<u8>) -> atoll_tests::actor::ApiResponse {
    let request = actor.request(Method::POST, path).header("content-type", "application/json");
    actor.send(request.header("content-encoding", encoding).body(body)).await
}

/// Every route that accepts a client's JSON, with the ids filled in.
fn json_routes(sandbox: &str, session: &str, project: &str, user: &str) -> Vec<(Method, String)> {
    vec![
        (Method::POST, "/sandboxes".into()),
        (Method::POST, format!("/sandboxes/{sandbox}/stop")),
        (Method::POST, format!("/sandboxes/{sandbox}/messages")),
        (Method::PATCH, format!("/sessions/{session}")),
        (Method::POST, format!("/sessions/{session}/resume")),
        (Method::POST, format!("/sessions/{session}/fork")),
        (Method::POST, format!("/sessions/{session}/messages")),
        (Method::POST, "/projects".into()),
        (Method::PATCH, format!("/projects/{project}")),
        (Method::PUT, format!("/projects/{project}/members/{user}")),
        (Method::POST, "/users".into()),
        (Method::PATCH, format!("/users/{user}")),
        (Method::POST, "/tokens".into()),
        (Method::POST, "/gc".into()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_bodies_are_refused_on_every_route() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    let events = format!("/sandboxes/{}/events", sandbox.id);

    let large = json!({ "prompt": "x".repeat(2 * MB) }).to_string();
    expect_safe_problem(send_text(&admin, Method::POST, "/sandboxes", large.clone()).await, 413, "too_large");
    // Without a Content-Length header the server counts the bytes as they arrive.
    let pieces = large.into_bytes().chunks(64 * 1024).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let stream = futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>));
    let body = reqwest::Body::wrap_stream(stream);
    expect_safe_problem(send_text(&admin, Method::POST, "/sandboxes", body).await, 413, "too_large");
    let heartbeat = json!({ "x": "x".repeat(2 * MB) }).to_string();
    let path = format!("/sandboxes/{}/heartbeat", sandbox.id);
    expect_safe_problem(send_text(&worker.actor, Method::POST, &path, heartbeat).await, 413, "too_large");

    let big = vec![build_event(1, "agent.message", json!({ "x": "x".repeat(8 * MB) }))];
    expect_safe_problem(worker.send_batch(big).await, 413, "too_large");
    let many = (1..=501).map(|key| build_event(key, "agent.message", json!({}))).collect();
    expect_safe_problem(worker.send_batch(many).await, 413, "too_large");
    let most = (1..=500).map(|key| build_event(key, "agent.message", json!({}))).collect();
    assert_eq!(worker.send_batch(most).await.expect_status(200)["stored"], 500);

    // The server refuses a blob by its Content-Length, before any of its bytes arrive.
    let name = "0".repeat(64);
    let put = format!(
        "PUT /api/v1/sandboxes/{}/blobs/{name} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        sandbox.id,
        sandbox.token,
        64 * MB + 1
    );
    expect_safe_problem(send_raw_request(&server.url, put.as_bytes()).await, 413, "too_large");
    let left = std::fs::read_dir(server.data_dir().join("blobs/incoming")).unwrap().count();
    assert_eq!(left, 0, "a refused blob left a file");
    assert_eq!(admin.get(&events).await.expect_status(200)["items"].as_array().unwrap().len(), 100);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_bodies_are_limited_by_their_decompressed_size() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = admin.with_token(&sandbox.token);
    let events = format!("/sandboxes/{}/events", sandbox.id);

    let small = gzip_bytes(br#"{"provider":"external","title":"packed"}"#);
    let created = send_encoded(&admin, "/sandboxes", "gzip", small.clone()).await.expect_status(201);
    assert_eq!(created["provider"], "external");
    let bomb = gzip_bytes(&vec![b' '; 20 * MB]);
    assert!(bomb.len() < 64 * 1024, "the compressed bomb is too large for this test: {}", bomb.len());
    expect_safe_problem(send_encoded(&admin, "/sandboxes", "gzip", bomb.clone()).await, 413, "too_large");
    expect_safe_problem(send_encoded(&worker, &events, "gzip", bomb).await, 413, "too_large");
    expect_safe_problem(send_encoded(&admin, "/sandboxes", "gzip", small[..20].to_vec()).await, 400, "bad_request");
    expect_safe_problem(send_encoded(&admin, "/sandboxes", "gzip", b"{}".to_vec()).await, 400, "bad_request");
    expect_safe_problem(send_encoded(&admin, "/sandboxes", "br", b"{}".to_vec()).await, 415, "unsupported_media_type");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_json_is_refused_on_every_route() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let project = admin.post("/projects", json!({ "name": "p" })).await.expect_status(201);
    let user = admin.post("/users", json!({ "name": "u" })).await.expect_status(201);
    let (project, user) = (project["id"].as_str().unwrap(), user["id"].as_str().unwrap());
    let deep = format!("{{\"x\":{}1{}}}", "[".repeat(1000), "]".repeat(1000));

    for (method, path) in json_routes(&sandbox.id, &sandbox.session, project, user) {
        let bodies: Vec<Vec<u8>> = vec![
            deep.clone().into(),
            b"{\"\xff\":1}".to_vec(),
            b"\xef\xbb\xbf{}".to_vec(),
            br#"{"unknown_field":1}"#.to_vec(),
            br#"{"title":"\ud800"}"#.to_vec(),
            b"[]".to_vec(),
            b"[\"a\",\"b\"]".to_vec(),
            b"null".to_vec(),
            b"5".to_vec(),
            b"\"text\"".to_vec(),
            b"{".to_vec(),
            b"{} {}".to_vec(),
            b"{'a':1}".to_vec(),
            b"not json".to_vec(),
        ];
        for body in bodies {
            let excerpt = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            let answer = send_text(&admin, method.clone(), &path, body).await;
            assert_eq!(answer.status, 422, "{method} {path} with {excerpt}: {}", answer.body);
            expect_safe_problem(answer, 422, "invalid");
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", ""]
        {
            expect_safe_problem(
                send_as(&admin, method.clone(), &path, kind, "{}").await,
                415,
                "unsupported_media_type",
            );
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_types_and_duplicate_fields_are_refused() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let admin = server.admin();
    for body in [
        r#"{"provider":5}"#,
        r#"{"provider":"moon"}"#,
        r#"{"prompt":{}}"#,
        r#"{"prompt":["a"]}"#,
        r#"{"labels":[]}"#,
        r#"{"labels":{"a":1}}"#,
        r#"{"env":"A=B"}"#,
        r#"{"resources":{"cpu":"two"}}"#,
        r#"{"resources":{"gpu":1}}"#,
        r#"{"resources":7}"#,
        r#"{"resources":[]}"#,
        r#"{"resources":[1,1,1,1]}"#,
        r#"{"limits":[]}"#,
        r#"{"network":["all"]}"#,
        r#"{"repo":["https://example.org/x"]}"#,
        r#"{"resources":{"cpu":1e400}}"#,
        r#"{"timeout_s":-1}"#,
        r#"{"timeout_s":4294967296}"#,
        r#"{"timeout_s":1.5}"#,
        r#"{"network":{}}"#,
        r#"{"network":{"policy":"some"}}"#,
        r#"{"repo":"https://example.org/x"}"#,
        r#"{"repo":{"url":5}}"#,
        r#"{"limits":{"turns":-1}}"#,
        r#"{"tools":{}}"#,
        r#"{"mcp":[]}"#,
        r#"{"project_id":"ses_0000000000000000000000000"}"#,
        r#"{"session_id":5}"#,
        r#"{"title":"a","title":"b"}"#,
        r#"{"provider":"external","provider":"external"}"#,
    ] {
        expect_safe_problem(send_text(&admin, Method::POST, "/sandboxes", body).await, 422, "invalid");
    }
    let listed = admin.get("/sandboxes").await.expect_status(200);
    assert_eq!(listed["items"], json!([]), "an invalid request created a sandbox");

    // An empty body counts as an empty object, which is valid only if every field has a default.
    admin.send(admin.request(Method::POST, "/sandboxes")).await.expect_status(201);
    expect_safe_problem(admin.send(admin.request(Method::POST, "/users")).await, 422, "invalid");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_protocol_ignores_unknown_fields_and_refuses_malformed_bodies() {
    let server = TestServer::start(DatabaseKind::Sqlite).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    let at = "2026-01-01T00:00:00Z";
    let path = |what: &str| format!("/sandboxes/{}/{what}", sandbox.id);

    let heartbeat = json!({ "stream": worker.stream, "at": at, "activity": "starting", "mood": { "is": ["good"] } });
    worker.actor.post(&path("heartbeat"), heartbeat).await.expect_status(200);
    let newer = json!({ "key": 1, "type": "agent.message", "at": at, "data": {}, "newer": true });
    let batch = json!({ "stream": worker.stream, "events": [newer], "newer": [1, 2] });
    assert_eq!(worker.actor.post(&path("events"), batch).await.expect_status(200)["stored"], 1);
    let lease = json!({ "stream": worker.stream, "newer": {} });
    worker.actor.post(&path("messages/lease"), lease).await.expect_status(200);

    let bad_batches: &[&[u8]] = &[
        b"",
        b"[]",
        b"{}",
        b"null",
        br#"{"stream":"x","events":[]}"#,
        br#"{"stream":"00000000-0000-0000-0000-000000000001","events":{}}"#,
        br#"{"stream":"00000000-0000-0000-0000-000000000001","events":[{}]}"#,
        br#"{"stream":"00000000-0000-0000-0000-000000000001","events":[{"key":"1"}]}"#,
        br#"{"stream":"00000000-0000-0000-0000-000000000001","events":[{"key":1.5}]}"#,
        br#"{"stream":"00000000-0000-0000-0000-000000000001","events":[5]}"#,
        br#"{"stream":"00000000-0000-0000-0000-000000000001","events":[],"boot":"one"}"#,
        br#"{"event_type":"Not A Type","event_data":{}}"#,
        br#"{"event_type":5}"#,
        br#"{"event_type":"agent.message","source":"nobody"}"#,
        b"{\"event_type\":\"agent.message\",\"event_data\":\"\xff\"}",
    ];
    for body in bad_batches {
        let answer = send_text(&worker.actor, Method::POST, &path("events"), body.to_vec()).await;
        assert_eq!(answer.status, 422, "{}: {}", String::from_utf8_lossy(body), answer.body);
        expect_safe_problem(answer, 422, "not_a_batch");
    }
    let claimed = json!({ "event_type": "agent.message", "source": "guardian" });
    expect_safe_problem(worker.actor.post(&path("events"), claimed).await, 422, "invalid");
    for what in ["heartbeat", "messages/lease"] {
        for body in ["", "[]", "{}", r#"{"stream":5}"#] {
            expect_safe_problem(send_text(&worker.actor, Method::POST, &path(what), body).await, 422, "invalid");
        }
    }
    for what in ["events", "heartbeat", "messages/lease"] {
        let answer = send_as(&worker.actor, Method::POST, &path(what), "text/plain", "{}").await;
        expect_safe_problem(answer, 415, "unsupported_media_type");
    }

    // The server accepts a batch with invalid events and replaces each with a `worker.rejected` event.
    let raw_event = |key: i64, data: &str| {
        format!(r#"{{"key":{key},"type":"agent.message","source":"agent","at":"{at}","data":{data}}}"#)
    };
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    let events = [raw_event(2, &deep), raw_event(3, r#"{"x":"\ud800"}"#), raw_event(4, "[1e999]")].join(",");
    let body = format!(r#"{{"stream":"{}","events":[{events}]}}"#, worker.stream);
    let answer = send_text(&worker.actor, Method::POST, &path("events"), body).await.expect_status(200);
    assert_eq!((answer["stored"].as_i64(), answer["last_key"].as_i64()), (Some(0), Some(4)));
    super::assert_nothing_internal(&answer["rejected"]);
    let events = admin.all_events(&sandbox.id).await;
    let rejected: Vec<&Value> = events.iter().filter(|event| event["type"] == "worker.rejected").collect();
    assert_eq!(rejected.len(), 3);
    server.stop().await;
}
