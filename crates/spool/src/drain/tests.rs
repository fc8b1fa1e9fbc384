use super::*;
use atoll_core::BoxFuture;
use atoll_core::id::{LeaseId, MessageId};
use atoll_core::message::DeliveryMethod;
use atoll_protocol::{BatchAnswer, BatchEvent, Heartbeat, HeartbeatAnswer, LeaseAnswer, LeaseRequest};
use std::collections::BTreeMap;
use std::sync::Mutex;
use uuid::Uuid;

/// Records what the drain sends; fails the first `failures` requests.
#[derive(Default)]
struct RecordingLink(Mutex<LinkState>);

#[derive(Default)]
struct LinkState {
    failures: u32,
    last_keys: BTreeMap<Uuid, i64>,
    acks: Vec<MessageId>,
}

type Answered<'a, T> = BoxFuture<'a, Result<T, LinkError>>;

impl RecordingLink {
    fn answer<'a, T: Send + 'a>(&self, apply: impl FnOnce(&mut LinkState) -> Result<T, LinkError>) -> Answered<'a, T> {
        let mut state = self.0.lock().unwrap();
        let answer = if state.failures > 0 {
            state.failures -= 1;
            Err(LinkError::Unavailable("the test says so".to_owned()))
        } else {
            apply(&mut state)
        };
        Box::pin(std::future::ready(answer))
    }
}

impl WorkerLink for RecordingLink {
    fn send_heartbeat<'a>(&'a self, _: SandboxId, _: &'a Heartbeat) -> Answered<'a, HeartbeatAnswer> {
        panic!("a drain sends no heartbeats")
    }

    fn send_events<'a>(&'a self, _: SandboxId, batch: &'a Batch) -> Answered<'a, BatchAnswer> {
        self.answer(|state| {
            let last_key = state.last_keys.entry(batch.stream).or_default();
            for event in &batch.events {
                let event: BatchEvent = serde_json::from_str(event.get()).unwrap();
                if event.key > *last_key + 1 {
                    return Err(LinkError::Rejected { code: "key_gap".to_owned(), detail: String::new() });
                }
                *last_key = event.key.max(*last_key);
            }
            Ok(BatchAnswer { last_key: *last_key, ..BatchAnswer::default() })
        })
    }

    fn lease_messages<'a>(&'a self, _: SandboxId, _: &'a LeaseRequest) -> Answered<'a, LeaseAnswer> {
        panic!("a drain leases no messages")
    }

    fn send_ack<'a>(&'a self, _: SandboxId, id: MessageId, _: &'a Ack) -> Answered<'a, ()> {
        self.answer(|state| {
            state.acks.push(id);
            Ok(())
        })
    }

    fn send_nack<'a>(&'a self, _: SandboxId, _: MessageId, _: &'a Nack) -> Answered<'a, ()> {
        self.answer(|_| Ok(()))
    }
}

/// Writes a spool with `count` events and one acknowledged message, as a worker that dies leaves it.
fn abandon_spool(dir: &Path, sandbox: SandboxId, count: i64) -> (SpoolStream, MessageId) {
    let spool = Spool::open(dir, sandbox).unwrap();
    let (mut journal, mut file, _) = load_journal(spool.dir()).unwrap();
    let (id, lease, stream) = (MessageId::new(), LeaseId::new(), spool.stream());
    let crate::journal::Arrival::New(record) = journal.receive_lease(id, lease) else { panic!("not new") };
    file.push(&record);
    assert!(journal.mark_handed_over(id));
    file.push(&journal.acknowledge(id, DeliveryOutcome::Ack { how: DeliveryMethod::NewTurn, turn: None }).unwrap().0);
    file.commit().unwrap();
    let (mut writer, ..) = spool.split().unwrap();
    for key in 1..=count {
        let json = serde_json::json!({"key": key, "type": "agent.message", "at": "2026-01-01T00:00:00Z"});
        writer.push(&serde_json::from_value(json).unwrap());
    }
    while writer.commit().unwrap().is_some() {}
    (stream, id)
}

const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn sends_events_and_acknowledgements_once() {
    let dir = tempfile::tempdir().unwrap();
    let (sandbox, link) = (SandboxId::new(), RecordingLink::default());
    let (stream, message) = abandon_spool(dir.path(), sandbox, 1_200);
    link.0.lock().unwrap().failures = 2;
    let drained = drain_spool(dir.path(), sandbox, &link, LIMIT).await.unwrap();
    assert_eq!(drained, DrainReport { events: 1_200, acknowledgements: 1, events_left: 0 });
    {
        let state = link.0.lock().unwrap();
        assert_eq!((state.last_keys[&stream.id], &state.acks[..]), (1_200, &[message][..]));
    }
    let again = drain_spool(dir.path(), sandbox, &link, LIMIT).await.unwrap();
    assert_eq!(again, DrainReport::default());
}

#[tokio::test]
async fn sends_everything_again_after_a_key_gap() {
    let dir = tempfile::tempdir().unwrap();
    let (sandbox, link) = (SandboxId::new(), RecordingLink::default());
    let (stream, _) = abandon_spool(dir.path(), sandbox, 10);
    std::fs::write(dir.path().join(format!("{stream}.ack")), "7\n").unwrap();
    let drained = drain_spool(dir.path(), sandbox, &link, LIMIT).await.unwrap();
    assert_eq!((drained.events_left, link.0.lock().unwrap().last_keys[&stream.id]), (0, 10));
}

#[tokio::test]
async fn leaves_a_locked_spool_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (sandbox, link) = (SandboxId::new(), RecordingLink::default());
    let _worker = Spool::open(dir.path(), sandbox).unwrap();
    let drained = drain_spool(dir.path(), sandbox, &link, Duration::from_millis(200)).await;
    assert!(matches!(drained, Err(Error::Spool(SpoolError::Locked { .. }))));
}
