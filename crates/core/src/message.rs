//! Messages from users and Atoll to the agent.

use crate::string_enum;

string_enum! {
    "message type"
    MessageType {
        UserMessage = "user_message",
        Interrupt = "interrupt",
        GuardianNudge = "guardian_nudge",
        System = "system",
    }
}

string_enum! {
    /// `steer` reaches the agent during its turn, `queue` waits for the end of the turn.
    "delivery"
    Delivery { Steer = "steer", Queue = "queue" }
}

string_enum! {
    "message state"
    MessageState {
        Queued = "queued",
        Leased = "leased",
        Acknowledged = "acknowledged",
        Cancelled = "cancelled",
        Undeliverable = "undeliverable",
        /// The worker handed the message over and died before the agent confirmed it.
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

string_enum! {
    /// Method by which a message reached the agent.
    "delivery method"
    DeliveryMethod { Injected = "injected", NewTurn = "new_turn", Restarted = "restarted" }
}
