//! A fake model API. The model name of a request selects the response, and it records every request.

use atoll_test_wait::poll_until;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Delay between two pieces of a streamed response.
pub const PIECE_INTERVAL: Duration = Duration::from_millis(400);

#[derive(Default)]
struct UpstreamRecord {
    /// Heads (in lower case) and bodies.
    requests: Vec<(String, String)>,
    connections: usize,
    /// Clients that disconnected before the end of the response.
    disconnected: usize,
    /// Refresh tokens that renewed a login. Each works once.
    refresh_tokens: Vec<String>,
    /// Tokens that this API rejects.
    revoked: Vec<String>,
}

pub struct FakeUpstream {
    pub port: u16,
    record: Arc<Mutex<UpstreamRecord>>,
    serving: JoinHandle<()>,
}

impl FakeUpstream {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let record = Arc::<Mutex<UpstreamRecord>>::default();
        let shared = Arc::clone(&record);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.lock().unwrap_or_else(PoisonError::into_inner).connections += 1;
                tokio::spawn(serve_connection(stream, Arc::clone(&shared)));
            }
        });
        Self { port, record, serving }
    }

    pub fn requests(&self) -> Vec<(String, String)> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).requests.clone()
    }

    /// Rejects this token from now on.
    pub fn revoke(&self, token: &str) {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).revoked.push(token.to_owned());
    }

    pub fn connections(&self) -> usize {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).connections
    }

    /// Waits until `count` clients disconnected before the end of the response.
    pub async fn wait_for_disconnects(&self, count: usize) {
        let disconnected = || self.record.lock().unwrap_or_else(PoisonError::into_inner).disconnected;
        poll_until("clients to disconnect", async || disconnected() >= count).await;
    }
}

impl Drop for FakeUpstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

const PLAIN: &str = r#"{"type":"message","content":[{"type":"text","text":"hello"}],"usage":{"input_tokens":1000,"cache_read_input_tokens":2000,"cache_creation_input_tokens":0,"output_tokens":100}}"#;
const CHAT: &str = r#"{"choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":30,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":10}}}"#;
const GEMINI: &str = r#"{"candidates":[],"usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":6}}"#;
const PIECES: [&str; 3] = [
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n",
    "event: content_block_delta\ndata: {\"delta\":{\"type\":\"text_delta\",\"text\":\"bit by bit\"}}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":20}}\n\n",
];

/// A stream of chat completions that reports no usage, even if the request asks for it.
const QUIET_PIECES: [&str; 2] = ["data: {\"choices\":[{\"delta\":{\"content\":\"hello\"}}]}\n\n", "data: [DONE]\n\n"];

async fn serve_connection(mut stream: TcpStream, record: Arc<Mutex<UpstreamRecord>>) {
    let mut bytes = Vec::new();
    loop {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            match stream.read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(_) => continue,
            }
        };
        let rest = bytes.split_off(end + 4);
        let head = String::from_utf8(std::mem::replace(&mut bytes, rest)).unwrap();
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
        let length = length.unwrap_or(0);
        while bytes.len() < length {
            match stream.read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let rest = bytes.split_off(length);
        let body = String::from_utf8(std::mem::replace(&mut bytes, rest)).unwrap();
        record.lock().unwrap_or_else(PoisonError::into_inner).requests.push((lower.clone(), body.clone()));
        let contains = |text: &str| body.contains(text) || lower.contains(text);
        let sent = if lower.starts_with("post /oauth/token ") {
            let tokens = grant_login(&body, &record);
            let (head, body) = tokens.as_deref().map_or(("400 Bad Request", "{}"), |body| ("200 OK", body));
            write_response(&mut stream, head, body).await
        } else if record.lock().unwrap_or_else(PoisonError::into_inner).revoked.iter().any(|token| contains(token)) {
            write_response(&mut stream, "401 Unauthorized", r#"{"error":{"message":"token revoked"}}"#).await
        } else if contains("hangs") {
            wait_for_end(&mut stream, &record).await;
            return;
        } else if contains("\"cuts\"") {
            return;
        } else if contains("\"echoes\"") {
            let key = lower.lines().find_map(|line| line.strip_prefix("x-api-key: ")).unwrap_or_default();
            write_response(&mut stream, &format!("200 OK\r\nx-echo: {key}"), &lower).await
        } else if contains("\"quiet\"") {
            stream_pieces(&mut stream, &QUIET_PIECES).await
        } else if contains("streams") || contains("trickles") {
            let last = if contains("trickles") { 1 } else { PIECES.len() };
            if stream_pieces(&mut stream, &PIECES[..last]).await.is_err() || contains("trickles") {
                wait_for_end(&mut stream, &record).await;
                return;
            }
            Ok(())
        } else if contains("is-busy") {
            let body = r#"{"type":"error","error":{"type":"rate_limit_error","message":"slower"}}"#;
            let head = "429 Too Many Requests\r\nretry-after: 7\r\nrequest-id: req_9";
            write_response(&mut stream, head, body).await
        } else if lower.contains("/chat/completions") {
            write_response(&mut stream, "200 OK", CHAT).await
        } else if lower.contains("generatecontent") {
            write_response(&mut stream, "200 OK", GEMINI).await
        } else if lower.contains("count_tokens") {
            write_response(&mut stream, "200 OK", r#"{"input_tokens":14}"#).await
        } else {
            write_response(&mut stream, "200 OK\r\nrequest-id: req_1", PLAIN).await
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Exchanges `again-1` for `fresh-1` and `again-2`, once.
fn grant_login(body: &str, record: &Mutex<UpstreamRecord>) -> Option<String> {
    let request: serde_json::Value = serde_json::from_str(body).ok()?;
    let token = request["refresh_token"].as_str()?;
    let number: u32 = token.strip_prefix("again-")?.parse().ok()?;
    let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
    if record.refresh_tokens.iter().any(|used| used == token) {
        return None;
    }
    record.refresh_tokens.push(token.to_owned());
    let (access, refresh) = (format!("fresh-{number}"), format!("again-{}", number + 1));
    Some(serde_json::json!({ "access_token": access, "refresh_token": refresh, "expires_in": 3600 }).to_string())
}

async fn write_response(stream: &mut TcpStream, head: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let text = format!("HTTP/1.1 {head}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await
}

async fn stream_pieces(stream: &mut TcpStream, pieces: &[&str]) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    for piece in pieces {
        stream.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).await?;
        if pieces.len() > 1 {
            tokio::time::sleep(PIECE_INTERVAL).await;
        }
    }
    if pieces.len() > 1 {
        stream.write_all(b"0\r\n\r\n").await?;
    }
    Ok(())
}

async fn wait_for_end(stream: &mut TcpStream, record: &Mutex<UpstreamRecord>) {
    let mut byte = [0; 16];
    while !matches!(stream.read(&mut byte).await, Ok(0) | Err(_)) {}
    record.lock().unwrap_or_else(PoisonError::into_inner).disconnected += 1;
}
