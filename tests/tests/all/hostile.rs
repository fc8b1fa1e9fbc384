//! Hostile input: each refusal has the right status and code, and reveals no internals.

mod authentication;
mod bodies;
mod field_validation;
mod hostile_worker;
mod idempotency;
mod queries;

use atoll_tests::actor::{Actor, ApiResponse};
use reqwest::Method;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Terms that would reveal the server's implementation.
const INTERNAL_TERMS: &[&str] = &[
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
fn assert_nothing_internal(body: &Value) {
    let text = body.to_string().to_lowercase();
    let found: Vec<&&str> = INTERNAL_TERMS.iter().filter(|word| text.contains(**word)).collect();
    assert!(found.is_empty(), "{found:?} in {body}");
}

/// Checks a problem response, and that it reveals no internals.
#[track_caller]
fn expect_safe_problem(answer: ApiResponse, status: u16, code: &str) -> Value {
    let body = answer.expect_problem(status, code);
    assert_nothing_internal(&body);
    assert!(!body["detail"].as_str().unwrap().is_empty(), "{body}");
    body
}

/// Sends a raw body with this content type.
async fn send_as(actor: &Actor, method: Method, path: &str, kind: &str, body: impl Into<reqwest::Body>) -> ApiResponse {
    actor.send(actor.request(method, path).header("content-type", kind).body(body)).await
}

async fn send_text(actor: &Actor, method: Method, path: &str, body: impl Into<reqwest::Body>) -> ApiResponse {
    send_as(actor, method, path, "application/json", body).await
}

/// Requests a WebSocket upgrade and returns the response, accepted or not.
async fn request_web_socket(actor: &Actor, path: &str, origin: Option<&str>) -> ApiResponse {
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
        // An upgrade has no body to wait for.
        return ApiResponse {
            status: response.status(),
            body: Value::Null,
            content_type: String::new(),
            retry_after: None,
        };
    }
    ApiResponse::from_response(response).await
}

/// Sends raw bytes that no HTTP client would send. The request must contain `Connection: close`.
async fn send_raw_request(url: &str, request: &[u8]) -> ApiResponse {
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
    ApiResponse {
        status: status.try_into().unwrap(),
        body: serde_json::from_str(body).unwrap_or(Value::String(body.to_owned())),
        content_type: header("content-type:").unwrap_or_default(),
        retry_after: header("retry-after:"),
    }
}
