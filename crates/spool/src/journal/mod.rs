//! The delivery journal: the messages that the worker handed to the program, and their outcomes.
//!
//! The worker records a message before the program sees it. After a crash, no message is handed over twice and every
//! known outcome reaches the server.
//!
//! `DeliveryJournal` is the pure state machine, `JournalFile` stores its records. A record takes effect once it is on
//! disk.

use atoll_core::id::{LeaseId, MessageId};
use atoll_core::message::DeliveryMethod;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

mod file;
#[cfg(test)]
mod tests;

pub use file::{JournalFile, load_journal};

/// Reason for messages that an earlier worker handed over and the program did not acknowledge.
pub const REASON_WORKER_RESTARTED: &str = "worker_restarted";

/// The outcome of a message, from the program or, in its place, from the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryOutcome {
    Ack { how: DeliveryMethod, turn: Option<i64> },
    Nack { handed: bool, reason: String, retry: bool },
}

impl DeliveryOutcome {
    /// The agent has not seen the message and the server may lease it again.
    const fn returns_message(&self) -> bool {
        matches!(self, Self::Nack { handed: false, retry: true, .. })
    }
}

/// An outcome to report to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acknowledgement {
    pub id: MessageId,
    pub lease: LeaseId,
    pub outcome: DeliveryOutcome,
}

/// One line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalRecord {
    Handed {
        id: MessageId,
        lease: LeaseId,
    },
    Acked {
        id: MessageId,
        lease: LeaseId,
        how: DeliveryMethod,
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
    /// The server has the outcome.
    Settled {
        id: MessageId,
    },
}

