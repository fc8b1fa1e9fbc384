use super::*;
use proptest::prelude::*;
use std::fs;

fn message(n: u128) -> MessageId {
    MessageId::from_uuid(uuid::Uuid::from_u128(n))
}

fn lease(n: u128) -> LeaseId {
    LeaseId::from_uuid(uuid::Uuid::from_u128(n))
}

fn ack() -> DeliveryOutcome {
    DeliveryOutcome::Ack { how: DeliveryMethod::Injected, turn: Some(2) }
}

fn nack(handed: bool, retry: bool) -> DeliveryOutcome {
    DeliveryOutcome::Nack { handed, reason: "no".into(), retry }
}

/// A journal and its file, used like the worker does.
struct JournalHarness {
    journal: DeliveryJournal,
    file: JournalFile,
}

impl JournalHarness {
    fn start(dir: &std::path::Path) -> (Self, Vec<Acknowledgement>) {
        let (journal, file, acknowledgements) = load_journal(dir).unwrap();
        (Self { journal, file }, acknowledgements)
    }

    fn write(&mut self, record: &JournalRecord) {
        self.file.push(record);
        self.file.commit().unwrap();
    }

    /// True if the program gets the message.
    fn receive_lease(&mut self, id: MessageId, lease: LeaseId) -> bool {
        match self.journal.receive_lease(id, lease) {
            Arrival::New(record) => {
                self.write(&record);
                self.journal.mark_handed_over(id)
            }
            Arrival::Pending(record) | Arrival::Acknowledged(record, _) => {
                self.write(&record);
                false
            }
            Arrival::Returned => false,
        }
    }

    fn acknowledge(&mut self, id: MessageId, outcome: DeliveryOutcome) -> Result<Acknowledgement, JournalError> {
        let (record, acknowledgement) = self.journal.acknowledge(id, outcome)?;
        self.write(&record);
        Ok(acknowledgement)
    }

    fn mark_settled(&mut self, id: MessageId, lease: LeaseId) {
        if let Some(record) = self.journal.mark_settled(id, lease) {
            self.write(&record);
        }
    }
}

#[test]
fn a_restart_returns_all_unsettled_acknowledgements() {
    let dir = tempfile::tempdir().unwrap();
    let (mut first, acknowledgements) = JournalHarness::start(dir.path());
    assert!(acknowledgements.is_empty());
    for n in 1..=3 {
        assert!(first.receive_lease(message(n), lease(n)));
    }
    first.acknowledge(message(1), ack()).unwrap();
    first.acknowledge(message(2), ack()).unwrap();
    first.mark_settled(message(2), lease(2));
    drop(first);
    let (mut second, acknowledgements) = JournalHarness::start(dir.path());
    let restarted = DeliveryOutcome::Nack { handed: true, reason: REASON_WORKER_RESTARTED.into(), retry: false };
    assert_eq!(
        acknowledgements,
        [
            Acknowledgement { id: message(1), lease: lease(1), outcome: ack() },
            Acknowledgement { id: message(3), lease: lease(3), outcome: restarted },
        ]
    );
    for n in 1..=3 {
        assert!(!second.receive_lease(message(n), lease(n + 10)), "handed over twice");
    }
}

#[test]
fn a_repeated_message_is_acknowledged_under_its_new_lease() {
    let dir = tempfile::tempdir().unwrap();
    let (mut harness, _) = JournalHarness::start(dir.path());
    harness.receive_lease(message(1), lease(1));
    harness.acknowledge(message(1), ack()).unwrap();
    let Arrival::Acknowledged(_, acknowledgement) = harness.journal.receive_lease(message(1), lease(2)) else {
        panic!("not acknowledged")
    };
    assert_eq!(acknowledgement, Acknowledgement { id: message(1), lease: lease(2), outcome: ack() });
    assert_eq!(harness.journal.mark_settled(message(1), lease(1)), None, "the acknowledgement of the old lease");
    assert_eq!(harness.journal.unsettled_count(), 1);
    assert!(harness.journal.mark_settled(message(1), lease(2)).is_some());
    assert_eq!(harness.journal.unsettled_count(), 0);
}

#[test]
fn a_message_can_be_acknowledged_once_after_it_is_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    let (mut harness, _) = JournalHarness::start(dir.path());
    assert_eq!(harness.acknowledge(message(1), ack()), Err(JournalError::NotHandedOver(message(1))));
    harness.receive_lease(message(1), lease(1));
    assert_eq!(harness.journal.open_leases(), [lease(1)]);
    harness.acknowledge(message(1), nack(true, false)).unwrap();
    assert_eq!(harness.acknowledge(message(1), ack()), Err(JournalError::AlreadyAcknowledged(message(1))));
    assert!(harness.journal.open_leases().is_empty());
}

