//! A minimal server: accepts events in order, leases each message once and records protocol violations.

use atoll_core::BoxFuture;
use atoll_core::id::{LeaseId, MessageId, SandboxId, SessionId};
use atoll_core::message::{Delivery, DeliveryMethod, MessageType};
use atoll_core::sandbox::{Activity, SandboxState, Settings};
use atoll_protocol::link::{LinkError, WorkerLink};
use atoll_protocol::{
    Ack, Batch, BatchAnswer, Heartbeat, HeartbeatAnswer, LeaseAnswer, LeaseRequest, LeasedMessage, Nack, Start,
};
use bytes::Bytes;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

pub(super) const HEARTBEAT_SECONDS: u32 = 30;

#[derive(Default)]
pub(super) struct SandboxRow {
    pub(super) state: Option<SandboxState>,
    pub(super) heartbeats: Vec<(Instant, Activity)>,
    pub(super) events: Vec<Value>,
    pub(super) acks: Vec<(MessageId, DeliveryMethod, Option<i64>)>,
    pub(super) nacks: Vec<(MessageId, Nack)>,
    pub(super) duplicates: usize,
    pub(super) is_final: bool,
    /// Moves to `completing` when a turn has ended and every message is acknowledged.
    pub(super) when_done: bool,
    turn_ended: bool,
    stream: Option<Uuid>,
    last_key: i64,
    /// Stream and key of the last heartbeat.
    reported_key: Option<(Uuid, i64)>,
    prompt: Option<LeasedMessage>,
    queued: VecDeque<LeasedMessage>,
    leased: BTreeMap<MessageId, LeasedMessage>,
}

#[derive(Default)]
struct ServerState {
    blobs: BTreeMap<(SandboxId, String), Bytes>,
    rows: BTreeMap<SandboxId, SandboxRow>,
    violations: Vec<String>,
    down: bool,
}

#[derive(Default)]
pub(super) struct RecordingServer(Mutex<ServerState>);

fn leased_message(content: &str, message_type: MessageType, delivery: Delivery) -> LeasedMessage {
    LeasedMessage { message_type, ..LeasedMessage::example(content, delivery) }
}

impl RecordingServer {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    fn server_state(&self) -> MutexGuard<'_, ServerState> {
        self.0.lock().unwrap()
    }

    pub(super) fn with_row<T>(&self, sandbox: SandboxId, look: impl FnOnce(&mut SandboxRow) -> T) -> T {
        look(self.server_state().rows.entry(sandbox).or_default())
    }

    pub(super) fn set_prompt(&self, sandbox: SandboxId, content: &str) {
        let prompt = leased_message(content, MessageType::UserMessage, Delivery::Steer);
        self.with_row(sandbox, |row| {
            if !content.is_empty() {
                row.leased.insert(prompt.id, prompt.clone());
                row.prompt = Some(prompt);
            }
        });
    }

    pub(super) fn send_message(&self, sandbox: SandboxId, content: &str, delivery: Delivery) -> MessageId {
        self.queue_message(sandbox, leased_message(content, MessageType::UserMessage, delivery))
    }

    pub(super) fn send_interrupt(&self, sandbox: SandboxId) -> MessageId {
        self.queue_message(sandbox, leased_message("stop", MessageType::Interrupt, Delivery::Steer))
    }

    fn queue_message(&self, sandbox: SandboxId, message: LeasedMessage) -> MessageId {
        let id = message.id;
        self.with_row(sandbox, |row| row.queued.push_back(message));
        id
    }

    /// Leases the message again, as after an expired lease.
    pub(super) fn lease_again(&self, sandbox: SandboxId, content: &str) {
        self.with_row(sandbox, |row| {
            let mut again = row.prompt.clone().unwrap();
            assert_eq!(again.content, content);
            again.lease = LeaseId::new();
            row.leased.remove(&again.id);
            row.queued.push_back(again);
        });
    }

    pub(super) fn set_state(&self, sandbox: SandboxId, state: SandboxState) {
        self.with_row(sandbox, |row| row.state = Some(state));
    }

    pub(super) fn set_down(&self, down: bool) {
        self.server_state().down = down;
    }

    pub(super) fn stored_events(&self, sandbox: SandboxId) -> Vec<Value> {
        self.with_row(sandbox, |row| row.events.clone())
    }

    pub(super) fn event_types(&self, sandbox: SandboxId) -> Vec<String> {
        self.stored_events(sandbox).iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }

    pub(super) fn assert_no_violations(&self) {
        let violations = &self.server_state().violations;
        assert!(violations.is_empty(), "{violations:#?}");
    }

    /// Handles one call of a worker, unless the server is down.
    fn handle_call<T>(
        &self,
        sandbox: SandboxId,
        stream: Uuid,
        act: impl FnOnce(&mut SandboxRow, &mut Vec<String>) -> Result<T, LinkError>,
    ) -> Result<T, LinkError> {
        let mut book = self.server_state();
        if book.down {
            return Err(LinkError::Unavailable("down".into()));
        }
        let ServerState { rows, violations, .. } = &mut *book;
        let row = rows.entry(sandbox).or_default();
        if *row.stream.get_or_insert(stream) != stream {
            violations.push(format!("a second stream of {sandbox}"));
        }
        act(row, violations)
    }
}

