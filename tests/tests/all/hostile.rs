//! Hostile input: each refusal has its status and code, and says nothing of the inside.

mod bodies;
mod doors;
mod once;
mod queries;
mod words;
mod worker;

use atoll_tests::actor::{Actor, Answer};
use reqwest::Method;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What would tell an outsider how the server is made.
const INTERNAL: &[&str] = &[
    "sql",
    "select ",
    "insert ",
    "postgres",
    "serde",
    "tokio",
    "axum",
    "hyper",
    "atoll_core",
    "atoll_server",
    "atoll_store",
    "panicked",
    "unwrap",
    "backtrace",
    "thread '",
    "struct ",
    "enum ",
    "::",
    "option<",
    "vec<",
    ".rs",
    "/tmp",
    "/root",
    "/home",
    "/usr",
    "i64",
    "u32",
    "u64",
    "f64",
    "usize",
];

#[track_caller]
fn says_nothing_internal(body: &Value) {
    let text = body.to_string().to_lowercase();
    let found: Vec<&&str> = INTERNAL.iter().filter(|word| text.contains(**word)).collect();
    assert!(found.is_empty(), "{found:?} in {body}");
}

/// The right refusal, with nothing internal in it.
#[track_caller]
fn refused(answer: Answer, status: u16, code: &str) -> Value {
    let body = answer.refused(status, code);
    says_nothing_internal(&body);
    assert!(!body["detail"].as_str().unwrap().is_empty(), "{body}");
    body
}

/// A body as it is, with this content type.
async fn send_as(actor: &Actor, method: Method, path: &str, kind: &str, body: impl Into<reqwest::Body>) -> Answer {
    actor.send(actor.request(method, path).header("content-type", kind).body(body)).await
}

async fn send_text(actor: &Actor, method: Method, path: &str, body: impl Into<reqwest::Body>) -> Answer {
    send_as(actor, method, path, "application/json", body).await
}

/// Asks for a WebSocket, and takes whatever answer comes.
async fn upgrade(actor: &Actor, path: &str, origin: Option<&str>) -> Answer {
    let mut request = actor.request(Method::GET, path);
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ] {
        request = request.header(name, value);
    }
    if let Some(origin) = origin {
        request = request.header("origin", origin);
    }
    let response = request.send().await.unwrap();
    if response.status() == 101 {
        // There is no body to wait for.
        return Answer { status: response.status(), body: Value::Null, content_type: String::new(), retry_after: None };
    }
    Answer::of(response).await
}

/// Bytes on the wire as they are, for what no client would send. They must ask for the connection to be closed.
async fn raw(url: &str, request: &[u8]) -> Answer {
    let address = url.trim_start_matches("http://");
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    socket.write_all(request).await.unwrap();
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).await.unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let header = |name: &str| {
        let line = head.lines().find(|line| line.to_lowercase().starts_with(name));
        line.map(|line| line[name.len()..].trim().to_owned())
    };
    let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer {
        status: status.try_into().unwrap(),
        body: serde_json::from_str(body).unwrap_or(Value::String(body.to_owned())),
        content_type: header("content-type:").unwrap_or_default(),
        retry_after: header("retry-after:"),
    }
}
