//! Event readers over server-sent events and over the WebSocket.

use crate::actor::Actor;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Reads server-sent events after `seq`, up to seq `until` or at most `most` events.
pub async fn read_server_sent_events(actor: &Actor, sandbox: &str, seq: i64, most: usize, until: i64) -> Vec<Value> {
    let request = actor.request(reqwest::Method::GET, &format!("/sandboxes/{sandbox}/events/stream"));
    let response = request.header("last-event-id", seq).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let mut chunks = response.bytes_stream();
    let (mut text, mut events) = (Vec::new(), Vec::new());
    while events.len() < most {
        let Ok(Some(Ok(chunk))) = tokio::time::timeout(READ_TIMEOUT, chunks.next()).await else { break };
        text.extend_from_slice(&chunk);
        while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
            let block = String::from_utf8(text.drain(..end + 2).collect()).unwrap();
            let data: String = block.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
            let id = block.lines().find_map(|line| line.strip_prefix("id: "));
            if let Some(id) = id {
                let event: Value = serde_json::from_str(&data).unwrap();
                assert_eq!(event["seq"].to_string(), id);
                events.push(event);
            }
        }
        if events.last().is_some_and(|event| event["seq"].as_i64().unwrap() >= until) {
            break;
        }
    }
    events.truncate(most);
    events
}

pub struct EventWebSocket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl EventWebSocket {
    pub async fn open(actor: &Actor, path: &str) -> Self {
        Self::try_open(actor, path).await.unwrap()
    }

    pub async fn try_open(actor: &Actor, path: &str) -> Result<Self, Error> {
        let url = format!("{}/api/v1{path}", actor.url.replacen("http", "ws", 1));
        let mut request = url.into_client_request().unwrap();
        if let Some(token) = &actor.token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        Ok(Self(tokio_tungstenite::connect_async(request).await?.0))
    }

    pub async fn send_frame(&mut self, frame: Value) {
        self.0.send(Message::text(frame.to_string())).await.unwrap();
    }

    pub async fn subscribe(&mut self, sandboxes: Value, since: Value) {
        self.send_frame(json!({ "type": "subscribe", "sandboxes": sandboxes, "since": since })).await;
    }

    /// Returns the next frame that is not a ping, or `None` when the server has closed the connection.
    pub async fn next_frame(&mut self) -> Option<Value> {
        loop {
            let message = tokio::time::timeout(READ_TIMEOUT, self.0.next()).await.expect("a frame in time")?;
            let Ok(Message::Text(text)) = message else { return None };
            let frame: Value = serde_json::from_str(&text).unwrap();
            if frame["type"] != "ping" {
                return Some(frame);
            }
        }
    }
}
