//! Which messages were handed to the program, and what became of them.
//!
//! A message is written down before the program sees it, so that after a crash nobody has to guess:
//! none is handed over twice, and what is known of each reaches the server.
//!
//! `Journal` decides and is pure; `File` is where its records go (`file`). A record takes effect when it is on disk.

use atoll_core::id::{LeaseId, MessageId};
use atoll_core::message::How;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

mod file;
#[cfg(test)]
mod tests;

pub use file::{File, load};

/// Said to the server of messages that an earlier worker handed over and the program did not answer.
pub const RESTARTED: &str = "worker_restarted";

/// What the program, or the worker in its place, says of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Ack { how: How, turn: Option<i64> },
    Nack { handed: bool, reason: String, retry: bool },
}

impl Verdict {
    /// The agent has not seen it and somebody should try again: it may come back.
    const fn gives_back(&self) -> bool {
        matches!(self, Self::Nack { handed: false, retry: true, .. })
    }
}

/// Something to tell the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub id: MessageId,
    pub lease: LeaseId,
    pub verdict: Verdict,
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    Handed {
        id: MessageId,
        lease: LeaseId,
    },
    Acked {
        id: MessageId,
        lease: LeaseId,
        how: How,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<i64>,
    },
    Nacked {
        id: MessageId,
        lease: LeaseId,
        handed: bool,
        reason: String,
        retry: bool,
    },
    /// The server knows.
    Settled {
        id: MessageId,
    },
}

impl Record {
    fn answered(answer: &Answer) -> Self {
        let (id, lease) = (answer.id, answer.lease);
        match answer.verdict.clone() {
            Verdict::Ack { how, turn } => Self::Acked { id, lease, how, turn },
            Verdict::Nack { handed, reason, retry } => Self::Nacked { id, lease, handed, reason, retry },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    lease: LeaseId,
    verdict: Option<Verdict>,
    settled: bool,
    /// It is on the program's side of the pipe.
    written: bool,
}

/// What to do with a message that the server has leased to this worker.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Never seen: write the record down, then hand it over.
    New(Record),
    /// The program has it and has not answered: only the lease is another one.
    Held(Record),
    /// It was answered already, and the server did not get to know: answer again.
    Answered(Record, Answer),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("message {0} was not handed over")]
    Unknown(MessageId),
    #[error("message {0} is answered already")]
    Answered(MessageId),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Journal {
    entries: HashMap<MessageId, Entry>,
}

impl Journal {
    /// What the records say, one after the other.
    fn replay(records: impl IntoIterator<Item = Record>) -> Self {
        let mut journal = Self::default();
        for record in records {
            let (id, lease, verdict) = match record {
                Record::Handed { id, lease } => {
                    let verdict = journal.entries.get(&id).and_then(|entry| entry.verdict.clone());
                    (id, lease, verdict)
                }
                Record::Acked { id, lease, how, turn } => (id, lease, Some(Verdict::Ack { how, turn })),
                Record::Nacked { id, lease, handed, reason, retry } => {
                    (id, lease, Some(Verdict::Nack { handed, reason, retry }))
                }
                Record::Settled { id } => {
                    journal.mark_settled(id);
                    continue;
                }
            };
            journal.entries.insert(id, Entry { lease, verdict, settled: false, written: true });
        }
        journal
    }

    fn mark_settled(&mut self, id: MessageId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.settled = true;
        if entry.verdict.as_ref().is_some_and(Verdict::gives_back) {
            self.entries.remove(&id);
        }
    }

    /// Answers in the program's place what it can't answer any more, and gives everything that
    /// the server does not know yet.
    fn take_over(&mut self) -> Vec<Answer> {
        let mut answers = Vec::new();
        for (id, entry) in self.entries.iter_mut().filter(|(_, entry)| !entry.settled) {
            let verdict = entry.verdict.get_or_insert_with(|| Verdict::Nack {
                handed: true,
                reason: RESTARTED.to_owned(),
                retry: false,
            });
            answers.push(Answer { id: *id, lease: entry.lease, verdict: verdict.clone() });
        }
        answers.sort_by_key(|answer| answer.id);
        answers
    }

