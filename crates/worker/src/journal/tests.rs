use super::*;
use proptest::prelude::*;
use std::fs;

fn message(n: u128) -> MessageId {
    MessageId::from_uuid(uuid::Uuid::from_u128(n))
}

fn lease(n: u128) -> LeaseId {
    LeaseId::from_uuid(uuid::Uuid::from_u128(n))
}

fn ack() -> Verdict {
    Verdict::Ack { how: How::Injected, turn: Some(2) }
}

fn nack(handed: bool, retry: bool) -> Verdict {
    Verdict::Nack { handed, reason: "no".into(), retry }
}

/// A journal and its file, driven as the worker does.
struct Driven {
    journal: Journal,
    file: File,
}

impl Driven {
    fn start(dir: &std::path::Path) -> (Self, Vec<Answer>) {
        let (journal, file, answers) = load(dir).unwrap();
        (Self { journal, file }, answers)
    }

    fn write(&mut self, record: &Record) {
        self.file.push(record);
        self.file.commit().unwrap();
    }

    /// Whether the program gets to see it.
    fn arrive(&mut self, id: MessageId, lease: LeaseId) -> bool {
        match self.journal.arrive(id, lease) {
            Arrival::New(record) => {
                self.write(&record);
                self.journal.hand_over(id)
            }
            Arrival::Held(record) | Arrival::Answered(record, _) => {
                self.write(&record);
                false
            }
        }
    }

    fn answer(&mut self, id: MessageId, verdict: Verdict) -> Result<Answer, Error> {
        let (record, answer) = self.journal.answer(id, verdict)?;
        self.write(&record);
        Ok(answer)
    }

    fn settle(&mut self, id: MessageId, lease: LeaseId) {
        if let Some(record) = self.journal.settle(id, lease) {
            self.write(&record);
        }
    }
}

#[test]
fn what_was_acknowledged_and_what_was_not_is_told_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (mut first, answers) = Driven::start(dir.path());
    assert!(answers.is_empty());
    for n in 1..=3 {
        assert!(first.arrive(message(n), lease(n)));
    }
    first.answer(message(1), ack()).unwrap();
    first.answer(message(2), ack()).unwrap();
    first.settle(message(2), lease(2));
    drop(first);
    let (mut second, answers) = Driven::start(dir.path());
    let restarted = Verdict::Nack { handed: true, reason: RESTARTED.into(), retry: false };
    assert_eq!(
        answers,
        [
            Answer { id: message(1), lease: lease(1), verdict: ack() },
            Answer { id: message(3), lease: lease(3), verdict: restarted },
        ]
    );
    for n in 1..=3 {
        assert!(!second.arrive(message(n), lease(n + 10)), "handed over twice");
    }
}

#[test]
fn a_message_that_comes_again_is_answered_under_its_new_lease() {
    let dir = tempfile::tempdir().unwrap();
    let (mut driven, _) = Driven::start(dir.path());
    driven.arrive(message(1), lease(1));
    driven.answer(message(1), ack()).unwrap();
    let Arrival::Answered(_, answer) = driven.journal.arrive(message(1), lease(2)) else { panic!("not answered") };
    assert_eq!(answer, Answer { id: message(1), lease: lease(2), verdict: ack() });
    assert_eq!(driven.journal.settle(message(1), lease(1)), None, "that was the old lease's answer");
    assert_eq!(driven.journal.unsettled(), 1);
    assert!(driven.journal.settle(message(1), lease(2)).is_some());
    assert_eq!(driven.journal.unsettled(), 0);
}

#[test]
fn only_what_was_handed_over_can_be_answered_and_only_once() {
    let dir = tempfile::tempdir().unwrap();
    let (mut driven, _) = Driven::start(dir.path());
    assert_eq!(driven.answer(message(1), ack()), Err(Error::Unknown(message(1))));
    driven.arrive(message(1), lease(1));
    assert_eq!(driven.journal.leases(), [lease(1)]);
    driven.answer(message(1), nack(true, false)).unwrap();
    assert_eq!(driven.answer(message(1), ack()), Err(Error::Answered(message(1))));
    assert!(driven.journal.leases().is_empty());
}

#[test]
fn what_the_program_gave_back_may_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let (mut driven, _) = Driven::start(dir.path());
    assert!(driven.arrive(message(1), lease(1)));
    driven.answer(message(1), nack(false, true)).unwrap();
    driven.settle(message(1), lease(1));
    drop(driven);
    let (mut driven, answers) = Driven::start(dir.path());
    assert!(answers.is_empty());
    assert!(driven.arrive(message(1), lease(2)));
}

#[test]
fn what_did_not_reach_the_program_is_given_back_at_the_end() {
    let mut journal = Journal::default();
    journal.arrive(message(1), lease(1));
    assert!(journal.hand_over(message(1)));
    journal.arrive(message(2), lease(2));
    let verdicts: Vec<_> = journal.answer_all("no").into_iter().map(|(_, answer)| answer.verdict).collect();
    assert_eq!(verdicts, [nack(true, false), nack(false, true)]);
    assert!(!journal.hand_over(message(2)), "too late");
}

#[derive(Debug, Clone)]
enum Step {
    Arrive(u128, u128),
    Answer(u128, Verdict),
    Settle(u128, u128),
    Restart { cut: usize },
}

fn any_step() -> impl Strategy<Value = Step> {
    let verdict = prop_oneof![Just(ack()), Just(nack(true, false)), Just(nack(false, false)),];
    prop_oneof![
        (0u128..5, 0u128..9).prop_map(|(id, lease)| Step::Arrive(id, lease)),
        (0u128..5, verdict).prop_map(|(id, verdict)| Step::Answer(id, verdict)),
        (0u128..5, 0u128..9).prop_map(|(id, lease)| Step::Settle(id, lease)),
        (0usize..200).prop_map(|cut| Step::Restart { cut }),
    ]
}

proptest! {
    /// A message that is not given back is before the program's eyes once, in any order of things
    /// and through restarts; a line that was not whole changes nothing that had taken effect.
    #[test]
    fn no_message_is_handed_over_twice(steps in proptest::collection::vec(any_step(), 0..60)) {
        let dir = tempfile::tempdir().unwrap();
        let (mut driven, _) = Driven::start(dir.path());
        let mut seen = Vec::new();
        for step in steps {
            match step {
                Step::Arrive(id, under) => {
                    if driven.arrive(message(id), lease(under)) {
                        prop_assert!(!seen.contains(&id), "{} twice", id);
                        seen.push(id);
                    }
                }
                Step::Answer(id, verdict) => drop(driven.answer(message(id), verdict)),
                Step::Settle(id, under) => driven.settle(message(id), lease(under)),
                Step::Restart { cut } => {
                    // Killed while writing one more record.
                    let path = dir.path().join("handed.log");
                    let line = format!("{}\n", serde_json::to_string(&Record::Handed { id: message(99), lease: lease(1) }).unwrap());
                    let mut bytes = fs::read(&path).unwrap();
                    bytes.extend_from_slice(&line.as_bytes()[..cut.min(line.len() - 2)]);
                    fs::write(&path, bytes).unwrap();
                    let again = Journal::replay(driven.journal.records());
                    drop(driven);
                    let answers;
                    (driven, answers) = Driven::start(dir.path());
                    let open = again.entries.values().filter(|entry| !entry.settled).count();
                    prop_assert_eq!(answers.len(), open);
                }
            }
        }
    }
}
