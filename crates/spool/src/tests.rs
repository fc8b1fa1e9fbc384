use super::*;
use atoll_protocol::EventBlob;
use proptest::prelude::*;
use std::ops::RangeInclusive;

const LIMITS: BatchLimits = BatchLimits { max_events: 7, max_bytes: 400 };
const SEGMENT: u64 = 300;

fn open(dir: &Path, sandbox: SandboxId) -> (SpoolStream, SpoolWriter, SpoolReader, File) {
    let spool = Spool::open(dir, sandbox).unwrap();
    let stream = spool.stream();
    let (writer, outbox, lock) = spool.split_with(SEGMENT).unwrap();
    (stream, writer, outbox, lock)
}

fn append(writer: &mut SpoolWriter, stream: SpoolStream, keys: RangeInclusive<i64>) {
    for key in keys {
        let filler = "x".repeat(usize::try_from(key % 40).unwrap());
        let json = serde_json::json!({"key": key, "boot": stream.boot, "filler": filler}).to_string();
        writer.push_record(key, |buffer| buffer.extend_from_slice(json.as_bytes()));
    }
    while writer.commit().unwrap().is_some() {}
}

fn keys_of(batch: &SpooledBatch) -> Vec<(i64, i64)> {
    let field = |event: &serde_json::Value, name| event.get(name).and_then(serde_json::Value::as_i64).unwrap_or(-1);
    let events = batch.events.iter().map(|event| serde_json::from_str::<serde_json::Value>(event.get()).unwrap());
    events.map(|event| (field(&event, "boot"), field(&event, "key"))).collect()
}

/// Reads and acknowledges all remaining batches.
fn read_all(outbox: &mut SpoolReader, durable: i64) -> Vec<(i64, i64)> {
    let mut all = Vec::new();
    while let Some(batch) = outbox.next_batch(durable, LIMITS).unwrap() {
        let keys = keys_of(&batch);
        assert!(keys.len() <= LIMITS.max_events);
        assert_eq!((batch.first, batch.last), (keys[0].1, keys[keys.len() - 1].1));
        all.extend(keys);
        outbox.acknowledge(batch.stream, batch.last).unwrap();
    }
    all
}

fn files_ending(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    files.sort();
    files
}

fn push_with_blob(writer: &mut SpoolWriter, key: i64, content: &str) -> EventBlob {
    let json = format!(r#"{{"key":{key},"boot":1}}"#);
    writer.push_record(key, |buffer| buffer.extend_from_slice(json.as_bytes()));
    let blob = EventBlob::new(content.to_owned());
    writer.push_blob(key, blob.clone());
    blob
}

#[test]
fn a_blob_goes_with_its_event_and_leaves_with_its_acknowledgement() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    append(&mut writer, stream, 1..=2);
    let blob = push_with_blob(&mut writer, 3, "whole");
    assert_eq!(files_ending(dir.path(), ".blob").len(), 0, "nothing before the commit");
    writer.commit().unwrap();
    let batch = outbox.next_batch(2, LIMITS).unwrap().unwrap();
    assert!(batch.blobs.is_empty(), "it belongs to a later event");
    let batch = outbox.next_batch(3, LIMITS).unwrap().unwrap();
    assert_eq!((batch.blobs[0].sha256.as_str(), batch.blobs.len()), (blob.sha256.as_str(), 1));
    assert_eq!(batch.blobs[0].read().unwrap().unwrap(), b"whole");
    outbox.acknowledge(stream, 2).unwrap();
    assert_eq!(files_ending(dir.path(), ".blob").len(), 1);
    outbox.acknowledge(stream, 3).unwrap();
    assert_eq!(files_ending(dir.path(), ".blob").len(), 0);
    assert_eq!(batch.blobs[0].read().unwrap(), None);
}

#[test]
fn the_next_worker_sends_the_blobs_of_a_killed_one() {
    let (dir, sandbox) = (tempfile::tempdir().unwrap(), SandboxId::new());
    let (_, mut writer, outbox, lock) = open(dir.path(), sandbox);
    push_with_blob(&mut writer, 1, "whole");
    writer.commit().unwrap();
    // Killed after it wrote the blob and before it wrote the event.
    push_with_blob(&mut writer, 2, "orphan");
    writer.fail_next_commit();
    assert!(writer.commit().is_err());
    assert_eq!(files_ending(dir.path(), ".blob").len(), 2);
    drop((writer, outbox, lock));
    let (_, _, mut outbox, _lock) = open(dir.path(), sandbox);
    let batch = outbox.next_batch(0, LIMITS).unwrap().unwrap();
    assert_eq!((batch.last, batch.blobs.len()), (1, 1));
    assert_eq!(batch.blobs[0].read().unwrap().unwrap(), b"whole");
    outbox.acknowledge(batch.stream, 1).unwrap();
    assert_eq!(files_ending(dir.path(), ".blob"), Vec::<PathBuf>::new());
}

