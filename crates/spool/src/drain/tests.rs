use super::*;
use atoll_core::BoxFuture;
use atoll_core::id::{LeaseId, MessageId};
use atoll_core::message::DeliveryMethod;
use atoll_protocol::{BatchAnswer, BatchEvent, EventBlob, Heartbeat, HeartbeatAnswer, LeaseAnswer, LeaseRequest};
use bytes::Bytes;
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
    blobs: BTreeMap<String, Vec<u8>>,
    rejects_blobs: bool,
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

    fn send_blob<'a>(&'a self, _: SandboxId, sha256: &'a str, content: Bytes) -> Answered<'a, ()> {
        self.answer(|state| {
            if state.rejects_blobs {
                return Err(LinkError::Rejected { code: "log_full".to_owned(), detail: String::new() });
            }
            state.blobs.insert(sha256.to_owned(), content.to_vec());
            Ok(())
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

/// Writes a spool with one event that names a blob; returns the blob.
fn abandon_blob(dir: &Path, sandbox: SandboxId) -> EventBlob {
    let (mut writer, ..) = Spool::open(dir, sandbox).unwrap().split().unwrap();
    let blob = EventBlob::new("whole output".to_owned());
    let json = serde_json::json!({"key": 1, "type": "agent.message", "at": "2026-01-01T00:00:00Z"});
    writer.push(&serde_json::from_value(json).unwrap());
    writer.push_blob(1, blob.clone());
    writer.commit().unwrap();
    blob
}

fn blob_files(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".blob")).count()
}

#[tokio::test]
async fn sends_blobs_before_their_events() {
    let dir = tempfile::tempdir().unwrap();
    let (sandbox, link) = (SandboxId::new(), RecordingLink::default());
    let blob = abandon_blob(dir.path(), sandbox);
    link.0.lock().unwrap().failures = 1;
    let drained = drain_spool(dir.path(), sandbox, &link, LIMIT).await.unwrap();
    assert_eq!((drained.events, blob_files(dir.path())), (1, 0));
    assert_eq!(link.0.lock().unwrap().blobs[&blob.sha256], blob.content.as_bytes());
}

#[tokio::test]
async fn a_rejected_blob_does_not_keep_its_event() {
    let dir = tempfile::tempdir().unwrap();
    let (sandbox, link) = (SandboxId::new(), RecordingLink::default());
    abandon_blob(dir.path(), sandbox);
    link.0.lock().unwrap().rejects_blobs = true;
    let drained = drain_spool(dir.path(), sandbox, &link, LIMIT).await.unwrap();
    assert_eq!((drained.events, drained.events_left, blob_files(dir.path())), (1, 0, 0));
}

/// A dead worker can replace its blobs by links to the server's files.
#[tokio::test]
async fn does_not_follow_a_blob_out_of_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    let (spool, elsewhere) = (dir.path().join("spool"), dir.path().join("elsewhere"));
    let (sandbox, link) = (SandboxId::new(), RecordingLink::default());
    abandon_blob(&spool, sandbox);
    std::fs::write(&elsewhere, "a secret").unwrap();
    let entries = std::fs::read_dir(&spool).unwrap().map(|entry| entry.unwrap().path());
    let file = entries.into_iter().find(|path| path.extension().is_some_and(|it| it == "blob")).unwrap();
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
    let (_, reader, lock) = Spool::open_existing(&spool, sandbox).unwrap().split().unwrap();
    let mut reader = reader;
    let batch = reader.next_batch(0, BATCH_LIMITS).unwrap().unwrap();
    assert_eq!(batch.blobs[0].read().unwrap(), None, "the reader itself does not follow it");
    drop((reader, lock));
    let drained = drain_spool(&spool, sandbox, &link, LIMIT).await.unwrap();
    assert_eq!((drained.events, link.0.lock().unwrap().blobs.len()), (1, 0));
}