impl SandboxRow {
    fn state(&self) -> SandboxState {
        self.state.unwrap_or(SandboxState::Running)
    }

    fn complete_if_done(&mut self) {
        if self.when_done && self.turn_ended && self.leased.is_empty() && self.queued.is_empty() {
            self.state = Some(SandboxState::Completing);
        }
    }

    fn store_batch(&mut self, batch: &Batch, violations: &mut Vec<String>) -> Result<BatchAnswer, LinkError> {
        for event in &batch.events {
            let event: Value = serde_json::from_str(event.get()).unwrap();
            let key = event["key"].as_i64().unwrap();
            if key <= self.last_key {
                self.duplicates += 1;
                continue;
            }
            if key != self.last_key + 1 || self.is_final {
                violations.push(format!("key {key} after {} (final: {})", self.last_key, self.is_final));
                return Err(LinkError::Rejected { code: "key_gap".into(), detail: String::new() });
            }
            self.last_key = key;
            self.turn_ended |= event["type"] == "agent.completed";
            self.events.push(event);
        }
        self.complete_if_done();
        self.is_final |= batch.is_final;
        Ok(BatchAnswer { last_key: self.last_key, ..BatchAnswer::default() })
    }
}

impl WorkerLink for RecordingServer {
    fn send_heartbeat<'a>(
        &'a self,
        sandbox: SandboxId,
        heartbeat: &'a Heartbeat,
    ) -> BoxFuture<'a, Result<HeartbeatAnswer, LinkError>> {
        Box::pin(async move {
            self.handle_call(sandbox, heartbeat.stream, |row, violations| {
                row.heartbeats.push((Instant::now(), heartbeat.activity));
                // Events may overtake a heartbeat, but the next heartbeat never reports less than the last one.
                let reported = row.reported_key.replace((heartbeat.stream, heartbeat.last_key));
                if reported.is_some_and(|(stream, key)| stream == heartbeat.stream && heartbeat.last_key < key) {
                    violations.push(format!("a heartbeat forgot a key: {reported:?}, then {}", heartbeat.last_key));
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
                    acp: None,
                    project_id: None,
                    callback_url: None,
                    files: Vec::new(),
                });
                Ok(HeartbeatAnswer { state: row.state(), interval_s: HEARTBEAT_SECONDS, start })
            })
        })
    }

    fn send_events<'a>(
        &'a self,
        sandbox: SandboxId,
        batch: &'a Batch,
    ) -> BoxFuture<'a, Result<BatchAnswer, LinkError>> {
        Box::pin(async move {
            self.handle_call(sandbox, batch.stream, |row, violations| row.store_batch(batch, violations))
        })
    }

    fn send_blob<'a>(
        &'a self,
        sandbox: SandboxId,
        sha256: &'a str,
        content: Bytes,
    ) -> BoxFuture<'a, Result<(), LinkError>> {
        self.server_state().blobs.insert((sandbox, sha256.to_owned()), content);
        Box::pin(std::future::ready(Ok(())))
    }

    fn lease_messages<'a>(
        &'a self,
        sandbox: SandboxId,
        request: &'a LeaseRequest,
    ) -> BoxFuture<'a, Result<LeaseAnswer, LinkError>> {
        Box::pin(async move {
            let until = Instant::now() + Duration::from_secs(request.wait_s.into());
            loop {
                let (items, state) = self.handle_call(sandbox, request.stream, |row, _| {
                    if row.state() == SandboxState::Completing {
                        return Ok((Vec::new(), Some(SandboxState::Completing)));
                    }
                    if !row.state().accepts_messages() {
                        return Err(LinkError::Rejected { code: "sandbox_ended".into(), detail: String::new() });
                    }
                    let count = row.queued.len().min(request.max as usize);
                    let items: Vec<LeasedMessage> = row.queued.drain(..count).collect();
                    row.leased.extend(items.iter().map(|item| (item.id, item.clone())));
                    Ok((items, None))
                })?;
                if !items.is_empty() || state.is_some() || Instant::now() >= until {
                    return Ok(LeaseAnswer { items, lost: Vec::new(), state });
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    }

    fn send_ack<'a>(&'a self, sandbox: SandboxId, id: MessageId, ack: &'a Ack) -> BoxFuture<'a, Result<(), LinkError>> {
        Box::pin(async move {
            self.handle_call(sandbox, ack.stream, |row, violations| {
                match row.leased.remove(&id) {
                    Some(leased) if leased.lease == ack.lease => row.acks.push((id, ack.how, ack.turn)),
                    None if row.acks.iter().any(|(acked, ..)| *acked == id) => row.duplicates += 1,
                    other => violations.push(format!("ack of {id} with {other:?}")),
                }
                row.complete_if_done();
                Ok(())
            })
        })
    }

    fn send_nack<'a>(
        &'a self,
        sandbox: SandboxId,
        id: MessageId,
        nack: &'a Nack,
    ) -> BoxFuture<'a, Result<(), LinkError>> {
        Box::pin(async move {
            self.handle_call(sandbox, nack.stream, |row, violations| {
                match row.leased.remove(&id) {
                    Some(leased) if leased.lease == nack.lease => row.nacks.push((id, nack.clone())),
                    other => violations.push(format!("nack of {id} with {other:?}")),
                }
                Ok(())
            })
        })
    }
}