#[test]
fn blobs_count_towards_the_limit_of_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    writer.set_max_bytes(1_000);
    for key in [1, 2] {
        push_with_blob(&mut writer, key, &"x".repeat(600));
        writer.commit().unwrap();
    }
    push_with_blob(&mut writer, 3, "more");
    assert!(writer.commit().is_err());
    outbox.next_batch(2, LIMITS).unwrap();
    outbox.acknowledge(stream, 2).unwrap();
    assert_eq!(writer.commit().unwrap(), Some(3..=3));
}

#[test]
fn a_spool_at_its_limit_accepts_events_again_after_some_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    writer.set_max_bytes(3 * SEGMENT);
    let mut key = 0;
    let refused = loop {
        key += 1;
        writer.push_record(key, |buffer| buffer.extend_from_slice(format!(r#"{{"key":{key},"boot":1}}"#).as_bytes()));
        if let Err(error) = writer.commit() {
            break error;
        }
        assert!(key < 1000);
    };
    assert!(refused.to_string().contains("add to"), "{refused}");
    let stored = segment::measure_spool(dir.path()).unwrap().bytes;
    assert!((3 * SEGMENT..5 * SEGMENT).contains(&stored), "{stored}");
    assert!(writer.commit().is_err(), "the retry fails too");
    read_all(&mut outbox, key - 1);
    assert_eq!(writer.commit().unwrap(), Some(key..=key), "the pending event is not lost");
    append(&mut writer, stream, key + 1..=key + 3);
    assert_eq!(read_all(&mut outbox, key + 3).len(), 4);
}

#[test]
fn the_error_of_a_locked_spool_names_the_holder() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = SandboxId::new();
    let first = Spool::open(dir.path(), sandbox).unwrap();
    let error = Spool::open(dir.path(), sandbox).unwrap_err().to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
    drop(first);
    assert_eq!(Spool::open(dir.path(), sandbox).unwrap().stream().boot, 2);
}

#[test]
fn rejects_another_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    drop(Spool::open(dir.path(), SandboxId::new()).unwrap());
    assert!(matches!(Spool::open(dir.path(), SandboxId::new()), Err(Error::OtherSandbox { .. })));
}

#[test]
fn recovers_a_lost_boot_count_from_the_segments() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = SandboxId::new();
    for expected in 1..=3 {
        let (stream, mut writer, ..) = open(dir.path(), sandbox);
        assert_eq!(stream.boot, expected);
        append(&mut writer, stream, 1..=1);
    }
    fs::remove_file(dir.path().join("boot")).unwrap();
    assert_eq!(Spool::open(dir.path(), sandbox).unwrap().stream().boot, 4);
    fs::write(dir.path().join("boot"), "many").unwrap();
    assert!(matches!(Spool::open(dir.path(), sandbox), Err(Error::InvalidBootCount { .. })));
}

#[test]
fn deletes_acknowledged_segments_of_a_running_stream() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    for round in 0..50 {
        append(&mut writer, stream, round * 10 + 1..=round * 10 + 10);
        assert_eq!(read_all(&mut outbox, round * 10 + 10).len(), 10);
        assert!(files_ending(dir.path(), ".log").len() <= 2);
    }
}

#[test]
fn a_lower_acknowledgement_sends_events_again() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    append(&mut writer, stream, 1..=5);
    assert_eq!(read_all(&mut outbox, 5).len(), 5);
    outbox.acknowledge(stream, 2).unwrap();
    assert_eq!(outbox.progress(), SpoolProgress { acked: 2, older_unacked: 0 });
    assert_eq!(read_all(&mut outbox, 5), [(1, 3), (1, 4), (1, 5)]);
}

#[test]
fn reports_damaged_records_as_lost_events() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    for key in 1..=40 {
        append(&mut writer, stream, key..=key);
    }
    let damaged = &files_ending(dir.path(), ".log")[1];
    let mut bytes = fs::read(damaged).unwrap();
    bytes[record::HEADER_BYTES + 2] ^= 1;
    fs::write(damaged, bytes).unwrap();
    let all = read_all(&mut outbox, 40);
    assert_eq!(all.iter().map(|(_, key)| *key).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
    let lost = all.iter().filter(|(boot, _)| *boot == -1).count();
    assert!((1..10).contains(&lost), "{lost}");
}

