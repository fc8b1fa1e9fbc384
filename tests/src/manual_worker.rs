//! A worker that tests drive request by request, for behaviour that the real worker never shows.

use crate::actor::{Actor, ApiResponse, ExternalSandbox};
use serde_json::{Value, json};
use uuid::Uuid;

#[derive(Debug, Clone)]
pub struct ManualWorker {
    pub actor: Actor,
    pub sandbox_id: String,
    pub stream: Uuid,
    pub boot: Option<i64>,
    pub next_key: i64,
}

pub fn build_event(key: i64, event_type: &str, data: Value) -> Value {
    json!({ "key": key, "type": event_type, "source": "agent", "at": "2026-01-01T00:00:00Z", "data": data })
}

impl ManualWorker {
    pub fn new(admin: &Actor, sandbox: &ExternalSandbox) -> Self {
        let actor = admin.with_token(&sandbox.token);
        Self { actor, sandbox_id: sandbox.id.clone(), stream: Uuid::now_v7(), boot: None, next_key: 1 }
    }

    /// Returns the same worker after a restart: a new stream with the next boot number.
    pub fn with_new_stream(&self) -> Self {
        let boot = self.boot.map(|boot| boot + 1);
        Self { stream: Uuid::now_v7(), boot, next_key: 1, ..self.clone() }
    }

    pub async fn send_heartbeat(&self, activity: &str) -> ApiResponse {
        let body = json!({ "stream": self.stream, "boot": self.boot, "protocol": 1, "at": "2026-01-01T00:00:00Z",
            "last_key": self.next_key - 1, "activity": activity });
        self.actor.post(&format!("/sandboxes/{}/heartbeat", self.sandbox_id), body).await
    }

    pub async fn send_batch(&self, events: Vec<Value>) -> ApiResponse {
        let body = json!({ "stream": self.stream, "boot": self.boot, "events": events });
        self.actor.post(&format!("/sandboxes/{}/events", self.sandbox_id), body).await
    }

    /// Sends events of these types with the next keys.
    pub async fn send_events(&mut self, types: &[&str]) -> Value {
        let events: Vec<Value> = types
            .iter()
            .map(|event_type| {
                let key = self.next_key;
                self.next_key += 1;
                build_event(key, event_type, json!({ "n": key }))
            })
            .collect();
        self.send_batch(events).await.expect_status(200)
    }

    pub async fn lease_messages(&self, max: u32) -> Vec<Value> {
        let body = json!({ "stream": self.stream, "boot": self.boot, "max": max });
        let answer =
            self.actor.post(&format!("/sandboxes/{}/messages/lease", self.sandbox_id), body).await.expect_status(200);
        answer["items"].as_array().unwrap().clone()
    }

    pub async fn ack_message(&self, message: &Value, how: &str, turn: Option<i64>) -> ApiResponse {
        let path = format!("/sandboxes/{}/messages/{}/ack", self.sandbox_id, message["id"].as_str().unwrap());
        let body = json!({ "stream": self.stream, "lease": message["lease"], "how": how, "turn": turn });
        self.actor.post(&path, body).await
    }

    pub async fn nack_message(&self, message: &Value, handed: bool, retry: bool) -> ApiResponse {
        let path = format!("/sandboxes/{}/messages/{}/nack", self.sandbox_id, message["id"].as_str().unwrap());
        let body = json!({ "stream": self.stream, "lease": message["lease"], "handed": handed, "retry": retry,
            "reason": "test" });
        self.actor.post(&path, body).await
    }
}
