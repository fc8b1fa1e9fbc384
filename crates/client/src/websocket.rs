//! WebSocket connections to the server.

use crate::error::Result;
use crate::http::Client;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use reqwest::header::{CONNECTION, UPGRADE};
use reqwest::{Method, StatusCode, Upgraded};
use serde::Serialize;
use std::time::Duration;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

/// The server sends a ping every 20 seconds; after this silence the connection is lost.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(50);
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A WebSocket on one of the client's HTTP connections.
#[derive(Debug)]
pub(crate) struct WebSocket(WebSocketStream<Upgraded>);

/// A frame that the server sent, or the cause of the connection's end.
pub(crate) enum Received {
    Binary(Vec<u8>),
    Text(String),
    Lost(&'static str),
}

impl Client {
    pub(crate) async fn open_websocket(&self, path: &str, query: &(impl Serialize + ?Sized)) -> Result<WebSocket> {
        let key = STANDARD.encode(uuid::Uuid::now_v7().as_bytes());
        let request = self
            .request(Method::GET, path, query)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", &key);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.problem_of(response).await);
        }
        let accepted = response.headers().get("sec-websocket-accept").and_then(|value| value.to_str().ok());
        if accepted != Some(derive_accept_key(key.as_bytes()).as_str()) {
            return Err(self.unexpected_response("it does not open a WebSocket"));
        }
        let upgraded = response.upgrade().await.map_err(|error| self.unreachable(&error))?;
        Ok(WebSocket(WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await))
    }
}

impl WebSocket {
    /// Receives the next data frame. Cancel safe.
    pub(crate) async fn receive(&mut self) -> Received {
        loop {
            return match timeout(SILENCE_TIMEOUT, self.0.next()).await {
                Ok(Some(Ok(Message::Binary(data)))) => Received::Binary(data.to_vec()),
                Ok(Some(Ok(Message::Text(text)))) => Received::Text(text.to_string()),
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)))) => continue,
                Ok(Some(Ok(Message::Close(_)))) | Ok(None) => Received::Lost("the server closed the connection"),
                Ok(Some(Err(_))) => Received::Lost("the connection broke"),
                Err(_) => Received::Lost("the server is silent"),
            };
        }
    }

    /// Sends bytes; `false` if the connection is lost, which the next `receive` reports.
    pub(crate) async fn send_binary(&mut self, data: Vec<u8>) -> bool {
        self.send(Message::binary(data)).await
    }

    /// Sends a JSON text frame; `false` if the connection is lost, which the next `receive` reports.
    pub(crate) async fn send_json(&mut self, frame: &impl Serialize) -> bool {
        match serde_json::to_string(frame) {
            Ok(text) => self.send(Message::text(text)).await,
            Err(_) => false,
        }
    }

    async fn send(&mut self, message: Message) -> bool {
        matches!(timeout(SEND_TIMEOUT, self.0.send(message)).await, Ok(Ok(())))
    }

    pub(crate) async fn close(mut self) {
        drop(timeout(CLOSE_TIMEOUT, self.0.close(None)).await);
    }
}
