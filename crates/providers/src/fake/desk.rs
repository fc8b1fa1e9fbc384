//! What the parts of a fake worker share: events and receipts on their way up (its spool, in
//! memory), and messages on their way to the agent.

use atoll_core::event::Source;
use atoll_core::id::{LeaseId, MessageId};
use atoll_core::json::raw;
use atoll_core::message::{Delivery, How, MessageType};
use atoll_core::sandbox::Activity;
use atoll_core::time::Clock;
use atoll_protocol::{Ack, Batch, LeaseAnswer, LeasedMessage, Nack};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::{Notify, watch};
use uuid::Uuid;

/// Each sandbox has one worker in its life, so its boots are never counted further.
pub(super) const BOOT: i64 = 1;
const MAX_BATCH: usize = 500;
const MAX_BATCH_BYTES: usize = 4 << 20;

enum Up {
    Event { json: Box<RawValue>, mark: Option<Mark> },
    Ack(MessageId, Ack),
    Nack(MessageId, Nack),
}

/// What is special about the end of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// After it the server may say that the sandbox is ending.
    TurnEnds,
    /// Nothing follows.
    Last,
}

/// The next thing to send: it stays in the outbox until it is settled.
pub(super) enum Parcel {
    Batch { batch: Batch, mark: Option<Mark> },
    Ack(MessageId, Ack),
    Nack(MessageId, Nack),
}

pub(super) struct Desk {
    pub(super) stream: Uuid,
    pub(super) activity: watch::Sender<Activity>,
    /// Off when there is no agent any more that could be told something.
    pub(super) listening: watch::Sender<bool>,
    /// Asks for a heartbeat now.
    pub(super) poke: Notify,
    clock: Arc<dyn Clock>,
    last_key: AtomicI64,
    outbox: watch::Sender<VecDeque<Up>>,
    inbox: watch::Sender<VecDeque<LeasedMessage>>,
    /// What the agent has been told, so that nothing comes twice before its eyes.
    handed: Mutex<HashMap<MessageId, (How, Option<i64>)>>,
}

