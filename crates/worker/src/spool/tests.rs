use super::*;
use proptest::prelude::*;
use std::ops::RangeInclusive;

const LIMITS: Limits = Limits { events: 7, bytes: 400 };
const SEGMENT: u64 = 300;

fn open(dir: &Path, sandbox: SandboxId) -> (Stream, Writer, Outbox, File) {
    let spool = Spool::open(dir, sandbox).unwrap();
    let stream = spool.stream();
    let (writer, outbox, lock) = spool.split_with(SEGMENT).unwrap();
    (stream, writer, outbox, lock)
}

fn append(writer: &mut Writer, stream: Stream, keys: RangeInclusive<i64>) {
    for key in keys {
        let filler = "x".repeat(usize::try_from(key % 40).unwrap());
        let json = serde_json::json!({"key": key, "boot": stream.boot, "filler": filler}).to_string();
        writer.push_record(key, |buffer| buffer.extend_from_slice(json.as_bytes()));
    }
    while writer.commit().unwrap().is_some() {}
}

fn keys_of(taken: &Taken) -> Vec<(i64, i64)> {
    let field = |event: &serde_json::Value, name| event.get(name).and_then(serde_json::Value::as_i64).unwrap_or(-1);
    let events = taken.events.iter().map(|event| serde_json::from_str::<serde_json::Value>(event.get()).unwrap());
    events.map(|event| (field(&event, "boot"), field(&event, "key"))).collect()
}

/// Everything that is left, batch by batch, each acknowledged.
fn drain(outbox: &mut Outbox, durable: i64) -> Vec<(i64, i64)> {
    let mut all = Vec::new();
    while let Some(taken) = outbox.next_batch(durable, LIMITS).unwrap() {
        let keys = keys_of(&taken);
        assert!(keys.len() <= LIMITS.events);
        assert_eq!((taken.first, taken.last), (keys[0].1, keys[keys.len() - 1].1));
        all.extend(keys);
        outbox.acknowledge(taken.stream, taken.last).unwrap();
    }
    all
}

fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    files.sort();
    files
}

#[test]
fn a_bounded_spool_takes_no_more_until_some_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    writer.hold_at_most(3 * SEGMENT);
    let mut key = 0;
    let refused = loop {
        key += 1;
        writer.push_record(key, |buffer| buffer.extend_from_slice(format!(r#"{{"key":{key},"boot":1}}"#).as_bytes()));
        if let Err(error) = writer.commit() {
            break error;
        }
        assert!(key < 1000);
    };
    assert!(refused.to_string().contains("hold any more"), "{refused}");
    let held = segment::bytes(dir.path()).unwrap();
    assert!((3 * SEGMENT..5 * SEGMENT).contains(&held), "{held}");
    assert!(writer.commit().is_err(), "it is tried again, and still too much");
    drain(&mut outbox, key - 1);
    assert_eq!(writer.commit().unwrap(), Some(key..=key), "what waited is not lost");
    append(&mut writer, stream, key + 1..=key + 3);
    assert_eq!(drain(&mut outbox, key + 3).len(), 4);
}

#[test]
fn a_second_worker_is_told_who_holds_the_spool() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = SandboxId::new();
    let first = Spool::open(dir.path(), sandbox).unwrap();
    let error = Spool::open(dir.path(), sandbox).unwrap_err().to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
    drop(first);
    assert_eq!(Spool::open(dir.path(), sandbox).unwrap().stream().boot, 2);
}

#[test]
fn a_spool_is_of_one_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    drop(Spool::open(dir.path(), SandboxId::new()).unwrap());
    assert!(matches!(Spool::open(dir.path(), SandboxId::new()), Err(Error::OtherSandbox { .. })));
}

#[test]
fn a_boot_that_was_lost_is_counted_on_from_what_is_left() {
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
    assert!(matches!(Spool::open(dir.path(), sandbox), Err(Error::BadBoot { .. })));
}

#[test]
fn acknowledged_segments_go_while_the_stream_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    for round in 0..50 {
        append(&mut writer, stream, round * 10 + 1..=round * 10 + 10);
        assert_eq!(drain(&mut outbox, round * 10 + 10).len(), 10);
        assert!(files(dir.path(), ".log").len() <= 2);
    }
}

#[test]
fn a_server_that_wants_events_again_gets_them() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    append(&mut writer, stream, 1..=5);
    assert_eq!(drain(&mut outbox, 5).len(), 5);
    outbox.acknowledge(stream, 2).unwrap();
    assert_eq!(outbox.progress(), Progress { acked: 2, older_left: 0 });
    assert_eq!(drain(&mut outbox, 5), [(1, 3), (1, 4), (1, 5)]);
}

#[test]
fn what_the_disk_lost_is_reported_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    for key in 1..=40 {
        append(&mut writer, stream, key..=key);
    }
    let damaged = &files(dir.path(), ".log")[1];
    let mut bytes = fs::read(damaged).unwrap();
    bytes[record::HEADER + 2] ^= 1;
    fs::write(damaged, bytes).unwrap();
    let all = drain(&mut outbox, 40);
    assert_eq!(all.iter().map(|(_, key)| *key).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
    let lost = all.iter().filter(|(boot, _)| *boot == -1).count();
    assert!((1..10).contains(&lost), "{lost}");
}