impl JournalRecord {
    fn of_acknowledgement(acknowledgement: &Acknowledgement) -> Self {
        let (id, lease) = (acknowledgement.id, acknowledgement.lease);
        match acknowledgement.outcome.clone() {
            DeliveryOutcome::Ack { how, turn } => Self::Acked { id, lease, how, turn },
            DeliveryOutcome::Nack { handed, reason, retry } => Self::Nacked { id, lease, handed, reason, retry },
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct JournalEntry {
    lease: LeaseId,
    outcome: Option<DeliveryOutcome>,
    is_settled: bool,
    /// The worker has written the message to the program.
    is_handed_over: bool,
}

/// The next step for a message that the server has leased to this worker.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A new message: write the record, then hand it over.
    New(JournalRecord),
    /// The program has it already: only the lease is new.
    Pending(JournalRecord),
    /// The program has acknowledged it and the server may not know: acknowledge again.
    Acknowledged(JournalRecord, Acknowledgement),
    /// A late copy: the worker has returned the message under this lease. Ignore it.
    Returned,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum JournalError {
    #[error("message {0} was not handed over")]
    NotHandedOver(MessageId),
    #[error("message {0} is already acknowledged")]
    AlreadyAcknowledged(MessageId),
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct DeliveryJournal {
    entries: HashMap<MessageId, JournalEntry>,
}

impl DeliveryJournal {
    /// Builds the journal from its records.
    fn replay(records: impl IntoIterator<Item = JournalRecord>) -> Self {
        let mut journal = Self::default();
        for record in records {
            let (id, lease, outcome) = match record {
                JournalRecord::Handed { id, lease } => {
                    let known = journal.entries.get(&id).filter(|entry| !entry.is_returned());
                    (id, lease, known.and_then(|entry| entry.outcome.clone()))
                }
                JournalRecord::Acked { id, lease, how, turn } => (id, lease, Some(DeliveryOutcome::Ack { how, turn })),
                JournalRecord::Nacked { id, lease, handed, reason, retry } => {
                    (id, lease, Some(DeliveryOutcome::Nack { handed, reason, retry }))
                }
                JournalRecord::Settled { id } => {
                    journal.entries.entry(id).and_modify(|entry| entry.is_settled = true);
                    continue;
                }
            };
            journal.entries.insert(id, JournalEntry { lease, outcome, is_settled: false, is_handed_over: true });
        }
        journal
    }

    /// Acknowledges, in place of a dead program, what that left open; returns all unsettled acknowledgements.
    fn acknowledge_open(&mut self) -> Vec<Acknowledgement> {
        let mut acknowledgements = Vec::new();
        for (id, entry) in self.entries.iter_mut().filter(|(_, entry)| !entry.is_settled) {
            let outcome = entry.outcome.get_or_insert_with(|| DeliveryOutcome::Nack {
                handed: true,
                reason: REASON_WORKER_RESTARTED.to_owned(),
                retry: false,
            });
            acknowledgements.push(Acknowledgement { id: *id, lease: entry.lease, outcome: outcome.clone() });
        }
        acknowledgements.sort_by_key(|acknowledgement| acknowledgement.id);
        acknowledgements
    }

    /// The shortest list of records with the same state.
    fn records(&self) -> Vec<JournalRecord> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_key(|(id, _)| **id);
        let mut records = Vec::new();
        for (id, entry) in entries {
            records.push(match &entry.outcome {
                None => JournalRecord::Handed { id: *id, lease: entry.lease },
                Some(outcome) => JournalRecord::of_acknowledgement(&Acknowledgement {
                    id: *id,
                    lease: entry.lease,
                    outcome: outcome.clone(),
                }),
            });
            if entry.is_settled {
                records.push(JournalRecord::Settled { id: *id });
            }
        }
        records
    }

    /// Records a leased message.
    ///
    /// Messages arrive on the WebSocket and acknowledgements leave by HTTP, so a copy that the server sent before it
    /// got the acknowledgement may arrive after the server has confirmed it.
    pub fn receive_lease(&mut self, id: MessageId, lease: LeaseId) -> Arrival {
        let entry = match self.entries.get_mut(&id) {
            Some(entry) if !entry.is_returned() => entry,
            Some(entry) if entry.lease == lease => return Arrival::Returned,
            Some(_) | None => {
                let entry = JournalEntry { lease, outcome: None, is_settled: false, is_handed_over: false };
                self.entries.insert(id, entry);
                return Arrival::New(JournalRecord::Handed { id, lease });
            }
        };
        entry.lease = lease;
        entry.is_settled = false;
        match &entry.outcome {
            None => Arrival::Pending(JournalRecord::Handed { id, lease }),
            Some(outcome) => {
                let acknowledgement = Acknowledgement { id, lease, outcome: outcome.clone() };
                Arrival::Acknowledged(JournalRecord::of_acknowledgement(&acknowledgement), acknowledgement)
            }
        }
    }

    /// Marks a message whose record is on disk as handed over; false if the program must not get it.
    pub fn mark_handed_over(&mut self, id: MessageId) -> bool {
        match self.entries.get_mut(&id) {
            Some(entry) if entry.outcome.is_none() && !entry.is_handed_over => {
                entry.is_handed_over = true;
                true
            }
            Some(_) | None => false,
        }
    }

    pub fn acknowledge(
        &mut self,
        id: MessageId,
        outcome: DeliveryOutcome,
    ) -> Result<(JournalRecord, Acknowledgement), JournalError> {
        let entry =
            self.entries.get_mut(&id).filter(|entry| entry.is_handed_over).ok_or(JournalError::NotHandedOver(id))?;
        if entry.outcome.is_some() {
            return Err(JournalError::AlreadyAcknowledged(id));
        }
        Ok(entry.close(id, outcome))
    }

    /// Returns a new message that the program will not get.
    pub fn return_message(&mut self, id: MessageId, reason: &str) -> Option<(JournalRecord, Acknowledgement)> {
        let entry = self.entries.get_mut(&id).filter(|entry| entry.outcome.is_none() && !entry.is_handed_over)?;
        Some(entry.close(id, DeliveryOutcome::Nack { handed: false, reason: reason.to_owned(), retry: true }))
    }

    /// Acknowledges everything that an exiting program leaves open.
    pub fn acknowledge_all(&mut self, reason: &str) -> Vec<(JournalRecord, Acknowledgement)> {
        let open = self.entries.iter_mut().filter(|(_, entry)| entry.outcome.is_none());
        let mut acknowledgements: Vec<_> = open
            .map(|(id, entry)| {
                let (handed, reason) = (entry.is_handed_over, reason.to_owned());
                entry.close(*id, DeliveryOutcome::Nack { handed, reason, retry: !handed })
            })
            .collect();
        acknowledgements.sort_by_key(|(_, acknowledgement)| acknowledgement.id);
        acknowledgements
    }

    /// Records that the server has accepted or rejected an acknowledgement.
    ///
    /// `None` if it belongs to an older lease: then a newer acknowledgement is under way.
    pub fn mark_settled(&mut self, id: MessageId, lease: LeaseId) -> Option<JournalRecord> {
        let entry = self.entries.get_mut(&id)?;
        if entry.lease != lease || entry.is_settled || entry.outcome.is_none() {
            return None;
        }
        entry.is_settled = true;
        Some(JournalRecord::Settled { id })
    }

    /// The leases of messages that the program has not acknowledged.
    pub fn open_leases(&self) -> Vec<LeaseId> {
        self.entries.values().filter(|entry| entry.outcome.is_none()).map(|entry| entry.lease).collect()
    }

    /// Number of messages whose outcome the server does not have.
    pub fn unsettled_count(&self) -> usize {
        self.entries.values().filter(|entry| !entry.is_settled).count()
    }
}

impl JournalEntry {
    /// The server has the message back and may lease it again.
    fn is_returned(&self) -> bool {
        self.is_settled && self.outcome.as_ref().is_some_and(DeliveryOutcome::returns_message)
    }

    fn close(&mut self, id: MessageId, outcome: DeliveryOutcome) -> (JournalRecord, Acknowledgement) {
        self.outcome = Some(outcome.clone());
        let acknowledgement = Acknowledgement { id, lease: self.lease, outcome };
        (JournalRecord::of_acknowledgement(&acknowledgement), acknowledgement)
    }
}
