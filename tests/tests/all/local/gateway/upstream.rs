//! A model's API on this machine: what it answers is what the request's model says, and everything that it hears is
//! kept.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Between two pieces of a stream.
pub const PAUSE: Duration = Duration::from_millis(400);

#[derive(Default)]
struct Heard {
    /// Heads and bodies, each as it came.
    requests: Vec<(String, String)>,
    connections: usize,
    /// Clients that went away in the middle.
    gone: usize,
    /// Tokens that renewed a login, each once.
    shown: Vec<String>,
    /// Those of logins that nobody takes any more.
    revoked: Vec<String>,
}

pub struct Upstream {
    pub port: u16,
    heard: Arc<Mutex<Heard>>,
    serving: JoinHandle<()>,
}

impl Upstream {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::<Mutex<Heard>>::default();
        let noted = Arc::clone(&heard);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                noted.lock().unwrap_or_else(PoisonError::into_inner).connections += 1;
                tokio::spawn(serve(stream, Arc::clone(&noted)));
            }
        });
        Self { port, heard, serving }
    }

    pub fn requests(&self) -> Vec<(String, String)> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).requests.clone()
    }

    /// Does not take this token of a login any more.
    pub fn revoke(&self, token: &str) {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).revoked.push(token.to_owned());
    }

    pub fn connections(&self) -> usize {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).connections
    }

    /// Waits until so many clients went away in the middle.
    pub async fn gone(&self, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.heard.lock().unwrap_or_else(PoisonError::into_inner).gone < count {
            assert!(Instant::now() < deadline, "the upstream still waits for a client that has gone");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Upstream {
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

async fn serve(mut stream: TcpStream, heard: Arc<Mutex<Heard>>) {
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
        heard.lock().unwrap_or_else(PoisonError::into_inner).requests.push((lower.clone(), body.clone()));
        let says = |what: &str| body.contains(what) || lower.contains(what);
        let sent = if lower.starts_with("post /oauth/token ") {
            let granted = grant(&body, &heard);
            let (head, body) = granted.as_deref().map_or(("400 Bad Request", "{}"), |body| ("200 OK", body));
            answer(&mut stream, head, body).await
        } else if heard.lock().unwrap_or_else(PoisonError::into_inner).revoked.iter().any(|token| says(token)) {
            answer(&mut stream, "401 Unauthorized", r#"{"error":{"message":"token revoked"}}"#).await
        } else if says("hangs") {
            wait_for_end(&mut stream, &heard).await;
            return;
        } else if says("\"cuts\"") {
            return;
        } else if says("streams") || says("trickles") {
            let last = if says("trickles") { 1 } else { PIECES.len() };
            if stream_pieces(&mut stream, &PIECES[..last]).await.is_err() || says("trickles") {
                wait_for_end(&mut stream, &heard).await;
                return;
            }
            Ok(())
        } else if says("is-busy") {
            let body = r#"{"type":"error","error":{"type":"rate_limit_error","message":"slower"}}"#;
            let head = "429 Too Many Requests\r\nretry-after: 7\r\nrequest-id: req_9";
            answer(&mut stream, head, body).await
        } else if lower.contains("/chat/completions") {
            answer(&mut stream, "200 OK", CHAT).await
        } else if lower.contains("generatecontent") {
            answer(&mut stream, "200 OK", GEMINI).await
        } else if lower.contains("count_tokens") {
            answer(&mut stream, "200 OK", r#"{"input_tokens":14}"#).await
        } else {
            answer(&mut stream, "200 OK\r\nrequest-id: req_1", PLAIN).await
        };
        if sent.is_err() {
            return;
        }
    }
}

/// `again-1` is good once, for `fresh-1` and `again-2`.
fn grant(body: &str, heard: &Mutex<Heard>) -> Option<String> {
    let asked: serde_json::Value = serde_json::from_str(body).ok()?;
    let shown = asked["refresh_token"].as_str()?;
    let number: u32 = shown.strip_prefix("again-")?.parse().ok()?;
    let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    if heard.shown.iter().any(|before| before == shown) {
        return None;
    }
    heard.shown.push(shown.to_owned());
    let (access, refresh) = (format!("fresh-{number}"), format!("again-{}", number + 1));
    Some(serde_json::json!({ "access_token": access, "refresh_token": refresh, "expires_in": 3600 }).to_string())
}

async fn answer(stream: &mut TcpStream, head: &str, body: &str) -> std::io::Result<()> {
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
            tokio::time::sleep(PAUSE).await;
        }
    }
    if pieces.len() > 1 {
        stream.write_all(b"0\r\n\r\n").await?;
    }
    Ok(())
}

async fn wait_for_end(stream: &mut TcpStream, heard: &Mutex<Heard>) {
    let mut byte = [0; 16];
    while !matches!(stream.read(&mut byte).await, Ok(0) | Err(_)) {}
    heard.lock().unwrap_or_else(PoisonError::into_inner).gone += 1;
}
