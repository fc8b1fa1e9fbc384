//! Requests to the server, and the stream of its events.

use super::wire::{Sent, plain};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;

const CONNECT: Duration = Duration::from_secs(10);
/// Of an answer; an event may be longer.
const MAX_ANSWER: usize = 1 << 20;
/// Of one event. What is longer is not read, and that is said.
const MAX_EVENT: usize = 64 << 20;

#[derive(Clone)]
pub(super) struct Client {
    address: SocketAddr,
    authorization: String,
    directory: String,
}

/// Without the password.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}", self.address)
    }
}

impl Client {
    pub(super) fn new(address: SocketAddr, password: &str, directory: &str) -> Self {
        let authorization = format!("Basic {}", base64(format!("opencode:{password}").as_bytes()));
        Self { address, authorization, directory: directory.to_owned() }
    }

    async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Response<Incoming>, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{method} {path}: {error}");
        let connected = tokio::time::timeout(CONNECT, TcpStream::connect(self.address)).await;
        let stream = connected.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(header::HOST, self.address.to_string());
        request = request.header(header::AUTHORIZATION, &self.authorization);
        request = request.header("x-opencode-directory", escaped(&self.directory));
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = Full::new(Bytes::from(body.map(Value::to_string).unwrap_or_default()));
        let request = request.body(body).map_err(|error| failed(&error))?;
        sender.send_request(request).await.map_err(|error| failed(&error))
    }

    async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let response = self.send(method, path, body).await?;
        let status = response.status();
        let limited = http_body_util::Limited::new(response.into_body(), MAX_ANSWER);
        let bytes = limited.collect().await.map_err(|error| format!("{method} {path}: {error}"))?.to_bytes();
        if status.is_success() {
            return Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null));
        }
        Err(refusal(status, &bytes))
    }

    /// What the server has there, as it comes; not kept here.
    pub(super) async fn copy(&self, path: &str, to: &mut impl std::io::Write, most: &mut usize) -> Result<(), String> {
        let response = self.send("GET", path, None).await?;
        if !response.status().is_success() {
            return Err(refusal(response.status(), b""));
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let piece = frame.map_err(|error| format!("GET {path}: {error}"))?.into_data().unwrap_or_default();
            *most = most.checked_sub(piece.len()).ok_or("it is larger than what is kept")?;
            to.write_all(&piece).map_err(|error| format!("failed to print it: {error}"))?;
        }
        Ok(())
    }

    /// How somebody else reaches the same server.
    pub(super) fn as_json(&self) -> Value {
        json!({"address": self.address.to_string(), "authorization": self.authorization, "directory": self.directory})
    }

    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let text = |name: &str| value[name].as_str();
        let address = text("address")?.parse().ok()?;
        let (authorization, directory) = (text("authorization")?.to_owned(), text("directory")?.to_owned());
        Some(Self { address, authorization, directory })
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.ask("POST", path, Some(body)).await
    }

    /// A new session, or the one that there is.
    pub(super) async fn open(&self, session: Option<&str>) -> Result<String, String> {
        if let Some(session) = session {
            let path = format!("/session/{}", plain(session));
            let found = self.ask("GET", &path, None).await;
            return match found.map(|found| found["id"].as_str().map(str::to_owned)) {
                Ok(Some(id)) => Ok(id),
                Ok(None) => Err(format!("it can't go on with the session {session}: it does not know it")),
                Err(error) => Err(format!("it can't go on with the session {session}: {error}")),
            };
        }
        // With a title it asks no model for one.
        let made = self.post("/session", &json!({"title": "Atoll"})).await?;
        made["id"].as_str().map(str::to_owned).ok_or_else(|| "it began a session without a name".to_owned())
    }

    /// Open when the first one has come.
    pub(super) async fn events(&self) -> Result<Events, String> {
        let response = self.send("GET", "/event", None).await?;
        if !response.status().is_success() {
            return Err(refusal(response.status(), b""));
        }
        let mut events = Events { body: response.into_body(), read: Vec::new() };
        events.next().await?;
        Ok(events)
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    match body["data"]["message"].as_str().or_else(|| body["message"].as_str()) {
        Some(message) => format!("{message} ({status})"),
        None => status.to_string(),
    }
}

/// A path as a header can hold it.
fn escaped(path: &str) -> String {
    let one = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    path.bytes().map(one).collect()
}

fn base64(bytes: &[u8]) -> String {
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

/// Server-sent events, of which only the data is of interest.
#[derive(Debug)]
pub(super) struct Events {
    body: Incoming,
    read: Vec<u8>,
}

impl Events {
    /// Whatever was read is kept if this is dropped.
    pub(super) async fn next(&mut self) -> Result<Sent, String> {
        loop {
            if let Some(event) = cut(&mut self.read) {
                if let Ok(data) = serde_json::from_str(&event) {
                    return Ok(Sent { data });
                }
                continue;
            }
            if self.read.len() > MAX_EVENT {
                return Err(format!("an event of OpenCode has more than {MAX_EVENT} bytes"));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.read.extend_from_slice(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(error)) => return Err(format!("the stream of OpenCode's events broke: {error}")),
                None => return Err("the stream of OpenCode's events ended".to_owned()),
            }
        }
    }
}

/// The data of the first whole event.
fn cut(read: &mut Vec<u8>) -> Option<String> {
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
    fn text_becomes_letters() {
        for (text, letters) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("opencode:x", "b3BlbmNvZGU6eA==")]
        {
            assert_eq!(base64(text.as_bytes()), letters, "{text}");
        }
        assert_eq!(escaped("/work space/ä"), "/work%20space/%C3%A4");
    }

    #[test]
    fn events_are_cut_from_what_was_read() {
        let mut read = b"data: {\"a\":1}\n\nevent: x\ndata: {\"b\"".to_vec();
        assert_eq!(cut(&mut read).as_deref(), Some("{\"a\":1}"));
        assert_eq!(cut(&mut read), None);
        read.extend_from_slice(b":2}\n\n");
        assert_eq!(cut(&mut read).as_deref(), Some("{\"b\":2}"));
        assert!(read.is_empty());
    }

    #[test]
    fn a_refusal_says_what_there_is() {
        let body = br#"{"name":"NotFoundError","data":{"message":"Session not found"}}"#;
        assert_eq!(refusal(StatusCode::NOT_FOUND, body), "Session not found (404 Not Found)");
        assert_eq!(refusal(StatusCode::UNAUTHORIZED, b""), "401 Unauthorized");
    }
}
