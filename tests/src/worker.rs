//! A worker written by hand, request by request, for what the real one would never do.

use crate::actor::{Actor, Answer, External};
use serde_json::{Value, json};
use uuid::Uuid;

#[derive(Debug, Clone)]
pub struct HandWorker {
    pub actor: Actor,
    pub id: String,
    pub stream: Uuid,
    pub boot: Option<i64>,
    pub next_key: i64,
}

pub fn event(key: i64, event_type: &str, data: Value) -> Value {
    json!({ "key": key, "type": event_type, "source": "agent", "at": "2026-01-01T00:00:00Z", "data": data })
}

impl HandWorker {
    pub fn new(admin: &Actor, sandbox: &External) -> Self {
        let actor = admin.with_token(&sandbox.token);
        Self { actor, id: sandbox.id.clone(), stream: Uuid::now_v7(), boot: None, next_key: 1 }
    }

    /// Another start of the same worker.
    pub fn restarted(&self) -> Self {
        let boot = self.boot.map(|boot| boot + 1);
        Self { stream: Uuid::now_v7(), boot, next_key: 1, ..self.clone() }
    }

    pub async fn heartbeat(&self, activity: &str) -> Answer {
        let body = json!({ "stream": self.stream, "boot": self.boot, "protocol": 1, "at": "2026-01-01T00:00:00Z",
            "last_key": self.next_key - 1, "activity": activity });
        self.actor.post(&format!("/sandboxes/{}/heartbeat", self.id), body).await
    }

    pub async fn batch(&self, events: Vec<Value>) -> Answer {
        let body = json!({ "stream": self.stream, "boot": self.boot, "events": events });
        self.actor.post(&format!("/sandboxes/{}/events", self.id), body).await
    }

    /// Sends events of these types with the next keys.
    pub async fn say(&mut self, types: &[&str]) -> Value {
        let events: Vec<Value> = types
            .iter()
            .map(|event_type| {
                let key = self.next_key;
                self.next_key += 1;
                event(key, event_type, json!({ "n": key }))
            })
            .collect();
        self.batch(events).await.expect(200)
    }

    pub async fn lease(&self, max: u32) -> Vec<Value> {
        let body = json!({ "stream": self.stream, "boot": self.boot, "max": max });
        let answer = self.actor.post(&format!("/sandboxes/{}/messages/lease", self.id), body).await.expect(200);
        answer["items"].as_array().unwrap().clone()
    }

    pub async fn ack(&self, message: &Value, how: &str, turn: Option<i64>) -> Answer {
        let path = format!("/sandboxes/{}/messages/{}/ack", self.id, message["id"].as_str().unwrap());
        let body = json!({ "stream": self.stream, "lease": message["lease"], "how": how, "turn": turn });
        self.actor.post(&path, body).await
    }

    pub async fn nack(&self, message: &Value, handed: bool, retry: bool) -> Answer {
        let path = format!("/sandboxes/{}/messages/{}/nack", self.id, message["id"].as_str().unwrap());
        let body = json!({ "stream": self.stream, "lease": message["lease"], "handed": handed, "retry": retry,
            "reason": "test" });
        self.actor.post(&path, body).await
    }
}
