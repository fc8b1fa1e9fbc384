//! A server as small as it can be: it takes everything in order, leases each message once, and
//! writes down whatever a worker does wrong.

use atoll_core::BoxFuture;
use atoll_core::id::{LeaseId, MessageId, SandboxId, SessionId};
use atoll_core::message::{Delivery, How, MessageType};
use atoll_core::sandbox::{Activity, SandboxState, Settings};
use atoll_core::time::Timestamp;
use atoll_protocol::link::{LinkError, WorkerLink};
use atoll_protocol::{
    Ack, Batch, BatchAnswer, Heartbeat, HeartbeatAnswer, LeaseAnswer, LeaseRequest, LeasedMessage, Nack, Start,
};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

pub(super) const INTERVAL_S: u32 = 30;

#[derive(Default)]
pub(super) struct Row {
    pub(super) state: Option<SandboxState>,
    pub(super) heartbeats: Vec<(Instant, Activity)>,
    pub(super) events: Vec<Value>,
    pub(super) acks: Vec<(MessageId, How, Option<i64>)>,
    pub(super) nacks: Vec<(MessageId, Nack)>,
    pub(super) duplicates: usize,
    pub(super) is_final: bool,
    /// The server goes to `completing` when a turn ended and nothing is queued.
    pub(super) when_done: bool,
    stream: Option<Uuid>,
    last_key: i64,
    prompt: Option<LeasedMessage>,
    queued: VecDeque<LeasedMessage>,
    leased: BTreeMap<MessageId, LeasedMessage>,
}

#[derive(Default)]
struct Book {
    rows: BTreeMap<SandboxId, Row>,
    wrongs: Vec<String>,
    down: bool,
}

#[derive(Default)]
pub(super) struct Recorder(Mutex<Book>);

fn message(content: &str, message_type: MessageType, delivery: Delivery) -> LeasedMessage {
    LeasedMessage {
        id: MessageId::new(),
        session_id: SessionId::from_uuid(Uuid::nil()),
        message_type,
        delivery,
        content: content.to_owned(),
        sender: None,
        position: 0,
        created_at: Timestamp::from_micros(0),
        lease: LeaseId::new(),
        lease_until: Timestamp::from_micros(i64::MAX),
    }
}

impl Recorder {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap()
    }

    pub(super) fn with<T>(&self, sandbox: SandboxId, look: impl FnOnce(&mut Row) -> T) -> T {
        look(self.book().rows.entry(sandbox).or_default())
    }

    pub(super) fn prompt(&self, sandbox: SandboxId, content: &str) {
        let prompt = message(content, MessageType::UserMessage, Delivery::Steer);
        self.with(sandbox, |row| {
            if !content.is_empty() {
                row.leased.insert(prompt.id, prompt.clone());
                row.prompt = Some(prompt);
            }
        });
    }

    pub(super) fn send(&self, sandbox: SandboxId, content: &str, delivery: Delivery) -> MessageId {
        self.queue(sandbox, message(content, MessageType::UserMessage, delivery))
    }

    pub(super) fn interrupt(&self, sandbox: SandboxId) -> MessageId {
        self.queue(sandbox, message("stop", MessageType::Interrupt, Delivery::Steer))
    }

    fn queue(&self, sandbox: SandboxId, message: LeasedMessage) -> MessageId {
        let id = message.id;
        self.with(sandbox, |row| row.queued.push_back(message));
        id
    }

    /// As if the lease had run out before the receipt came.
    pub(super) fn lease_again(&self, sandbox: SandboxId, content: &str) {
        self.with(sandbox, |row| {
            let mut again = row.prompt.clone().unwrap();
            assert_eq!(again.content, content);
            again.lease = LeaseId::new();
            row.leased.remove(&again.id);
            row.queued.push_back(again);
        });
    }

    pub(super) fn set_state(&self, sandbox: SandboxId, state: SandboxState) {
        self.with(sandbox, |row| row.state = Some(state));
    }

    pub(super) fn set_down(&self, down: bool) {
        self.book().down = down;
    }

    pub(super) fn events(&self, sandbox: SandboxId) -> Vec<Value> {
        self.with(sandbox, |row| row.events.clone())
    }

    pub(super) fn types(&self, sandbox: SandboxId) -> Vec<String> {
        self.events(sandbox).iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }

    pub(super) fn assert_orderly(&self) {
        let wrongs = &self.book().wrongs;
        assert!(wrongs.is_empty(), "{wrongs:#?}");
    }

    /// One call of a worker, unless the server is down.
    fn take<T>(
        &self,
        sandbox: SandboxId,
        stream: Uuid,
        act: impl FnOnce(&mut Row, &mut Vec<String>) -> Result<T, LinkError>,
    ) -> Result<T, LinkError> {
        let mut book = self.book();
        if book.down {
            return Err(LinkError::Unavailable("down".into()));
        }
        let Book { rows, wrongs, .. } = &mut *book;
        let row = rows.entry(sandbox).or_default();
        if *row.stream.get_or_insert(stream) != stream {
            wrongs.push(format!("a second stream of {sandbox}"));
        }
        act(row, wrongs)
    }
}

