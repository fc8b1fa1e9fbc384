//! Any interleaving of sending, leasing, receipts, expiry, changes, new workers and restarts: what
//! the API says is what the pure rule says.

use atoll_core::id::{LeaseId, MessageId};
use atoll_core::inbox::{Lease, Standing, Step, step};
use atoll_core::message::{How, MessageState};
use atoll_core::time::{ManualClock, Timestamp};
use atoll_tests::actor::{Actor, External};
use atoll_tests::database::Kind;
use atoll_tests::on_both_databases;
use atoll_tests::scale::{scaled, seed};
use atoll_tests::server::TestServer;
use atoll_tests::worker::HandWorker;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

on_both_databases!(
    any_interleaving_follows_the_rule,
    order_and_moves,
    what_waits_for_the_turn_s_end_can_be_changed_until_then,
    what_an_ended_sandbox_held_waits_for_the_next,
    a_closed_session_delivers_nothing,
);

const START: i64 = 1_800_000_000_000_000;
const LEASE: Duration = Duration::from_secs(30);

/// What should be: each message by the pure rule, and the order they are handed out in.
#[derive(Default)]
struct Model {
    messages: BTreeMap<MessageId, (i64, bool, Standing)>,
    acknowledged: usize,
}

impl Model {
    fn next_available(&self, now: Timestamp) -> Option<MessageId> {
        let free = |standing: &Standing| match standing.state {
            MessageState::Queued => true,
            MessageState::Leased => standing.lease.is_some_and(|lease| lease.until <= now),
            _ => false,
        };
        let available = self.messages.iter().filter(|(_, (_, _, standing))| free(standing));
        available.min_by_key(|(_, (position, interrupt, _))| (!interrupt, *position)).map(|(id, _)| *id)
    }

    fn take(&mut self, id: MessageId, taken: Step, now: Timestamp) -> bool {
        let entry = self.messages.get_mut(&id).unwrap();
        match step(entry.2, taken, now) {
            Ok(after) => {
                let newly = after.state == MessageState::Acknowledged && entry.2.state != after.state;
                self.acknowledged += usize::from(newly);
                entry.2 = after;
                true
            }
            Err(_) => false,
        }
    }
}

struct Run {
    admin: Actor,
    sandbox: External,
    worker: HandWorker,
    clock: Arc<ManualClock>,
    now: Timestamp,
    model: Model,
    /// Every lease that was ever given out, as the worker got it.
    leases: Vec<Value>,
}

fn id_of(message: &Value) -> MessageId {
    message["id"].as_str().unwrap().parse().unwrap()
}

fn lease_of(message: &Value) -> LeaseId {
    message["lease"].as_str().unwrap().parse().unwrap()
}

impl Run {
    async fn one(&mut self, rng: &mut StdRng) {
        match rng.random_range(0..12) {
            0..=2 => self.send(rng.random_bool(0.2)).await,
            3..=4 => self.lease(rng.random_range(1..4)).await,
            5..=6 => self.ack(rng).await,
            7 => self.nack(rng).await,
            8 => self.change(rng).await,
            9 => {
                let span = Duration::from_secs(rng.random_range(1..40));
                self.clock.advance(span);
                self.now = self.now + span;
            }
            10 => self.new_worker().await,
            _ => self.renew(rng).await,
        }
    }

    async fn send(&mut self, interrupt: bool) {
        let path = format!("/sandboxes/{}/messages", self.sandbox.id);
        let kind = if interrupt { "interrupt" } else { "user_message" };
        let sent = self.admin.post(&path, json!({ "content": "go", "type": kind })).await.expect(201);
        let position = sent["position"].as_i64().unwrap();
        self.model.messages.insert(id_of(&sent), (position, interrupt, Standing::QUEUED));
    }

    async fn lease(&mut self, max: u32) {
        for message in self.worker.lease(max).await {
            let expected = self.model.next_available(self.now);
            assert_eq!(Some(id_of(&message)), expected, "in the right order");
            let lease = Lease { id: lease_of(&message), stream: self.worker.stream, until: self.now + LEASE };
            assert!(self.model.take(id_of(&message), Step::Lease(lease), self.now));
            self.leases.push(message);
        }
    }

    /// The lease that the worker holds the message under now, which may be a newer one.
    fn held(&self, message: &Value) -> Option<LeaseId> {
        self.model.messages[&id_of(message)].2.held_by(self.worker.stream)
    }