impl Desk {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            stream: Uuid::now_v7(),
            activity: watch::Sender::new(Activity::Starting),
            listening: watch::Sender::new(true),
            poke: Notify::new(),
            clock,
            last_key: AtomicI64::new(0),
            outbox: watch::Sender::default(),
            inbox: watch::Sender::default(),
            handed: Mutex::default(),
        }
    }

    pub(super) fn now(&self) -> atoll_core::time::Timestamp {
        self.clock.now()
    }

    pub(super) fn last_key(&self) -> i64 {
        self.last_key.load(Ordering::Relaxed)
    }

    // Up.

    pub(super) fn emit(&self, event_type: &str, turn: Option<i64>, data: &Value) {
        self.put(event_type, Source::Agent, turn, data, None);
    }

    pub(super) fn emit_end_of_turn(&self, event_type: &str, turn: i64, data: &Value) {
        self.put(event_type, Source::Agent, Some(turn), data, Some(Mark::TurnEnds));
    }

    pub(super) fn emit_last(&self, event_type: &str, data: &Value) {
        self.put(event_type, Source::Worker, None, data, Some(Mark::Last));
    }

    fn put(&self, event_type: &str, source: Source, turn: Option<i64>, data: &Value, mark: Option<Mark>) {
        self.outbox.send_modify(|outbox| {
            let key = self.last_key.fetch_add(1, Ordering::Relaxed) + 1;
            let mut event =
                json!({"key": key, "type": event_type, "source": source, "at": self.clock.now(), "data": data});
            if let Some(turn) = turn {
                event["turn"] = turn.into();
            }
            outbox.push_back(Up::Event { json: raw(&event), mark });
        });
    }

    /// The agent has it.
    pub(super) fn hand(&self, message: &LeasedMessage, how: How, turn: Option<i64>) {
        crate::locked(&self.handed).insert(message.id, (how, turn));
        self.receipt(message, how, turn);
    }

    fn receipt(&self, message: &LeasedMessage, how: How, turn: Option<i64>) {
        let ack = Ack { stream: self.stream, lease: message.lease, how, turn };
        self.outbox.send_modify(|outbox| outbox.push_back(Up::Ack(message.id, ack)));
    }

    /// Gives back what the agent was never told.
    pub(super) fn give_back(&self) {
        for message in self.inbox.send_replace(VecDeque::new()) {
            let reason = "the sandbox is ending".to_owned();
            let nack = Nack { stream: self.stream, lease: message.lease, handed: false, reason, retry: true };
            self.outbox.send_modify(|outbox| outbox.push_back(Up::Nack(message.id, nack)));
        }
    }

    /// The oldest receipt, or the oldest events up to the next receipt.
    pub(super) async fn next_parcel(&self) -> Parcel {
        loop {
            // It can't fail: `self` holds the sender.
            let _ = self.outbox.subscribe().wait_for(|outbox| !outbox.is_empty()).await;
            if let Some(parcel) = self.parcel() {
                return parcel;
            }
        }
    }

    fn parcel(&self) -> Option<Parcel> {
        let outbox = self.outbox.borrow();
        match outbox.front()? {
            Up::Ack(id, ack) => return Some(Parcel::Ack(*id, *ack)),
            Up::Nack(id, nack) => return Some(Parcel::Nack(*id, nack.clone())),
            Up::Event { .. } => {}
        }
        let (mut events, mut bytes, mut last_mark) = (Vec::new(), 0, None);
        for up in outbox.iter().take(MAX_BATCH) {
            match up {
                Up::Event { json, mark } if events.is_empty() || bytes + json.get().len() <= MAX_BATCH_BYTES => {
                    bytes += json.get().len();
                    events.push(json.clone());
                    last_mark = mark.or(last_mark);
                }
                Up::Event { .. } | Up::Ack(..) | Up::Nack(..) => break,
            }
        }
        let is_final = last_mark == Some(Mark::Last);
        let batch = Batch { stream: self.stream, boot: Some(BOOT), by: None, is_final, events };
        Some(Parcel::Batch { batch, mark: last_mark })
    }

    pub(super) fn settle(&self, parcel: &Parcel) {
        let count = match parcel {
            Parcel::Batch { batch, .. } => batch.events.len(),
            Parcel::Ack(..) | Parcel::Nack(..) => 1,
        };
        self.outbox.send_modify(|outbox| drop(outbox.drain(..count)));
    }

    pub(super) async fn all_sent(&self) {
        let _ = self.outbox.subscribe().wait_for(VecDeque::is_empty).await;
    }

    // Down.

    pub(super) fn leases(&self) -> Vec<LeaseId> {
        self.inbox.borrow().iter().map(|message| message.lease).collect()
    }

    /// Takes in what was leased. What the agent has been told before gets its receipt again.
    pub(super) fn take_in(&self, answer: LeaseAnswer) {
        self.inbox.send_modify(|inbox| {
            inbox.retain(|message| !answer.lost.contains(&message.lease));
            for message in answer.items {
                let handed = crate::locked(&self.handed).get(&message.id).copied();
                match handed {
                    Some((how, turn)) => self.receipt(&message, how, turn),
                    None => {
                        inbox.retain(|held| held.id != message.id);
                        inbox.push_back(message);
                    }
                }
            }
        });
    }

    /// The first message that `fits`, interrupts before others.
    pub(super) fn take(&self, fits: impl Fn(&LeasedMessage) -> bool) -> Option<LeasedMessage> {
        let mut taken = None;
        self.inbox.send_if_modified(|inbox| {
            let at = inbox.iter().position(is_interrupt).or_else(|| inbox.iter().position(&fits));
            taken = at.and_then(|at| inbox.remove(at));
            taken.is_some()
        });
        taken
    }

    /// Until there is an interrupt or a message that `fits`.
    pub(super) async fn until(&self, fits: impl Fn(&LeasedMessage) -> bool) {
        let fits = |message: &LeasedMessage| is_interrupt(message) || fits(message);
        let _ = self.inbox.subscribe().wait_for(|inbox| inbox.iter().any(fits)).await;
    }
}

pub(super) fn is_interrupt(message: &LeasedMessage) -> bool {
    message.message_type == MessageType::Interrupt
}

/// May be told in the running turn.
pub(super) fn steers(message: &LeasedMessage) -> bool {
    message.delivery == Delivery::Steer
}
