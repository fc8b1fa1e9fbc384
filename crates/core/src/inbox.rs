//! Delivery of one message as a pure function.
//!
//! At most one worker at a time holds a message: the lease names the worker and the expiry. An expired lease remains
//! valid until another worker leases the message, so that a slow worker's acknowledgement is not lost.

use crate::id::LeaseId;
use crate::message::{DeliveryMethod, MessageState};
use crate::time::Timestamp;
use uuid::Uuid;

#[cfg(test)]
mod tests;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    /// The worker stream that holds the lease.
    pub stream: Uuid,
    pub expires_at: Timestamp,
}

/// Delivery state of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryState {
    pub state: MessageState,
    pub lease: Option<Lease>,
    pub delivery_method: Option<DeliveryMethod>,
    pub turn: Option<i64>,
}

impl DeliveryState {
    pub const QUEUED: Self = Self { state: MessageState::Queued, lease: None, delivery_method: None, turn: None };

    /// Returns the lease under which a worker holds the message now.
    ///
    /// The worker may know only an older lease, if the frame with the new one was lost with a connection. Its reports
    /// under the older lease are equally valid.
    pub fn lease_held_by(&self, stream: Uuid) -> Option<LeaseId> {
        let lease = self.lease.filter(|lease| self.state == MessageState::Leased && lease.stream == stream);
        lease.map(|lease| lease.id)
    }

    const fn with_state(self, state: MessageState) -> Self {
        Self { state, lease: self.lease, delivery_method: self.delivery_method, turn: self.turn }
    }
}

/// An input to the delivery of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeliveryInput {
    /// A worker leases the message.
    Lease(Lease),
    /// The holder extends its lease.
    Renew { lease: LeaseId, until: Timestamp },
    /// The agent has received the message.
    Ack { lease: LeaseId, delivery_method: DeliveryMethod, turn: Option<i64> },
    /// The worker could not deliver the message, or does not know.
    Nack { lease: LeaseId, was_handed_over: bool, may_retry: bool },
    /// A user edits the message.
    Edit,
    /// A user withdraws the message.
    Cancel,
    /// Another worker stream has replaced `stream`.
    StreamReplaced { stream: Uuid },
    /// The session was closed.
    SessionClosed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    #[error("the message is {0} and can no longer be changed")]
    NotQueued(MessageState),
    #[error("the message is leased to a worker")]
    Leased,
    #[error("this lease is not the message's current one")]
    NotYourLease,
}

/// Applies `step` to `standing` at the time `now`.
pub fn apply_delivery_input(
    standing: DeliveryState,
    step: DeliveryInput,
    now: Timestamp,
) -> Result<DeliveryState, DeliveryError> {
    use MessageState as M;
    let holder = standing.lease.filter(|_| standing.state == M::Leased);
    match step {
        DeliveryInput::Lease(lease) => match (standing.state, holder) {
            (M::Queued, _) => Ok(DeliveryState { state: M::Leased, lease: Some(lease), ..standing }),
            (M::Leased, Some(current)) if current.expires_at <= now => {
                Ok(DeliveryState { lease: Some(lease), ..standing })
            }
            (M::Leased, _) => Err(DeliveryError::Leased),
            (ended @ (M::Acknowledged | M::Cancelled | M::Undeliverable | M::DeliveredUnconfirmed), _) => {
                Err(DeliveryError::NotQueued(ended))
            }
        },
        DeliveryInput::Renew { lease, until } => {
            let current = holder.filter(|current| current.id == lease).ok_or(DeliveryError::NotYourLease)?;
            Ok(DeliveryState {
                lease: Some(Lease { expires_at: until.max(current.expires_at), ..current }),
                ..standing
            })
        }
        DeliveryInput::Ack { lease, delivery_method: how, turn } => match standing.state {
            M::Leased if holder.is_some_and(|current| current.id == lease) => {
                Ok(DeliveryState { state: M::Acknowledged, delivery_method: Some(how), turn, ..standing })
            }
            // A repeated acknowledgement has no effect.
            M::Acknowledged if standing.lease.is_some_and(|current| current.id == lease) => Ok(standing),
            // The lease expired or was released, and no other worker has leased the message since.
            M::Queued if standing.lease.is_some_and(|current| current.id == lease) => {
                Ok(DeliveryState { state: M::Acknowledged, delivery_method: Some(how), turn, ..standing })
            }
            M::Queued | M::Leased | M::Acknowledged | M::Cancelled | M::Undeliverable | M::DeliveredUnconfirmed => {
                Err(DeliveryError::NotYourLease)
            }
        },
        DeliveryInput::Nack { lease, was_handed_over: handed, may_retry: retry } => {
            let last_holder = standing.lease.is_some_and(|current| current.id == lease);
            let to = match (handed, retry) {
                (true, _) => M::DeliveredUnconfirmed,
                (false, true) => M::Queued,
                (false, false) => M::Undeliverable,
            };
            match standing.state {
                M::Leased | M::Queued if last_holder => {
                    let lease = standing.lease.filter(|_| to != M::Queued);
                    Ok(DeliveryState { lease, ..standing.with_state(to) })
                }
                same if last_holder && same == to => Ok(standing),
                M::Queued | M::Leased | M::Acknowledged | M::Cancelled | M::Undeliverable | M::DeliveredUnconfirmed => {
                    Err(DeliveryError::NotYourLease)
                }
            }
        }
        DeliveryInput::Edit => match standing.state {
            // An edit invalidates the earlier lease: its holder has the old text.
            M::Queued => Ok(DeliveryState { lease: None, ..standing }),
            other @ (M::Leased | M::Acknowledged | M::Cancelled | M::Undeliverable | M::DeliveredUnconfirmed) => {
                Err(DeliveryError::NotQueued(other))
            }
        },
        DeliveryInput::Cancel => match standing.state {
            M::Queued => Ok(DeliveryState { lease: None, ..standing.with_state(M::Cancelled) }),
            other @ (M::Leased | M::Acknowledged | M::Cancelled | M::Undeliverable | M::DeliveredUnconfirmed) => {
                Err(DeliveryError::NotQueued(other))
            }
        },
        DeliveryInput::StreamReplaced { stream } => match holder {
            // The queued message keeps the lease: its holder may still acknowledge delivery.
            Some(current) if current.stream == stream => Ok(standing.with_state(M::Queued)),
            Some(_) | None => Ok(standing),
        },
        DeliveryInput::SessionClosed => {
            if standing.state.is_final() {
                Ok(standing)
            } else {
                Ok(standing.with_state(M::Undeliverable))
            }
        }
    }
}