    async fn ack(&mut self, rng: &mut StdRng) {
        let Some(message) = pick(&self.leases, rng) else { return };
        let lease = self.held(&message).unwrap_or(lease_of(&message));
        let taken = Step::Ack { lease, how: How::Injected, turn: None };
        let expected = self.model.take(id_of(&message), taken, self.now);
        let answer = self.worker.ack(&message, "injected", None).await;
        assert_eq!(answer.status.is_success(), expected, "{}", answer.body);
    }

    async fn nack(&mut self, rng: &mut StdRng) {
        let Some(message) = pick(&self.leases, rng) else { return };
        let (handed, retry) = (rng.random_bool(0.4), rng.random_bool(0.7));
        let held = self.held(&message).filter(|_| handed || !retry);
        let taken = Step::Nack { lease: held.unwrap_or(lease_of(&message)), handed, retry };
        let expected = self.model.take(id_of(&message), taken, self.now);
        let answer = self.worker.nack(&message, handed, retry).await;
        assert_eq!(answer.status.is_success(), expected, "{}", answer.body);
    }

    async fn renew(&mut self, rng: &mut StdRng) {
        let Some(message) = pick(&self.leases, rng) else { return };
        let lease = lease_of(&message);
        let body = json!({ "stream": self.worker.stream, "max": 0, "renew": [lease] });
        let path = format!("/sandboxes/{}/messages/lease", self.sandbox.id);
        let answer = self.worker.actor.post(&path, body).await.expect(200);
        let taken = Step::Renew { lease, until: self.now + LEASE };
        let expected = self.model.take(id_of(&message), taken, self.now);
        assert_eq!(answer["lost"].as_array().is_none_or(Vec::is_empty), expected);
    }

    async fn change(&mut self, rng: &mut StdRng) {
        let ids: Vec<MessageId> = self.model.messages.keys().copied().collect();
        let Some(id) = pick(&ids, rng) else { return };
        let path = format!("/sandboxes/{}/messages/{id}", self.sandbox.id);
        let (answer, taken) = if rng.random_bool(0.5) {
            (self.admin.patch(&path, json!({ "content": "changed" })).await, Step::Edit)
        } else {
            (self.admin.delete(&path).await, Step::Cancel)
        };
        let expected = self.model.take(id, taken, self.now);
        assert_eq!(answer.status.is_success(), expected, "{}", answer.body);
    }

    async fn new_worker(&mut self) {
        let stream = self.worker.stream;
        self.worker = self.worker.restarted();
        self.worker.heartbeat("working").await.expect(200);
        for id in self.model.messages.keys().copied().collect::<Vec<_>>() {
            assert!(self.model.take(id, Step::StreamReplaced { stream }, self.now));
        }
    }

    async fn check(&self) {
        let path = format!("/sandboxes/{}/messages?limit=200", self.sandbox.id);
        let page = self.admin.get(&path).await.expect(200);
        let shown = page["items"].as_array().unwrap();
        assert_eq!(shown.len(), self.model.messages.len());
        for message in shown {
            let (position, _, standing) = self.model.messages[&id_of(message)];
            assert_eq!(message["position"].as_i64(), Some(position));
            assert_eq!(message["state"].as_str(), Some(standing.state.as_str()), "{message}");
        }
        let events = self.admin.all_events(&self.sandbox.id).await;
        let acknowledged = events.iter().filter(|event| event["type"] == "message.acknowledged").count();
        assert_eq!(acknowledged, self.model.acknowledged, "each receipt is in the log once");
    }
}

fn pick<T: Clone>(from: &[T], rng: &mut StdRng) -> Option<T> {
    if from.is_empty() { None } else { Some(from[rng.random_range(0..from.len())].clone()) }
}

async fn any_interleaving_follows_the_rule(kind: Kind) {
    let mut rng = StdRng::seed_from_u64(seed("inbox"));
    let clock = Arc::new(ManualClock::at(Timestamp::from_micros(START)));
    let mut server = TestServer::start_at(kind, |_| {}, Some(Arc::clone(&clock) as _)).await;
    for _ in 0..scaled(100) {
        let admin = server.admin();
        let sandbox = admin.external(json!({})).await;
        let worker = HandWorker { boot: Some(1), ..HandWorker::new(&admin, &sandbox) };
        worker.heartbeat("working").await.expect(200);
        let now = atoll_core::time::Clock::now(&*clock);
        let (model, leases) = (Model::default(), Vec::new());
        let mut run = Run { admin, sandbox, worker, clock: Arc::clone(&clock), now, model, leases };
        for _ in 0..rng.random_range(5..60) {
            run.one(&mut rng).await;
            if rng.random_bool(0.03) {
                server.restart_at(Arc::clone(&clock) as _).await;
            }
        }
        run.check().await;
    }
    server.stop().await;
}

