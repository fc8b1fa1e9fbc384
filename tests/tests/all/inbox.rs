//! Random interleavings of sends, leases, acknowledgements, expiry, edits, new workers and restarts: the API must
//! match the pure state machine of `core::inbox`.

use atoll_core::id::{LeaseId, MessageId};
use atoll_core::inbox::{DeliveryInput, DeliveryState, Lease, apply_delivery_input};
use atoll_core::message::{DeliveryMethod, MessageState};
use atoll_core::time::{ManualClock, Timestamp};
use atoll_tests::actor::{Actor, ExternalSandbox};
use atoll_tests::database::DatabaseKind;
use atoll_tests::manual_worker::ManualWorker;
use atoll_tests::on_both_databases;
use atoll_tests::scale::{choose_seed, scale_count};
use atoll_tests::server::TestServer;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

on_both_databases!(
    any_interleaving_matches_the_pure_state_machine,
    messages_can_be_reordered_and_interrupts_go_first,
    a_queued_message_can_be_edited_until_the_turn_ends,
    messages_of_an_ended_sandbox_go_to_the_next_one,
    a_closed_session_delivers_nothing,
);

const START_MICROS: i64 = 1_800_000_000_000_000;
const LEASE_DURATION: Duration = Duration::from_secs(30);

/// The expected inbox: the state of each message by the pure state machine, and the order of delivery.
#[derive(Default)]
struct InboxModel {
    messages: BTreeMap<MessageId, (i64, bool, DeliveryState)>,
    acknowledged: usize,
}

impl InboxModel {
    fn next_available(&self, now: Timestamp) -> Option<MessageId> {
        let free = |delivery: &DeliveryState| match delivery.state {
            MessageState::Queued => true,
            MessageState::Leased => delivery.lease.is_some_and(|lease| lease.expires_at <= now),
            _ => false,
        };
        let available = self.messages.iter().filter(|(_, (_, _, delivery))| free(delivery));
        available.min_by_key(|(_, (position, interrupt, _))| (!interrupt, *position)).map(|(id, _)| *id)
    }

