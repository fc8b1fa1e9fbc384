//! HTTP client of OpenCode's server, with its event stream.

use super::request::sanitize_id;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_RESPONSE_BYTES: usize = 1 << 20;
/// A longer event ends the bridge with an error.
const MAX_EVENT_BYTES: usize = 64 << 20;

#[derive(Clone)]
pub(super) struct ServerClient {
    address: SocketAddr,
    authorization: String,
    directory: String,
}

/// Omits the password.
impl std::fmt::Debug for ServerClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}", self.address)
    }
}

impl ServerClient {
    pub(super) fn new(address: SocketAddr, password: &str, directory: &str) -> Self {
        let authorization = format!("Basic {}", encode_base64(format!("opencode:{password}").as_bytes()));
        Self { address, authorization, directory: directory.to_owned() }
    }

    async fn send_request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Response<Incoming>, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{method} {path}: {error}");
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(self.address)).await;
        let stream = connected.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(header::HOST, self.address.to_string());
        request = request.header(header::AUTHORIZATION, &self.authorization);
        request = request.header("x-opencode-directory", percent_encode(&self.directory));
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = Full::new(Bytes::from(body.map(Value::to_string).unwrap_or_default()));
        let request = request.body(body).map_err(|error| failed(&error))?;
        sender.send_request(request).await.map_err(|error| failed(&error))
    }

    async fn request_json(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let response = self.send_request(method, path, body).await?;
        let status = response.status();
        let limited = http_body_util::Limited::new(response.into_body(), MAX_RESPONSE_BYTES);
        let bytes = limited.collect().await.map_err(|error| format!("{method} {path}: {error}"))?.to_bytes();
        if status.is_success() {
            return Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null));
        }
        Err(describe_error(status, &bytes))
    }

    /// Copies a response body, at most `most` bytes in total.
    pub(super) async fn copy_body(
        &self,
        path: &str,
        to: &mut impl std::io::Write,
        most: &mut usize,
    ) -> Result<(), String> {
        let response = self.send_request("GET", path, None).await?;
        if !response.status().is_success() {
            return Err(describe_error(response.status(), b""));
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let piece = frame.map_err(|error| format!("GET {path}: {error}"))?.into_data().unwrap_or_default();
            *most = most.checked_sub(piece.len()).ok_or("the transcript exceeds the maximum blob size")?;
            to.write_all(&piece).map_err(|error| format!("failed to print the transcript: {error}"))?;
        }
        Ok(())
    }

    /// Serialises the address and the credentials, for the transcript export.
    pub(super) fn as_json(&self) -> Value {
        json!({"address": self.address.to_string(), "authorization": self.authorization, "directory": self.directory})
    }

    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value[name].as_str();
        let address = text("address")?.parse().ok()?;
        let (authorization, directory) = (text("authorization")?.to_owned(), text("directory")?.to_owned());
        Some(Self { address, authorization, directory })
    }

    pub(super) async fn post_json(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.request_json("POST", path, Some(body)).await
    }

    /// Resumes the session, or creates one.
    pub(super) async fn open_session(&self, session: Option<&str>) -> Result<String, String> {
        if let Some(session) = session {
            let path = format!("/session/{}", sanitize_id(session));
            let found = self.request_json("GET", &path, None).await;
            return match found.map(|found| found["id"].as_str().map(str::to_owned)) {
                Ok(Some(id)) => Ok(id),
                Ok(None) => Err(format!("failed to resume session {session}: unknown session")),
                Err(error) => Err(format!("failed to resume session {session}: {error}")),
            };
        }
        // With a title, OpenCode does not ask a model for one.
        let created = self.post_json("/session", &json!({"title": "Atoll"})).await?;
        created["id"].as_str().map(str::to_owned).ok_or_else(|| "the new session has no id".to_owned())
    }

    /// Opens the event stream and waits for its first event.
    pub(super) async fn open_events(&self) -> Result<EventStream, String> {
        let response = self.send_request("GET", "/event", None).await?;
        if !response.status().is_success() {
            return Err(describe_error(response.status(), b""));
        }
        let mut events = EventStream { body: response.into_body(), buffer: Vec::new() };
        events.next_event().await?;
        Ok(events)
    }
}

fn describe_error(status: StatusCode, body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    match body["data"]["message"].as_str().or_else(|| body["message"].as_str()) {
        Some(message) => format!("{message} ({status})"),
        None => status.to_string(),
    }
}

/// Percent-encodes a path for a header.
fn percent_encode(path: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    path.bytes().map(one).collect()
}

fn encode_base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let whole =
            three.iter().fold(0_usize, |whole, byte| (whole << 8) | usize::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let letter = LETTERS[(whole >> (18 - 6 * at)) & 63];
            text.push(if at <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// A stream of server-sent events; only `data` is used.
#[derive(Debug)]
pub(super) struct EventStream {
    body: Incoming,
    buffer: Vec<u8>,
}

impl EventStream {
    /// Cancel-safe: the buffer keeps partial events.
    pub(super) async fn next_event(&mut self) -> Result<Box<RawValue>, String> {
        loop {
            if let Some(event) = take_event(&mut self.buffer) {
                if let Ok(data) = serde_json::from_str(&event) {
                    return Ok(data);
                }
                continue;
            }
            if self.buffer.len() > MAX_EVENT_BYTES {
                return Err(format!("an event of OpenCode exceeds {MAX_EVENT_BYTES} bytes"));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.buffer.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(error)) => return Err(format!("OpenCode's event stream failed: {error}")),
                None => return Err("OpenCode's event stream ended".to_owned()),
            }
        }
    }
}

/// Takes the data of the first complete event.
fn take_event(read: &mut Vec<u8>) -> Option<String> {
    let at = read.windows(2).position(|two| two == b"\n\n")?;
    let event: Vec<u8> = read.drain(..at + 2).collect();
    let text = String::from_utf8_lossy(&event);
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    Some(data.map(str::trim_start).collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_base64_and_paths() {
        for (text, letters) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("opencode:x", "b3BlbmNvZGU6eA==")]
        {
            assert_eq!(encode_base64(text.as_bytes()), letters, "{text}");
        }
        assert_eq!(percent_encode("/work space/ä"), "/work%20space/%C3%A4");
    }

    #[test]
    fn takes_complete_events() {
        let mut read = b"data: {\"a\":1}\n\nevent: x\ndata: {\"b\"".to_vec();
        assert_eq!(take_event(&mut read).as_deref(), Some("{\"a\":1}"));
        assert_eq!(take_event(&mut read), None);
        read.extend_from_slice(b":2}\n\n");
        assert_eq!(take_event(&mut read).as_deref(), Some("{\"b\":2}"));
        assert!(read.is_empty());
    }

    #[test]
    fn an_error_shows_its_message() {
        let body = br#"{"name":"NotFoundError","data":{"message":"Session not found"}}"#;
        assert_eq!(describe_error(StatusCode::NOT_FOUND, body), "Session not found (404 Not Found)");
        assert_eq!(describe_error(StatusCode::UNAUTHORIZED, b""), "401 Unauthorized");
    }
}