    /// The shortest story that says the same.
    fn records(&self) -> Vec<Record> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_key(|(id, _)| **id);
        let mut records = Vec::new();
        for (id, entry) in entries {
            records.push(match &entry.verdict {
                None => Record::Handed { id: *id, lease: entry.lease },
                Some(verdict) => Record::answered(&Answer { id: *id, lease: entry.lease, verdict: verdict.clone() }),
            });
            if entry.settled {
                records.push(Record::Settled { id: *id });
            }
        }
        records
    }

    pub fn arrive(&mut self, id: MessageId, lease: LeaseId) -> Arrival {
        let Some(entry) = self.entries.get_mut(&id) else {
            self.entries.insert(id, Entry { lease, verdict: None, settled: false, written: false });
            return Arrival::New(Record::Handed { id, lease });
        };
        entry.lease = lease;
        entry.settled = false;
        match &entry.verdict {
            None => Arrival::Held(Record::Handed { id, lease }),
            Some(verdict) => {
                let answer = Answer { id, lease, verdict: verdict.clone() };
                Arrival::Answered(Record::answered(&answer), answer)
            }
        }
    }

    /// Whether a message whose record is on disk is to be written to the program now.
    pub fn hand_over(&mut self, id: MessageId) -> bool {
        match self.entries.get_mut(&id) {
            Some(entry) if entry.verdict.is_none() && !entry.written => {
                entry.written = true;
                true
            }
            Some(_) | None => false,
        }
    }

    pub fn answer(&mut self, id: MessageId, verdict: Verdict) -> Result<(Record, Answer), Error> {
        let entry = self.entries.get_mut(&id).filter(|entry| entry.written).ok_or(Error::Unknown(id))?;
        if entry.verdict.is_some() {
            return Err(Error::Answered(id));
        }
        Ok(entry.close(id, verdict))
    }

    /// Gives a message back that has just arrived and that the program won't get to see.
    pub fn give_back(&mut self, id: MessageId, reason: &str) -> Option<(Record, Answer)> {
        let entry = self.entries.get_mut(&id).filter(|entry| entry.verdict.is_none() && !entry.written)?;
        Some(entry.close(id, Verdict::Nack { handed: false, reason: reason.to_owned(), retry: true }))
    }

    /// The program is going: answers everything that it leaves unanswered.
    pub fn answer_all(&mut self, reason: &str) -> Vec<(Record, Answer)> {
        let open = self.entries.iter_mut().filter(|(_, entry)| entry.verdict.is_none());
        let mut answers: Vec<_> = open
            .map(|(id, entry)| {
                let (handed, reason) = (entry.written, reason.to_owned());
                entry.close(*id, Verdict::Nack { handed, reason, retry: !handed })
            })
            .collect();
        answers.sort_by_key(|(_, answer)| answer.id);
        answers
    }

    /// The server has taken or refused an answer. Nothing if it was given under an older lease:
    /// then another answer is on its way.
    pub fn settle(&mut self, id: MessageId, lease: LeaseId) -> Option<Record> {
        let entry = self.entries.get(&id)?;
        if entry.lease != lease || entry.settled || entry.verdict.is_none() {
            return None;
        }
        self.mark_settled(id);
        Some(Record::Settled { id })
    }

    /// The leases of what the program has not answered.
    pub fn leases(&self) -> Vec<LeaseId> {
        self.entries.values().filter(|entry| entry.verdict.is_none()).map(|entry| entry.lease).collect()
    }

    /// Of how many messages the server does not know yet what became of them.
    pub fn unsettled(&self) -> usize {
        self.entries.values().filter(|entry| !entry.settled).count()
    }
}

impl Entry {
    fn close(&mut self, id: MessageId, verdict: Verdict) -> (Record, Answer) {
        self.verdict = Some(verdict.clone());
        let answer = Answer { id, lease: self.lease, verdict };
        (Record::answered(&answer), answer)
    }
}