#[test]
fn a_returned_message_may_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut harness, _) = JournalHarness::start(dir.path());
    assert!(harness.receive_lease(message(1), lease(1)));
    harness.acknowledge(message(1), nack(false, true)).unwrap();
    harness.mark_settled(message(1), lease(1));
    drop(harness);
    let (mut harness, acknowledgements) = JournalHarness::start(dir.path());
    assert!(acknowledgements.is_empty());
    assert!(harness.receive_lease(message(1), lease(2)));
    drop(harness);
    let (_, acknowledgements) = JournalHarness::start(dir.path());
    let restarted = DeliveryOutcome::Nack { handed: true, reason: REASON_WORKER_RESTARTED.into(), retry: false };
    assert_eq!(acknowledgements, [Acknowledgement { id: message(1), lease: lease(2), outcome: restarted }]);
}

#[test]
fn late_copies_of_settled_messages_are_not_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    let (mut harness, _) = JournalHarness::start(dir.path());
    for (n, outcome) in [(1, ack()), (2, nack(true, false)), (3, nack(false, false)), (4, nack(false, true))] {
        assert!(harness.receive_lease(message(n), lease(n)));
        harness.acknowledge(message(n), outcome).unwrap();
        harness.mark_settled(message(n), lease(n));
        assert!(!harness.receive_lease(message(n), lease(n)), "handed over twice");
    }
    drop(harness);
    let (mut harness, _) = JournalHarness::start(dir.path());
    for n in 1..=4 {
        assert!(!harness.receive_lease(message(n), lease(n)), "handed over twice");
    }
}

#[test]
fn messages_that_did_not_reach_the_program_are_returned_at_the_end() {
    let mut journal = DeliveryJournal::default();
    journal.receive_lease(message(1), lease(1));
    assert!(journal.mark_handed_over(message(1)));
    journal.receive_lease(message(2), lease(2));
    let outcomes: Vec<_> =
        journal.acknowledge_all("no").into_iter().map(|(_, acknowledgement)| acknowledgement.outcome).collect();
    assert_eq!(outcomes, [nack(true, false), nack(false, true)]);
    assert!(!journal.mark_handed_over(message(2)), "too late");
}

#[derive(Debug, Clone)]
enum JournalStep {
    Arrive(u128, u128),
    Acknowledgement(u128, DeliveryOutcome),
    Settle(u128, u128),
    Restart { cut: usize },
}

fn any_step() -> impl Strategy<Value = JournalStep> {
    let outcome = prop_oneof![Just(ack()), Just(nack(true, false)), Just(nack(false, false)),];
    prop_oneof![
        (0u128..5, 0u128..9).prop_map(|(id, lease)| JournalStep::Arrive(id, lease)),
        (0u128..5, outcome).prop_map(|(id, outcome)| JournalStep::Acknowledgement(id, outcome)),
        (0u128..5, 0u128..9).prop_map(|(id, lease)| JournalStep::Settle(id, lease)),
        (0usize..200).prop_map(|cut| JournalStep::Restart { cut }),
    ]
}

proptest! {
    /// In any order of steps and through restarts, the program gets a message once unless it is returned. A torn line
    /// changes nothing.
    #[test]
    fn no_message_is_handed_over_twice(steps in proptest::collection::vec(any_step(), 0..60)) {
        let dir = tempfile::tempdir().unwrap();
        let (mut harness, _) = JournalHarness::start(dir.path());
        let mut seen = Vec::new();
        for step in steps {
            match step {
                JournalStep::Arrive(id, under) => {
                    if harness.receive_lease(message(id), lease(under)) {
                        prop_assert!(!seen.contains(&id), "{} twice", id);
                        seen.push(id);
                    }
                }
                JournalStep::Acknowledgement(id, outcome) => drop(harness.acknowledge(message(id), outcome)),
                JournalStep::Settle(id, under) => harness.mark_settled(message(id), lease(under)),
                JournalStep::Restart { cut } => {
                    // Killed while writing one more record.
                    let path = dir.path().join("handed.log");
                    let line = format!("{}\n", serde_json::to_string(&JournalRecord::Handed { id: message(99), lease: lease(1) }).unwrap());
                    let mut bytes = fs::read(&path).unwrap();
                    bytes.extend_from_slice(&line.as_bytes()[..cut.min(line.len() - 2)]);
                    fs::write(&path, bytes).unwrap();
                    let again = DeliveryJournal::replay(harness.journal.records());
                    drop(harness);
                    let acknowledgements;
                    (harness, acknowledgements) = JournalHarness::start(dir.path());
                    let open = again.entries.values().filter(|entry| !entry.is_settled).count();
                    prop_assert_eq!(acknowledgements.len(), open);
                }
            }
        }
    }
}
