//! The delivery of one message as a pure function.
//!
//! A message is handed to at most one worker at a time: the lease says to whom and until when. An
//! expired lease still counts until somebody else takes the message, so that a slow worker's
//! acknowledgement is not lost.

use crate::id::LeaseId;
use crate::message::{How, MessageState};
use crate::time::Timestamp;
use uuid::Uuid;

#[cfg(test)]
mod tests;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    /// The worker stream that holds it.
    pub stream: Uuid,
    pub until: Timestamp,
}

/// Where a message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub state: MessageState,
    pub lease: Option<Lease>,
    pub how: Option<How>,
    pub turn: Option<i64>,
}

impl Standing {
    pub const QUEUED: Self = Self { state: MessageState::Queued, lease: None, how: None, turn: None };

    /// The lease under which a worker holds the message now. It may not have heard of it: the frame
    /// that told it got lost with a connection, and what it says under an older one is as true.
    pub fn held_by(&self, stream: Uuid) -> Option<LeaseId> {
        let held = self.lease.filter(|held| self.state == MessageState::Leased && held.stream == stream);
        held.map(|held| held.id)
    }

    const fn ended(self, state: MessageState) -> Self {
        Self { state, lease: self.lease, how: self.how, turn: self.turn }
    }
}

/// What can happen to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A worker takes it.
    Lease(Lease),
    /// The holder needs it longer.
    Renew { lease: LeaseId, until: Timestamp },
    /// The agent has it.
    Ack { lease: LeaseId, how: How, turn: Option<i64> },
    /// The worker could not deliver it, or can't say.
    Nack { lease: LeaseId, handed: bool, retry: bool },
    /// A person changes it.
    Edit,
    /// A person takes it back.
    Cancel,
    /// Another worker stream has taken over from `stream`'s.
    StreamReplaced { stream: Uuid },
    /// The session was closed.
    SessionClosed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the message is {0} and can't be changed any more")]
    NotQueued(MessageState),
    #[error("the message is held by a worker")]
    Held,
    #[error("this lease is not the message's current one")]
    NotYourLease,
}

/// Where `step`, taken at `now`, leads from `standing`.
pub fn step(standing: Standing, step: Step, now: Timestamp) -> Result<Standing, Refused> {
    use MessageState as M;
    let holder = standing.lease.filter(|_| standing.state == M::Leased);
    match step {
        Step::Lease(lease) => match (standing.state, holder) {
            (M::Queued, _) => Ok(Standing { state: M::Leased, lease: Some(lease), ..standing }),
            (M::Leased, Some(held)) if held.until <= now => Ok(Standing { lease: Some(lease), ..standing }),
            (M::Leased, _) => Err(Refused::Held),
            (ended @ (M::Acknowledged | M::Cancelled | M::Undeliverable | M::DeliveredUnconfirmed), _) => {
                Err(Refused::NotQueued(ended))
            }
        },
        Step::Renew { lease, until } => {
            let held = holder.filter(|held| held.id == lease).ok_or(Refused::NotYourLease)?;
            Ok(Standing { lease: Some(Lease { until: until.max(held.until), ..held }), ..standing })
        }
        Step::Ack { lease, how, turn } => match standing.state {
            M::Leased if holder.is_some_and(|held| held.id == lease) => {
                Ok(Standing { state: M::Acknowledged, how: Some(how), turn, ..standing })
            }
            // Saying it again changes nothing.
            M::Acknowledged if standing.lease.is_some_and(|held| held.id == lease) => Ok(standing),
            // A lease that ran out or was freed, and nobody else has taken the message since.
            M::Queued if standing.lease.is_some_and(|held| held.id == lease) => {
                Ok(Standing { state: M::Acknowledged, how: Some(how), turn, ..standing })
            }
            M::Queued | M::Leased | M::Acknowledged | M::Cancelled | M::Undeliverable | M::DeliveredUnconfirmed => {
                Err(Refused::NotYourLease)
            }
        },
        Step::Nack { lease, handed, retry } => {
            let last_holder = standing.lease.is_some_and(|held| held.id == lease);
            let to = match (handed, retry) {
                (true, _) => M::DeliveredUnconfirmed,
                (false, true) => M::Queued,
                (false, false) => M::Undeliverable,
            };
            match standing.state {
                M::Leased | M::Queued if last_holder => {
                    let lease = standing.lease.filter(|_| to != M::Queued);
                    Ok(Standing { lease, ..standing.ended(to) })
                }
                same if last_holder && same == to => Ok(standing),
                M::Queued | M::Leased | M::Acknowledged | M::Cancelled | M::Undeliverable | M::DeliveredUnconfirmed => {
                    Err(Refused::NotYourLease)
                }
            }
        }
        Step::Edit => match standing.state {
            // A change of words ends what an earlier holder could still say of them.
            M::Queued => Ok(Standing { lease: None, ..standing }),
            other @ (M::Leased | M::Acknowledged | M::Cancelled | M::Undeliverable | M::DeliveredUnconfirmed) => {
                Err(Refused::NotQueued(other))
            }
        },
        Step::Cancel => match standing.state {
            M::Queued => Ok(Standing { lease: None, ..standing.ended(M::Cancelled) }),
            other @ (M::Leased | M::Acknowledged | M::Cancelled | M::Undeliverable | M::DeliveredUnconfirmed) => {
                Err(Refused::NotQueued(other))
            }
        },
        Step::StreamReplaced { stream } => match holder {
            // The lease is kept beside the queued message: its holder may still prove delivery.
            Some(held) if held.stream == stream => Ok(standing.ended(M::Queued)),
            Some(_) | None => Ok(standing),
        },
        Step::SessionClosed => {
            if standing.state.is_final() {
                Ok(standing)
            } else {
                Ok(standing.ended(M::Undeliverable))
            }
        }
    }
}