#[test]
fn a_failed_commit_is_made_good_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    append(&mut writer, stream, 1..=2);
    writer.fail_next_commit();
    writer.push_record(3, |buffer| buffer.extend_from_slice(br#"{"key":3,"boot":1}"#));
    assert!(writer.commit().is_err());
    assert_eq!(writer.commit().unwrap(), Some(3..=3));
    assert_eq!(writer.commit().unwrap(), None);
    assert_eq!(drain(&mut outbox, 3), [(1, 1), (1, 2), (1, 3)]);
}

#[test]
fn a_full_disk_is_emptied_of_what_the_server_has() {
    let dir = tempfile::tempdir().unwrap();
    let (stream, mut writer, mut outbox, _lock) = open(dir.path(), SandboxId::new());
    append(&mut writer, stream, 1..=2);
    assert_eq!(drain(&mut outbox, 2).len(), 2);
    let [only] = &files(dir.path(), ".log")[..] else { panic!("one segment") };
    // What the writer leaves behind when the disk is full: a segment without anything in it.
    File::create(segment::segment_path(dir.path(), stream, 3)).unwrap();
    outbox.tidy().unwrap();
    assert!(!only.exists());
}

#[derive(Debug, Clone)]
enum Step {
    Append(i64),
    /// Sends some batches and has them acknowledged.
    Send(usize),
    /// Kills the worker, with so many bytes of its last segment not on disk, and starts another.
    Restart {
        cut: u64,
    },
    /// The same, and the position is lost too.
    RestartForgetful,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1i64..30).prop_map(Step::Append),
        3 => (1usize..5).prop_map(Step::Send),
        1 => (0u64..200).prop_map(|cut| Step::Restart { cut }),
        1 => Just(Step::RestartForgetful),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is appended, acknowledged, rotated, cut off and reopened: the server gets every
    /// whole record of every stream, in order, and never one that it has confirmed and that is deleted.
    #[test]
    fn whole_records_come_back_in_order(steps in proptest::collection::vec(any_step(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let sandbox = SandboxId::new();
        let (mut stream, mut writer, mut outbox, mut lock) = open(dir.path(), sandbox);
        let mut durable = 0;
        // What must reach the server, and what it has; (boot, key).
        let mut expected: Vec<(i64, i64)> = Vec::new();
        let mut stored: Vec<(i64, i64)> = Vec::new();
        for step in steps {
            match step {
                Step::Append(count) => {
                    append(&mut writer, stream, durable + 1..=durable + count);
                    expected.extend((durable + 1..=durable + count).map(|key| (stream.boot, key)));
                    durable += count;
                }
                Step::Send(batches) => {
                    for _ in 0..batches {
                        let Some(taken) = outbox.next_batch(durable, LIMITS).unwrap() else { break };
                        stored.extend(keys_of(&taken));
                        outbox.acknowledge(taken.stream, taken.last).unwrap();
                    }
                }
                Step::Restart { cut } => {
                    drop((writer, outbox, lock));
                    let last = segment::segments(dir.path(), stream).unwrap().pop();
                    if let Some(last) = last {
                        let file = File::options().write(true).open(&last.path).unwrap();
                        let length = file.metadata().unwrap().len();
                        file.set_len(length.saturating_sub(cut)).unwrap();
                    }
                    let whole = segment::last_key(dir.path(), stream).unwrap();
                    let gone: Vec<_> = expected.extract_if(.., |(boot, key)| *boot == stream.boot && *key > whole).collect();
                    prop_assert!(cut > 0 || gone.is_empty());
                    // What the server had of them, it keeps.
                    expected.extend(gone.iter().filter(|event| stored.contains(event)));
                    expected.sort_unstable();
                    (stream, writer, outbox, lock) = open(dir.path(), sandbox);
                    durable = 0;
                }
                Step::RestartForgetful => {
                    drop((writer, outbox, lock));
                    for path in files(dir.path(), ".ack") {
                        fs::remove_file(path).unwrap();
                    }
                    (stream, writer, outbox, lock) = open(dir.path(), sandbox);
                    durable = 0;
                }
            }
        }
        let progress = outbox.progress();
        let left = progress.older_left + durable - progress.acked;
        let rest = drain(&mut outbox, durable);
        prop_assert_eq!(i64::try_from(rest.len()).unwrap(), left);
        stored.extend(rest);
        // The server drops duplicates; without them everything has come, in order within its stream.
        let mut unique = Vec::new();
        for event in stored {
            if !unique.contains(&event) {
                unique.push(event);
            }
        }
        prop_assert!(unique.iter().all(|(boot, _)| *boot > 0), "nothing was reported as lost");
        let in_order = unique.iter().is_sorted();
        prop_assert!(in_order);
        prop_assert_eq!(unique, expected);
        prop_assert!(files(dir.path(), ".log").len() <= 1);
        drop(lock);
    }
}
