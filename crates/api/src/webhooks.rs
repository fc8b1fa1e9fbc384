//! Webhooks.

use atoll_core::string_enum;
use serde::{Deserialize, Serialize};

string_enum! {
    /// What the server did with a webhook.
    "webhook result"
    WebhookResult {
        /// It is an event of a session now.
        Processed = "processed",
        /// The same delivery was processed before.
        Duplicate = "duplicate",
        /// No session works on its branch, or the server does not react to its kind.
        Ignored = "ignored",
    }
}

/// The response to a webhook.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookReceipt {
    pub result: WebhookResult,
}
