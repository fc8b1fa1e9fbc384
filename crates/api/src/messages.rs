//! Messages to an agent.

use crate::Sandbox;
use atoll_core::id::{MessageId, SessionId};
use atoll_core::message::{Delivery, DeliveryMethod, MessageState, MessageType};
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A message of a session's inbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Message {
    pub id: MessageId,
    pub session_id: SessionId,
    pub position: i64,
    #[serde(rename = "type")]
    pub message_type: MessageType,
    pub delivery: Delivery,
    pub content: String,
    pub sender: Option<String>,
    pub state: MessageState,
    pub lease_until: Option<Timestamp>,
    pub how: Option<DeliveryMethod>,
    pub turn: Option<i64>,
    pub reason: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewMessage {
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 10240))]
    pub content: String,
    #[serde(default = "user_message", rename = "type")]
    pub message_type: MessageType,
    #[serde(default = "steer")]
    pub delivery: Delivery,
}

impl NewMessage {
    /// A user message that may reach the agent during its turn.
    pub fn new(content: impl Into<String>) -> Self {
        Self { content: content.into(), message_type: user_message(), delivery: steer() }
    }
}

const fn user_message() -> MessageType {
    MessageType::UserMessage
}

const fn steer() -> Delivery {
    Delivery::Steer
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SentToSession {
    #[serde(flatten)]
    pub message: Message,
    /// The sandbox that the server created for the message, if the session had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct MessageListQuery {
    pub state: Option<MessageState>,
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 200))]
    pub limit: Option<i64>,
    pub cursor: Option<String>,
}

/// A change of a queued message.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangeMessage {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// Move it directly before this queued message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<MessageId>,
}
