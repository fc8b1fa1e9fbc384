//! Messages: something said to the agent.

use crate::words;

words! {
    "message type"
    MessageType {
        UserMessage = "user_message",
        Interrupt = "interrupt",
        GuardianNudge = "guardian_nudge",
        System = "system",
    }
}

words! {
    /// `steer` reaches the agent in its running turn, `queue` waits for the turn's end.
    "delivery"
    Delivery { Steer = "steer", Queue = "queue" }
}

words! {
    "message state"
    MessageState {
        Queued = "queued",
        Leased = "leased",
        Acknowledged = "acknowledged",
        Cancelled = "cancelled",
        Undeliverable = "undeliverable",
        /// Handed over, the agent gave no receipt, the worker died.
        DeliveredUnconfirmed = "delivered_unconfirmed",
    }
}

impl MessageState {
    pub const fn is_final(self) -> bool {
        match self {
            Self::Queued | Self::Leased => false,
            Self::Acknowledged | Self::Cancelled | Self::Undeliverable | Self::DeliveredUnconfirmed => true,
        }
    }
}

words! {
    /// How a message reached the agent.
    "way of delivery"
    How { Injected = "injected", NewTurn = "new_turn", Restarted = "restarted" }
}
