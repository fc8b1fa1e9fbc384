//! What the executor's tests, and those of the drivers, have in common.

use atoll_core::id::{LeaseId, MessageId, SessionId};
use atoll_core::message::{Delivery, MessageType};
use atoll_core::time::Timestamp;
use atoll_protocol::LeasedMessage;

pub(crate) fn message(content: &str, delivery: Delivery) -> LeasedMessage {
    LeasedMessage {
        id: MessageId::new(),
        session_id: SessionId::new(),
        message_type: MessageType::UserMessage,
        delivery,
        content: content.to_owned(),
        sender: None,
        position: 0,
        created_at: Timestamp::from_micros(0),
        lease: LeaseId::new(),
        lease_until: Timestamp::from_micros(0),
    }
}
