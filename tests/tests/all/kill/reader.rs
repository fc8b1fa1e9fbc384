//! Event readers that reconnect after every kill and continue from the last seq.

use atoll_tests::actor::Actor;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_tungstenite::tungstenite::{self, Message};

/// A hash of an event, to compare logs without keeping the events.
pub fn event_fingerprint(event: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    event.to_string().hash(&mut hasher);
    hasher.finish()
}

/// The events that one reader got of each log, as fingerprints.
#[derive(Debug, Clone, Default)]
pub struct ReadLogs(Arc<Mutex<HashMap<String, Vec<u64>>>>);

impl ReadLogs {
    fn record_event(&self, event: &Value) {
        let id = event["sandbox_id"].as_str().unwrap();
        let mut logs = self.0.lock().unwrap();
        let log = logs.entry(id.to_owned()).or_default();
        assert_eq!(event["seq"], log.len() + 1, "a reader must get every event once, in order");
        log.push(event_fingerprint(event));
    }

    pub fn fingerprints(&self, sandbox: &str) -> Vec<u64> {
        self.0.lock().unwrap().get(sandbox).cloned().unwrap_or_default()
    }

    fn last_seq(&self, sandbox: &str) -> usize {
        self.0.lock().unwrap().get(sandbox).map_or(0, Vec::len)
    }
}

/// Prevents a busy loop while the server is down.
async fn wait_before_reconnect() {
    tokio::time::sleep(Duration::from_millis(40)).await;
}

pub async fn follow_sse(admin: Actor, sandbox: String, read: ReadLogs) {
    loop {
        drop(read_sse_stream(&admin, &sandbox, &read).await);
        wait_before_reconnect().await;
    }
}

async fn read_sse_stream(admin: &Actor, sandbox: &str, read: &ReadLogs) -> Result<(), reqwest::Error> {
    let request = admin.request(reqwest::Method::GET, &format!("/sandboxes/{sandbox}/events/stream"));
    let response = request.header("Last-Event-ID", read.last_seq(sandbox)).send().await?.error_for_status()?;
    let (mut stream, mut text) = (response.bytes_stream(), Vec::new());
    while let Some(chunk) = stream.next().await {
        text.extend_from_slice(&chunk?);
        // Count only complete events: the server sends an incomplete one again.
        while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = text.drain(..end + 2).collect();
            let event = String::from_utf8(event).unwrap();
            if let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) {
                read.record_event(&serde_json::from_str(data).unwrap());
            }
        }
    }
    Ok(())
}

pub async fn follow_web_socket(admin: Actor, sandboxes: Vec<String>, read: ReadLogs) {
    loop {
        drop(read_web_socket(&admin, &sandboxes, &read).await);
        wait_before_reconnect().await;
    }
}

async fn read_web_socket(admin: &Actor, sandboxes: &[String], read: &ReadLogs) -> Result<(), tungstenite::Error> {
    let mut socket = admin.try_open_web_socket("/events/ws").await?;
    let since: HashMap<&String, usize> = sandboxes.iter().map(|id| (id, read.last_seq(id))).collect();
    let subscribe = json!({ "type": "subscribe", "sandboxes": sandboxes, "since": since });
    socket.send(Message::text(subscribe.to_string())).await?;
    while let Some(message) = socket.next().await {
        let Message::Text(text) = message? else { continue };
        let frame: Value = serde_json::from_str(text.as_str()).unwrap();
        match frame["type"].as_str().unwrap() {
            "events" => frame["events"].as_array().unwrap().iter().for_each(|event| read.record_event(event)),
            "caught_up" | "lagged" | "ping" | "problem" => {}
            other => panic!("unexpected frame: {other}"),
        }
    }
    Ok(())
}
