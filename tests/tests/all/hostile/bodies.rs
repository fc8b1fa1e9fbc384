//! Bodies that are too large, too deep, in the wrong form, or no JSON at all.

use super::{raw, refused, send_as, send_text};
use atoll_tests::actor::Actor;
use atoll_tests::database::Kind;
use atoll_tests::server::TestServer;
use atoll_tests::worker::{HandWorker, event};
use flate2::Compression;
use flate2::write::GzEncoder;
use reqwest::Method;
use serde_json::{Value, json};
use std::io::Write;

const MB: usize = 1024 * 1024;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

async fn send_encoded(actor: &Actor, path: &str, encoding: &str, body: Vec<u8>) -> atoll_tests::actor::Answer {
    let request = actor.request(Method::POST, path).header("content-type", "application/json");
    actor.send(request.header("content-encoding", encoding).body(body)).await
}

/// Every route that takes a client's JSON, with a sandbox to name in it.
fn routes(sandbox: &str, session: &str, project: &str, user: &str) -> Vec<(Method, String)> {
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
async fn what_is_too_large_is_refused_on_every_route() {
    let server = TestServer::start(Kind::Sqlite).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let worker = HandWorker::new(&admin, &sandbox);
    let events = format!("/sandboxes/{}/events", sandbox.id);

    let large = json!({ "prompt": "x".repeat(2 * MB) }).to_string();
    refused(send_text(&admin, Method::POST, "/sandboxes", large.clone()).await, 413, "too_large");
    // Without a length in front the bytes are counted as they come.
    let pieces = large.into_bytes().chunks(64 * 1024).map(<[u8]>::to_vec).collect::<Vec<_>>();
    let stream = futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>));
    let body = reqwest::Body::wrap_stream(stream);
    refused(send_text(&admin, Method::POST, "/sandboxes", body).await, 413, "too_large");
    let beat = json!({ "x": "x".repeat(2 * MB) }).to_string();
    let path = format!("/sandboxes/{}/heartbeat", sandbox.id);
    refused(send_text(&worker.actor, Method::POST, &path, beat).await, 413, "too_large");

    let big = vec![event(1, "agent.message", json!({ "x": "x".repeat(8 * MB) }))];
    refused(worker.batch(big).await, 413, "too_large");
    let many = (1..=501).map(|key| event(key, "agent.message", json!({}))).collect();
    refused(worker.batch(many).await, 413, "too_large");
    let most = (1..=500).map(|key| event(key, "agent.message", json!({}))).collect();
    assert_eq!(worker.batch(most).await.expect(200)["stored"], 500);

    // A blob says its length first; nothing of it has to arrive.
    let name = "0".repeat(64);
    let put = format!(
        "PUT /api/v1/sandboxes/{}/blobs/{name} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        sandbox.id,
        sandbox.token,
        64 * MB + 1
    );
    refused(raw(&server.url, put.as_bytes()).await, 413, "too_large");
    let left = std::fs::read_dir(server.data_dir().join("blobs/incoming")).unwrap().count();
    assert_eq!(left, 0, "nothing is left of a refused blob");
    assert_eq!(admin.get(&events).await.expect(200)["items"].as_array().unwrap().len(), 100);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packed_bodies_are_bounded_by_what_they_unpack_to() {
    let server = TestServer::start(Kind::Sqlite).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let worker = admin.with_token(&sandbox.token);
    let events = format!("/sandboxes/{}/events", sandbox.id);

    let small = gzip(br#"{"provider":"external","title":"packed"}"#);
    let made = send_encoded(&admin, "/sandboxes", "gzip", small.clone()).await.expect(201);
    assert_eq!(made["provider"], "external");
    let bomb = gzip(&vec![b' '; 20 * MB]);
    assert!(bomb.len() < 64 * 1024, "a bomb is small: {}", bomb.len());
    refused(send_encoded(&admin, "/sandboxes", "gzip", bomb.clone()).await, 413, "too_large");
    refused(send_encoded(&worker, &events, "gzip", bomb).await, 413, "too_large");
    refused(send_encoded(&admin, "/sandboxes", "gzip", small[..20].to_vec()).await, 400, "bad_request");
    refused(send_encoded(&admin, "/sandboxes", "gzip", b"{}".to_vec()).await, 400, "bad_request");
    refused(send_encoded(&admin, "/sandboxes", "br", b"{}".to_vec()).await, 415, "unsupported_media_type");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_object_of_the_right_form_is_refused() {
    let server = TestServer::start(Kind::Sqlite).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let project = admin.post("/projects", json!({ "name": "p" })).await.expect(201);
    let user = admin.post("/users", json!({ "name": "u" })).await.expect(201);
    let (project, user) = (project["id"].as_str().unwrap(), user["id"].as_str().unwrap());
    let deep = format!("{{\"x\":{}1{}}}", "[".repeat(1000), "]".repeat(1000));

    for (method, path) in routes(&sandbox.id, &sandbox.session, project, user) {
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
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            let answer = send_text(&admin, method.clone(), &path, body).await;
            assert_eq!(answer.status, 422, "{method} {path} with {shown}: {}", answer.body);
            refused(answer, 422, "invalid");
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx", ""]
        {
            refused(send_as(&admin, method.clone(), &path, kind, "{}").await, 415, "unsupported_media_type");
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_types_and_repeated_names_are_refused() {
    let server = TestServer::start(Kind::Sqlite).await;
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
        refused(send_text(&admin, Method::POST, "/sandboxes", body).await, 422, "invalid");
    }
    let listed = admin.get("/sandboxes").await.expect(200);
    assert_eq!(listed["items"], json!([]), "nothing was made");

    // An empty body is an empty object: right where everything has a default, wrong elsewhere.
    admin.send(admin.request(Method::POST, "/sandboxes")).await.expect(201);
    refused(admin.send(admin.request(Method::POST, "/users")).await, 422, "invalid");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_worker_protocol_passes_over_what_it_doesn_t_know_and_refuses_the_rest() {
    let server = TestServer::start(Kind::Sqlite).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let worker = HandWorker::new(&admin, &sandbox);
    let at = "2026-01-01T00:00:00Z";
    let path = |what: &str| format!("/sandboxes/{}/{what}", sandbox.id);

    let beat = json!({ "stream": worker.stream, "at": at, "activity": "starting", "mood": { "is": ["good"] } });
    worker.actor.post(&path("heartbeat"), beat).await.expect(200);
    let newer = json!({ "key": 1, "type": "agent.message", "at": at, "data": {}, "newer": true });
    let batch = json!({ "stream": worker.stream, "events": [newer], "newer": [1, 2] });
    assert_eq!(worker.actor.post(&path("events"), batch).await.expect(200)["stored"], 1);
    let lease = json!({ "stream": worker.stream, "newer": {} });
    worker.actor.post(&path("messages/lease"), lease).await.expect(200);

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
        refused(answer, 422, "not_a_batch");
    }
    let claimed = json!({ "event_type": "agent.message", "source": "guardian" });
    refused(worker.actor.post(&path("events"), claimed).await, 422, "invalid");
    for what in ["heartbeat", "messages/lease"] {
        for body in ["", "[]", "{}", r#"{"stream":5}"#] {
            refused(send_text(&worker.actor, Method::POST, &path(what), body).await, 422, "invalid");
        }
    }
    for what in ["events", "heartbeat", "messages/lease"] {
        let answer = send_as(&worker.actor, Method::POST, &path(what), "text/plain", "{}").await;
        refused(answer, 415, "unsupported_media_type");
    }

    // A single bad event is consumed and replaced; a reader's parser is not to choke on it either.
    let raw_event = |key: i64, data: &str| {
        format!(r#"{{"key":{key},"type":"agent.message","source":"agent","at":"{at}","data":{data}}}"#)
    };
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    let events = [raw_event(2, &deep), raw_event(3, r#"{"x":"\ud800"}"#), raw_event(4, "[1e999]")].join(",");
    let body = format!(r#"{{"stream":"{}","events":[{events}]}}"#, worker.stream);
    let answer = send_text(&worker.actor, Method::POST, &path("events"), body).await.expect(200);
    assert_eq!((answer["stored"].as_i64(), answer["last_key"].as_i64()), (Some(0), Some(4)));
    super::says_nothing_internal(&answer["rejected"]);
    let events = admin.all_events(&sandbox.id).await;
    let rejected: Vec<&Value> = events.iter().filter(|event| event["type"] == "worker.rejected").collect();
    assert_eq!(rejected.len(), 3);
    server.stop().await;
}
