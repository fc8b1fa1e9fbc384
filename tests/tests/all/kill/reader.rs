//! Readers that follow logs through every kill: they come back and go on from the last seq.

use atoll_tests::actor::Actor;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_tungstenite::tungstenite::{self, Message};

/// What is remembered of an event: enough to tell it from any other.
pub fn print_of(event: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    event.to_string().hash(&mut hasher);
    hasher.finish()
}

/// Everything that one reader was given of each log.
#[derive(Debug, Clone, Default)]
pub struct Read(Arc<Mutex<HashMap<String, Vec<u64>>>>);

impl Read {
    fn take(&self, event: &Value) {
        let id = event["sandbox_id"].as_str().unwrap();
        let mut logs = self.0.lock().unwrap();
        let log = logs.entry(id.to_owned()).or_default();
        assert_eq!(event["seq"], log.len() + 1, "a reader gets every event once, in order");
        log.push(print_of(event));
    }

    pub fn log(&self, sandbox: &str) -> Vec<u64> {
        self.0.lock().unwrap().get(sandbox).cloned().unwrap_or_default()
    }

    fn seq(&self, sandbox: &str) -> usize {
        self.0.lock().unwrap().get(sandbox).map_or(0, Vec::len)
    }
}

/// Not a busy loop while the server is down.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(40)).await;
}

pub async fn server_sent_events(admin: Actor, sandbox: String, read: Read) {
    loop {
        drop(follow(&admin, &sandbox, &read).await);
        pause().await;
    }
}

async fn follow(admin: &Actor, sandbox: &str, read: &Read) -> Result<(), reqwest::Error> {
    let request = admin.request(reqwest::Method::GET, &format!("/sandboxes/{sandbox}/events/stream"));
    let response = request.header("Last-Event-ID", read.seq(sandbox)).send().await?.error_for_status()?;
    let (mut stream, mut text) = (response.bytes_stream(), Vec::new());
    while let Some(chunk) = stream.next().await {
        text.extend_from_slice(&chunk?);
        // Only whole events count: one that was cut off comes again.
        while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = text.drain(..end + 2).collect();
            let event = String::from_utf8(event).unwrap();
            if let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) {
                read.take(&serde_json::from_str(data).unwrap());
            }
        }
    }
    Ok(())
}

pub async fn web_socket(admin: Actor, sandboxes: Vec<String>, read: Read) {
    loop {
        drop(subscribe(&admin, &sandboxes, &read).await);
        pause().await;
    }
}

async fn subscribe(admin: &Actor, sandboxes: &[String], read: &Read) -> Result<(), tungstenite::Error> {
    let mut socket = admin.try_web_socket("/events/ws").await?;
    let since: HashMap<&String, usize> = sandboxes.iter().map(|id| (id, read.seq(id))).collect();
    let subscribe = json!({ "type": "subscribe", "sandboxes": sandboxes, "since": since });
    socket.send(Message::text(subscribe.to_string())).await?;
    while let Some(message) = socket.next().await {
        let Message::Text(text) = message? else { continue };
        let frame: Value = serde_json::from_str(text.as_str()).unwrap();
        match frame["type"].as_str().unwrap() {
            "events" => frame["events"].as_array().unwrap().iter().for_each(|event| read.take(event)),
            "caught_up" | "lagged" | "ping" | "problem" => {}
            other => panic!("an unexpected frame: {other}"),
        }
    }
    Ok(())
}
