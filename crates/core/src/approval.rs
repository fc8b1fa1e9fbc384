//! What an agent wants to have allowed or answered, and what became of it.

use crate::words;
use serde::{Deserialize, Serialize};

words! {
    /// A person's word about something that an agent wants to do.
    "decision"
    Decision {
        Allow = "allow",
        /// Also for the same kind of thing from now on, in this sandbox.
        AllowAlways = "allow_always",
        Deny = "deny",
    }
}

words! {
    "state of an approval"
    ApprovalState {
        /// The agent waits.
        Open = "open",
        /// A person has said; the agent may not have heard it.
        Answered = "answered",
        /// The agent waits no more.
        Resolved = "resolved",
    }
}

/// The answer, on its way to the worker. The same one may come twice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApprovalAnswer {
    /// As in `approval.requested`.
    pub approval_id: String,
    pub decision: Decision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// To questions, by question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub answers: Option<serde_json::Map<String, serde_json::Value>>,
}
