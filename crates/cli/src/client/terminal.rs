//! A terminal in a sandbox, over a WebSocket.

use super::{Client, refusal};
use crate::failure::Result;
use atoll_core::id::SandboxId;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use reqwest::header::{CONNECTION, UPGRADE};
use reqwest::{Method, StatusCode, Upgraded};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

/// The server gives a sign of life every 20 seconds.
const SILENCE: Duration = Duration::from_secs(50);
/// For what is typed to be on its way.
const STUCK: Duration = Duration::from_secs(30);

pub struct Terminal(WebSocketStream<Upgraded>);

/// What comes from a terminal.
#[derive(Debug)]
pub enum Shown {
    Bytes(Vec<u8>),
    Word(Value),
    /// The connection is gone, and why.
    Lost(&'static str),
}

impl Client {
    /// A new one, or with `exec` in the query one that is there.
    pub async fn terminal(&self, sandbox: SandboxId, query: &[(&str, String)]) -> Result<Terminal> {
        let key = STANDARD.encode(uuid::Uuid::now_v7().as_bytes());
        let asked = self
            .request(Method::GET, &format!("/sandboxes/{sandbox}/terminal"), query)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", &key);
        let answer = asked.send().await.map_err(|error| self.unreachable(&error))?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(&self.found, answer).await);
        }
        let accepted = answer.headers().get("sec-websocket-accept").and_then(|value| value.to_str().ok());
        if accepted != Some(derive_accept_key(key.as_bytes()).as_str()) {
            return Err(self.not_atoll("it opens no WebSocket"));
        }
        let upgraded = answer.upgrade().await.map_err(|error| self.unreachable(&error))?;
        Ok(Terminal(WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await))
    }
}

impl Terminal {
    /// May be dropped and asked again without losing anything.
    pub async fn next(&mut self) -> Shown {
        loop {
            return match timeout(SILENCE, self.0.next()).await {
                Ok(Some(Ok(Message::Binary(data)))) => Shown::Bytes(data.to_vec()),
                Ok(Some(Ok(Message::Text(text)))) => match serde_json::from_str(&text) {
                    Ok(word) => Shown::Word(word),
                    Err(_) => Shown::Lost("the server says something that can't be read"),
                },
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)))) => continue,
                Ok(Some(Ok(Message::Close(_)))) | Ok(None) => Shown::Lost("the server closed the connection"),
                Ok(Some(Err(_))) => Shown::Lost("the connection broke"),
                Err(_) => Shown::Lost("the server is silent"),
            };
        }
    }

    /// Whether it went out. If not, the next thing that is shown says that the connection is lost.
    pub async fn press(&mut self, keys: Vec<u8>) -> bool {
        self.send(Message::binary(keys)).await
    }

    pub async fn resize(&mut self, (cols, rows): (u16, u16)) -> bool {
        self.send(Message::text(json!({ "type": "resize", "cols": cols, "rows": rows }).to_string())).await
    }

    async fn send(&mut self, message: Message) -> bool {
        matches!(timeout(STUCK, self.0.send(message)).await, Ok(Ok(())))
    }

    pub async fn close(mut self) {
        drop(timeout(Duration::from_secs(1), self.0.close(None)).await);
    }
}