#[test]
fn the_next_commit_repairs_a_failed_one() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    append(&mut writer, stream, 1..=2);
    writer.fail_next_commit();
    writer.push_record(3, |buffer| buffer.extend_from_slice(br#"{"key":3,"boot":1}"#));
    assert!(writer.commit().is_err());
    assert_eq!(writer.commit().unwrap(), Some(3..=3));
    assert_eq!(writer.commit().unwrap(), None);
    assert_eq!(read_all(&mut outbox, 3), [(1, 1), (1, 2), (1, 3)]);
}

#[test]
fn frees_a_full_disk_of_acknowledged_segments() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    append(&mut writer, stream, 1..=2);
    assert_eq!(read_all(&mut outbox, 2).len(), 2);
    let [only] = &files_ending(dir.path(), ".log")[..] else { panic!("one segment") };
    // On a full disk the writer leaves an empty segment.
    File::create(segment::segment_path(dir.path(), stream, 3)).unwrap();
    outbox.remove_sent_segments().unwrap();
    assert!(!only.exists());
}

#[derive(Debug, Clone)]
enum SpoolStep {
    Append(i64),
    /// Sends and acknowledges some batches.
    Send(usize),
    /// Kills the worker, truncates its last segment by `cut` bytes, and starts another.
    Restart {
        cut: u64,
    },
    /// Restarts the worker and removes the position files.
    RestartWithoutPosition,
}

fn any_step() -> impl Strategy<Value = SpoolStep> {
    prop_oneof![
        4 => (1i64..30).prop_map(SpoolStep::Append),
        3 => (1usize..5).prop_map(SpoolStep::Send),
        1 => (0u64..200).prop_map(|cut| SpoolStep::Restart { cut }),
        1 => Just(SpoolStep::RestartWithoutPosition),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any order of appends, acknowledgements, rotations, truncations and restarts, the server gets every complete
    /// record of every stream in order.
    #[test]
    fn reads_complete_records_in_order(steps in proptest::collection::vec(any_step(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let sandbox = SandboxId::new();
        let (mut stream, mut writer, mut outbox, mut lock) = open(dir.path(), sandbox);
        let mut durable = 0;
        // (boot, key) of the events that must reach the server, and of those that did.
        let mut expected: Vec<(i64, i64)> = Vec::new();
        let mut stored: Vec<(i64, i64)> = Vec::new();
        for step in steps {
            match step {
                SpoolStep::Append(count) => {
                    append(&mut writer, stream, durable + 1..=durable + count);
                    expected.extend((durable + 1..=durable + count).map(|key| (stream.boot, key)));
                    durable += count;
                }
                SpoolStep::Send(batches) => {
                    for _ in 0..batches {
                        let Some(batch) = outbox.next_batch(durable, LIMITS).unwrap() else { break };
                        stored.extend(keys_of(&batch));
                        outbox.acknowledge(batch.stream, batch.last).unwrap();
                    }
                }
                SpoolStep::Restart { cut } => {
                    drop((writer, outbox, lock));
                    let last = segment::list_segments(dir.path(), stream).unwrap().pop();
                    if let Some(last) = last {
                        let file = File::options().write(true).open(&last.path).unwrap();
                        let length = file.metadata().unwrap().len();
                        file.set_len(length.saturating_sub(cut)).unwrap();
                    }
                    let whole = segment::last_key(dir.path(), stream).unwrap();
                    let lost: Vec<_> = expected.extract_if(.., |(boot, key)| *boot == stream.boot && *key > whole).collect();
                    prop_assert!(cut > 0 || lost.is_empty());
                    // The server keeps those that it has stored.
                    expected.extend(lost.iter().filter(|event| stored.contains(event)));
                    expected.sort_unstable();
                    (stream, writer, outbox, lock) = open(dir.path(), sandbox);
                    durable = 0;
                }
                SpoolStep::RestartWithoutPosition => {
                    drop((writer, outbox, lock));
                    for path in files_ending(dir.path(), ".ack") {
                        fs::remove_file(path).unwrap();
                    }
                    (stream, writer, outbox, lock) = open(dir.path(), sandbox);
                    durable = 0;
                }
            }
        }
        let progress = outbox.progress();
        let left = progress.older_unacked + durable - progress.acked;
        let rest = read_all(&mut outbox, durable);
        prop_assert_eq!(i64::try_from(rest.len()).unwrap(), left);
        stored.extend(rest);
        // The server ignores duplicates.
        let mut unique = Vec::new();
        for event in stored {
            if !unique.contains(&event) {
                unique.push(event);
            }
        }
        prop_assert!(unique.iter().all(|(boot, _)| *boot > 0), "no event is reported as lost");
        let in_order = unique.iter().is_sorted();
        prop_assert!(in_order);
        prop_assert_eq!(unique, expected);
        prop_assert!(files_ending(dir.path(), ".log").len() <= 1);
        drop(lock);
    }
}