impl Row {
    fn state(&self) -> SandboxState {
        self.state.unwrap_or(SandboxState::Running)
    }

    fn store(&mut self, batch: &Batch, wrongs: &mut Vec<String>) -> Result<BatchAnswer, LinkError> {
        for event in &batch.events {
            let event: Value = serde_json::from_str(event.get()).unwrap();
            let key = event["key"].as_i64().unwrap();
            if key <= self.last_key {
                self.duplicates += 1;
                continue;
            }
            if key != self.last_key + 1 || self.is_final {
                wrongs.push(format!("key {key} after {} (final: {})", self.last_key, self.is_final));
                return Err(LinkError::Refused { code: "key_gap".into(), detail: String::new() });
            }
            self.last_key = key;
            if event["type"] == "agent.completed" && self.when_done {
                if self.leased.is_empty() && self.queued.is_empty() {
                    self.state = Some(SandboxState::Completing);
                } else {
                    wrongs.push(format!("a turn ended while {:?} was leased", self.leased));
                }
            }
            self.events.push(event);
        }
        self.is_final |= batch.is_final;
        Ok(BatchAnswer { last_key: self.last_key, ..BatchAnswer::default() })
    }
}

impl WorkerLink for Recorder {
    fn heartbeat<'a>(
        &'a self,
        sandbox: SandboxId,
        heartbeat: &'a Heartbeat,
    ) -> BoxFuture<'a, Result<HeartbeatAnswer, LinkError>> {
        Box::pin(async move {
            self.take(sandbox, heartbeat.stream, |row, wrongs| {
                row.heartbeats.push((Instant::now(), heartbeat.activity));
                if heartbeat.last_key < row.last_key {
                    wrongs.push(format!("a heartbeat forgot key {}", row.last_key));
                }
                let start = (heartbeat.activity == Activity::Starting).then(|| Start {
                    sandbox_id: sandbox,
                    session_id: SessionId::from_uuid(Uuid::nil()),
                    agent: Some("demo".into()),
                    prompt: row.prompt.clone(),
                    settings: Settings::default(),
                    resume: None,
                    program: None,
                    gateway: None,
                });
                Ok(HeartbeatAnswer { state: row.state(), interval_s: INTERVAL_S, start })
            })
        })
    }

    fn events<'a>(&'a self, sandbox: SandboxId, batch: &'a Batch) -> BoxFuture<'a, Result<BatchAnswer, LinkError>> {
        Box::pin(async move { self.take(sandbox, batch.stream, |row, wrongs| row.store(batch, wrongs)) })
    }

    fn lease<'a>(
        &'a self,
        sandbox: SandboxId,
        request: &'a LeaseRequest,
    ) -> BoxFuture<'a, Result<LeaseAnswer, LinkError>> {
        Box::pin(async move {
            let until = Instant::now() + Duration::from_secs(request.wait_s.into());
            loop {
                let items = self.take(sandbox, request.stream, |row, _| {
                    if !row.state().takes_messages() {
                        return Err(LinkError::Refused { code: "sandbox_ended".into(), detail: String::new() });
                    }
                    let count = row.queued.len().min(request.max as usize);
                    let items: Vec<LeasedMessage> = row.queued.drain(..count).collect();
                    row.leased.extend(items.iter().map(|item| (item.id, item.clone())));
                    Ok(items)
                })?;
                if !items.is_empty() || Instant::now() >= until {
                    return Ok(LeaseAnswer { items, lost: Vec::new(), state: None });
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    }

    fn ack<'a>(&'a self, sandbox: SandboxId, id: MessageId, ack: &'a Ack) -> BoxFuture<'a, Result<(), LinkError>> {
        Box::pin(async move {
            self.take(sandbox, ack.stream, |row, wrongs| {
                match row.leased.remove(&id) {
                    Some(held) if held.lease == ack.lease => row.acks.push((id, ack.how, ack.turn)),
                    None if row.acks.iter().any(|(acked, ..)| *acked == id) => row.duplicates += 1,
                    other => wrongs.push(format!("ack of {id} with {other:?}")),
                }
                Ok(())
            })
        })
    }

    fn nack<'a>(&'a self, sandbox: SandboxId, id: MessageId, nack: &'a Nack) -> BoxFuture<'a, Result<(), LinkError>> {
        Box::pin(async move {
            self.take(sandbox, nack.stream, |row, wrongs| {
                match row.leased.remove(&id) {
                    Some(held) if held.lease == nack.lease => row.nacks.push((id, nack.clone())),
                    other => wrongs.push(format!("nack of {id} with {other:?}")),
                }
                Ok(())
            })
        })
    }
}