    fn apply_step(&mut self, id: MessageId, input: DeliveryInput, now: Timestamp) -> bool {
        let entry = self.messages.get_mut(&id).unwrap();
        match apply_delivery_input(entry.2, input, now) {
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

struct InboxTest {
    admin: Actor,
    sandbox: ExternalSandbox,
    worker: ManualWorker,
    clock: Arc<ManualClock>,
    now: Timestamp,
    model: InboxModel,
    /// Every message that the worker ever leased, as the worker got it.
    leases: Vec<Value>,
}

fn message_id(message: &Value) -> MessageId {
    message["id"].as_str().unwrap().parse().unwrap()
}

fn lease_id(message: &Value) -> LeaseId {
    message["lease"].as_str().unwrap().parse().unwrap()
}

impl InboxTest {
    async fn run_random_step(&mut self, rng: &mut StdRng) {
        match rng.random_range(0..12) {
            0..=2 => self.send_message(rng.random_bool(0.2)).await,
            3..=4 => self.lease_messages(rng.random_range(1..4)).await,
            5..=6 => self.ack_random(rng).await,
            7 => self.nack_random(rng).await,
            8 => self.change_random(rng).await,
            9 => {
                let span = Duration::from_secs(rng.random_range(1..40));
                self.clock.advance(span);
                self.now = self.now + span;
            }
            10 => self.replace_worker().await,
            _ => self.renew_random(rng).await,
        }
    }

    async fn send_message(&mut self, interrupt: bool) {
        let path = format!("/sandboxes/{}/messages", self.sandbox.id);
        let kind = if interrupt { "interrupt" } else { "user_message" };
        let sent = self.admin.post(&path, json!({ "content": "go", "type": kind })).await.expect_status(201);
        let position = sent["position"].as_i64().unwrap();
        self.model.messages.insert(message_id(&sent), (position, interrupt, DeliveryState::QUEUED));
    }

    async fn lease_messages(&mut self, max: u32) {
        for message in self.worker.lease_messages(max).await {
            let expected = self.model.next_available(self.now);
            assert_eq!(Some(message_id(&message)), expected, "messages must be leased in order");
            let lease =
                Lease { id: lease_id(&message), stream: self.worker.stream, expires_at: self.now + LEASE_DURATION };
            assert!(self.model.apply_step(message_id(&message), DeliveryInput::Lease(lease), self.now));
            self.leases.push(message);
        }
    }

    /// The worker's current lease of the message, which may be newer than the one in `message`.
    fn current_lease(&self, message: &Value) -> Option<LeaseId> {
        self.model.messages[&message_id(message)].2.lease_held_by(self.worker.stream)
    }

    async fn ack_random(&mut self, rng: &mut StdRng) {
        let Some(message) = pick_random(&self.leases, rng) else { return };
        let lease = self.current_lease(&message).unwrap_or(lease_id(&message));
        let input = DeliveryInput::Ack { lease, delivery_method: DeliveryMethod::Injected, turn: None };
        let expected = self.model.apply_step(message_id(&message), input, self.now);
        let answer = self.worker.ack_message(&message, "injected", None).await;
        assert_eq!(answer.status.is_success(), expected, "{}", answer.body);
    }

    async fn nack_random(&mut self, rng: &mut StdRng) {
        let Some(message) = pick_random(&self.leases, rng) else { return };
        let (handed, retry) = (rng.random_bool(0.4), rng.random_bool(0.7));
        let current = self.current_lease(&message).filter(|_| handed || !retry);
        let input = DeliveryInput::Nack {
            lease: current.unwrap_or(lease_id(&message)),
            was_handed_over: handed,
            may_retry: retry,
        };
        let expected = self.model.apply_step(message_id(&message), input, self.now);
        let answer = self.worker.nack_message(&message, handed, retry).await;
        assert_eq!(answer.status.is_success(), expected, "{}", answer.body);
    }

    async fn renew_random(&mut self, rng: &mut StdRng) {
        let Some(message) = pick_random(&self.leases, rng) else { return };
        let lease = lease_id(&message);
        let body = json!({ "stream": self.worker.stream, "max": 0, "renew": [lease] });
        let path = format!("/sandboxes/{}/messages/lease", self.sandbox.id);
        let answer = self.worker.actor.post(&path, body).await.expect_status(200);
        let input = DeliveryInput::Renew { lease, until: self.now + LEASE_DURATION };
        let expected = self.model.apply_step(message_id(&message), input, self.now);
        assert_eq!(answer["lost"].as_array().is_none_or(Vec::is_empty), expected);
    }

    async fn change_random(&mut self, rng: &mut StdRng) {
        let ids: Vec<MessageId> = self.model.messages.keys().copied().collect();
        let Some(id) = pick_random(&ids, rng) else { return };
        let path = format!("/sandboxes/{}/messages/{id}", self.sandbox.id);
        let (answer, input) = if rng.random_bool(0.5) {
            (self.admin.patch(&path, json!({ "content": "changed" })).await, DeliveryInput::Edit)
        } else {
            (self.admin.delete(&path).await, DeliveryInput::Cancel)
        };
        let expected = self.model.apply_step(id, input, self.now);
        assert_eq!(answer.status.is_success(), expected, "{}", answer.body);
    }

    async fn replace_worker(&mut self) {
        let stream = self.worker.stream;
        self.worker = self.worker.with_new_stream();
        self.worker.send_heartbeat("working").await.expect_status(200);
        for id in self.model.messages.keys().copied().collect::<Vec<_>>() {
            assert!(self.model.apply_step(id, DeliveryInput::StreamReplaced { stream }, self.now));
        }
    }

    async fn check_state(&self) {
        let path = format!("/sandboxes/{}/messages?limit=200", self.sandbox.id);
        let page = self.admin.get(&path).await.expect_status(200);
        let messages = page["items"].as_array().unwrap();
        assert_eq!(messages.len(), self.model.messages.len());
        for message in messages {
            let (position, _, delivery) = self.model.messages[&message_id(message)];
            assert_eq!(message["position"].as_i64(), Some(position));
            assert_eq!(message["state"].as_str(), Some(delivery.state.as_str()), "{message}");
        }
        let events = self.admin.all_events(&self.sandbox.id).await;
        let acknowledged = events.iter().filter(|event| event["type"] == "message.acknowledged").count();
        assert_eq!(acknowledged, self.model.acknowledged, "each acknowledgement must be in the log once");
    }
}

fn pick_random<T: Clone>(from: &[T], rng: &mut StdRng) -> Option<T> {
    if from.is_empty() { None } else { Some(from[rng.random_range(0..from.len())].clone()) }
}

async fn any_interleaving_matches_the_pure_state_machine(kind: DatabaseKind) {
    let mut rng = StdRng::seed_from_u64(choose_seed("inbox"));
    let clock = Arc::new(ManualClock::starting_at(Timestamp::from_micros(START_MICROS)));
    let mut server = TestServer::start_with_clock(kind, |_| {}, Some(Arc::clone(&clock) as _)).await;
    for _ in 0..scale_count(100) {
        let admin = server.admin();
        let sandbox = admin.create_external_sandbox(json!({})).await;
        let worker = ManualWorker { boot: Some(1), ..ManualWorker::new(&admin, &sandbox) };
        worker.send_heartbeat("working").await.expect_status(200);
        let now = atoll_core::time::Clock::now(&*clock);
        let (model, leases) = (InboxModel::default(), Vec::new());
        let mut run = InboxTest { admin, sandbox, worker, clock: Arc::clone(&clock), now, model, leases };
        for _ in 0..rng.random_range(5..60) {
            run.run_random_step(&mut rng).await;
            if rng.random_bool(0.03) {
                server.restart_with_clock(Arc::clone(&clock) as _).await;
            }
        }
        run.check_state().await;
    }
    server.stop().await;
}

async fn messages_can_be_reordered_and_interrupts_go_first(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    let mut ids = Vec::new();
    for content in ["a", "b", "c"] {
        ids.push(
            admin.post(&path, json!({ "content": content })).await.expect_status(201)["id"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    admin.patch(&format!("{path}/{}", ids[2]), json!({ "before": ids[0] })).await.expect_status(200);
    admin
        .patch(&format!("{path}/{}", ids[0]), json!({ "before": "msg_00000000000000000000000000" }))
        .await
        .expect_problem(422, "invalid");
    admin.post(&path, json!({ "content": "stop!", "type": "interrupt" })).await.expect_status(201);
    let leased: Vec<Value> = worker.lease_messages(10).await;
    let contents: Vec<&str> = leased.iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(contents, ["stop!", "c", "a", "b"]);
    admin
        .patch(&format!("{path}/{}", ids[0]), json!({ "content": "x" }))
        .await
        .expect_problem(409, "message_not_queued");
    server.stop().await;
}

async fn a_queued_message_can_be_edited_until_the_turn_ends(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let mut worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    worker.send_events(&["agent.started"]).await;
    let path = format!("/sandboxes/{}/messages", sandbox.id);
    let later = admin.post(&path, json!({ "content": "later", "delivery": "queue" })).await.expect_status(201);
    admin.post(&path, json!({ "content": "now" })).await.expect_status(201);
    let leased = worker.lease_messages(10).await;
    assert_eq!((leased.len(), leased[0]["content"].as_str()), (1, Some("now")));
    worker.ack_message(&leased[0], "injected", None).await.expect_status(200);
    let message = format!("{path}/{}", later["id"].as_str().unwrap());
    admin.patch(&message, json!({ "content": "even later" })).await.expect_status(200);
    assert!(worker.lease_messages(10).await.is_empty(), "the turn has not ended");
    worker.send_events(&["agent.completed"]).await;
    let leased = worker.lease_messages(10).await;
    assert_eq!((leased.len(), leased[0]["content"].as_str()), (1, Some("even later")));
    server.stop().await;
}

async fn messages_of_an_ended_sandbox_go_to_the_next_one(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    let sent = admin
        .post(&format!("/sandboxes/{}/messages", sandbox.id), json!({ "content": "hello" }))
        .await
        .expect_status(201);
    assert_eq!(worker.lease_messages(1).await.len(), 1);
    admin.post(&format!("/sandboxes/{}/stop", sandbox.id), json!({ "results": "discard" })).await.expect_status(200);
    let messages = admin.get(&format!("/sessions/{}/messages", sandbox.session)).await.expect_status(200);
    assert_eq!(messages["items"][0]["state"], "queued");
    let resumed = admin.post(&format!("/sessions/{}/resume", sandbox.session), json!({})).await.expect_status(201);
    let next = ExternalSandbox {
        id: resumed["id"].as_str().unwrap().to_owned(),
        session: sandbox.session.clone(),
        token: resumed["worker"]["token"].as_str().unwrap().to_owned(),
    };
    let first = ManualWorker::new(&admin, &next).send_heartbeat("starting").await.expect_status(200);
    assert_eq!(first["start"]["prompt"]["id"], sent["id"]);
    server.stop().await;
}

async fn a_closed_session_delivers_nothing(kind: DatabaseKind) {
    let server = TestServer::start(kind).await;
    let admin = server.admin();
    let sandbox = admin.create_external_sandbox(json!({})).await;
    let worker = ManualWorker::new(&admin, &sandbox);
    worker.send_heartbeat("working").await.expect_status(200);
    let path = format!("/sessions/{}", sandbox.session);
    admin.post(&format!("{path}/messages"), json!({ "content": "hello" })).await.expect_status(201);
    admin.patch(&path, json!({ "state": "closed" })).await.expect_status(200);
    let messages = admin.get(&format!("{path}/messages")).await.expect_status(200);
    assert_eq!(messages["items"][0]["state"], "undeliverable");
    assert_eq!(worker.send_heartbeat("working").await.expect_status(200)["state"], "completing");
    admin.post(&format!("{path}/messages"), json!({ "content": "x" })).await.expect_problem(409, "session_closed");
    admin.post(&format!("{path}/resume"), json!({})).await.expect_problem(409, "session_closed");
    server.stop().await;
}
