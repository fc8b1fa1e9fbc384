//! A sandbox that is watched for what should happen in it.

use crate::client::Client;
use crate::client::follow::{Follow, Heard};
use crate::failure::Result;
use crate::reading::entry::Entry;
use crate::render::line;
use crate::sandbox::id_of;
use atoll_core::id::SandboxId;
use serde_json::{Value, json};
use std::time::Duration;

/// Nothing of what is tried takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Stage<'a> {
    client: &'a Client,
    pub sandbox: SandboxId,
    follow: Follow<'a>,
}

/// What came first.
pub enum Came {
    Wanted(Box<Entry>),
    /// The sandbox ended before.
    Ended(Box<Entry>),
    Nothing,
}

impl Came {
    /// What came instead of what was wanted.
    pub fn instead(&self) -> String {
        match self {
            Self::Wanted(entry) => entry.event_type.clone(),
            Self::Ended(entry) => format!("{}: {}", entry.event_type, line::state(entry, 300)),
            Self::Nothing => format!("nothing came for {} s", PATIENCE.as_secs()),
        }
    }
}

impl<'a> Stage<'a> {
    pub async fn open(client: &'a Client, body: &Value) -> Result<Self> {
        let made = client.post("/sandboxes", body).await?;
        let sandbox = id_of(&made, client)?;
        Ok(Self { client, sandbox, follow: Follow::new(client, sandbox, &[], 0) })
    }

    /// The next event that is wanted, or the sandbox's end.
    pub async fn until(&mut self, wanted: impl Fn(&Entry) -> bool) -> Result<Came> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let Ok(heard) = tokio::time::timeout_at(deadline, self.follow.next()).await else {
                return Ok(Came::Nothing);
            };
            let Heard::Event(entry) = heard? else { continue };
            if wanted(&entry) {
                return Ok(Came::Wanted(entry));
            }
            if matches!(entry.event_type.as_str(), "sandbox.completed" | "sandbox.failed") {
                return Ok(Came::Ended(entry));
            }
        }
    }

    /// How it ended.
    pub async fn end(&mut self) -> Result<Came> {
        self.until(|entry| entry.event_type == "sandbox.completed").await
    }

    pub async fn say(&self, text: &str) -> Result<Value> {
        let path = format!("/sandboxes/{}/messages", self.sandbox);
        self.client.post(&path, &json!({ "content": text, "delivery": "steer" })).await
    }

    /// The whole log from the store, and the number of its last event.
    pub async fn log(&self) -> Result<(Vec<Entry>, i64)> {
        let query = [("order", "asc".to_owned())];
        let (rows, _) = self.client.list(&format!("/sandboxes/{}/events", self.sandbox), &query, None).await?;
        let entries: Result<Vec<_>, _> = rows.iter().map(|row| Entry::parse(&row.to_string())).collect();
        let entries = entries.map_err(|error| self.client.not_atoll(&error))?;
        let row = self.client.get(&format!("/sandboxes/{}", self.sandbox), &[]).await?;
        Ok((entries, row["last_seq"].as_i64().unwrap_or(0)))
    }

    /// Ends what is still there of it, and waits until its provider has nothing left.
    pub async fn remove(&self) -> Result {
        let path = format!("/sandboxes/{}", self.sandbox);
        self.client.delete(&path, &[("force", "true".to_owned())]).await?;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while tokio::time::Instant::now() < deadline {
            if self.client.get(&path, &[]).await?["provider_id"].is_null() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}