async fn order_and_moves(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("working").await.expect(200);
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    let mut ids = Vec::new();
    for content in ["a", "b", "c"] {
        ids.push(admin.post(&path, json!({ "content": content })).await.expect(201)["id"].as_str().unwrap().to_owned());
    }
    admin.patch(&format!("{path}/{}", ids[2]), json!({ "before": ids[0] })).await.expect(200);
    admin
        .patch(&format!("{path}/{}", ids[0]), json!({ "before": "msg_00000000000000000000000000" }))
        .await
        .refused(422, "invalid");
    admin.post(&path, json!({ "content": "stop!", "type": "interrupt" })).await.expect(201);
    let handed: Vec<Value> = worker.lease(10).await;
    let contents: Vec<&str> = handed.iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(contents, ["stop!", "c", "a", "b"]);
    admin.patch(&format!("{path}/{}", ids[0]), json!({ "content": "x" })).await.refused(409, "message_not_queued");
    server.stop().await;
}

async fn what_waits_for_the_turn_s_end_can_be_changed_until_then(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let mut worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("working").await.expect(200);
    worker.say(&["agent.started"]).await;
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    let later = admin.post(&path, json!({ "content": "later", "delivery": "queue" })).await.expect(201);
    admin.post(&path, json!({ "content": "now" })).await.expect(201);
    let handed = worker.lease(10).await;
    assert_eq!((handed.len(), handed[0]["content"].as_str()), (1, Some("now")));
    worker.ack(&handed[0], "injected", None).await.expect(200);
    let mine = format!("{path}/{}", later["id"].as_str().unwrap());
    admin.patch(&mine, json!({ "content": "even later" })).await.expect(200);
    assert!(worker.lease(10).await.is_empty(), "the turn goes on");
    worker.say(&["agent.completed"]).await;
    let handed = worker.lease(10).await;
    assert_eq!((handed.len(), handed[0]["content"].as_str()), (1, Some("even later")));
    server.stop().await;
}

async fn what_an_ended_sandbox_held_waits_for_the_next(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("working").await.expect(200);
    let sent =
        admin.post(&format!("/sandboxes/{}/messages", sandbox.id), json!({ "content": "hello" })).await.expect(201);
    assert_eq!(worker.lease(1).await.len(), 1);
    admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({ "results": "discard" })).await.expect(200);
    let shown = admin.get(&format!("/sessions/{}/messages", sandbox.session)).await.expect(200);
    assert_eq!(shown["items"][0]["state"], "queued");
    let made = admin.post(&format!("/sessions/{}/resume", sandbox.session), json!({})).await.expect(201);
    let next = External {
        id: made["id"].as_str().unwrap().to_owned(),
        session: sandbox.session.clone(),
        token: made["worker"]["token"].as_str().unwrap().to_owned(),
    };
    let first = HandWorker::new(&admin, &next).heartbeat("starting").await.expect(200);
    assert_eq!(first["start"]["prompt"]["id"], sent["id"]);
    server.stop().await;
}

async fn a_closed_session_delivers_nothing(kind: Kind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.external(json!({})).await;
    let worker = HandWorker::new(&admin, &sandbox);
    worker.heartbeat("working").await.expect(200);
    let path = format!("/sessions/{}", sandbox.session);
    admin.post(&format!("{path}/messages"), json!({ "content": "hello" })).await.expect(201);
    admin.patch(&path, json!({ "state": "closed" })).await.expect(200);
    let messages = admin.get(&format!("{path}/messages")).await.expect(200);
    assert_eq!(messages["items"][0]["state"], "undeliverable");
    assert_eq!(worker.heartbeat("working").await.expect(200)["state"], "completing");
    admin.post(&format!("{path}/messages"), json!({ "content": "x" })).await.refused(409, "session_closed");
    admin.post(&format!("{path}/resume"), json!({})).await.refused(409, "session_closed");
    server.stop().await;
}
