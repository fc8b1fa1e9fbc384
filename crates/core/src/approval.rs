//! Approvals: requests of agents to users, and the answers.

use crate::string_enum;
use serde::{Deserialize, Serialize};

string_enum! {
    /// A user's decision about an agent's request.
    "decision"
    ApprovalDecision {
        Allow = "allow",
        /// Also applies to later requests of the same kind in this sandbox.
        AllowAlways = "allow_always",
        Deny = "deny",
    }
}

string_enum! {
    "state of an approval"
    ApprovalState {
        /// The agent waits.
        Open = "open",
        /// A user has answered; the agent may not have received the answer.
        Answered = "answered",
        /// The agent no longer waits.
        Resolved = "resolved",
    }
}

/// An answer on its way to the worker. The same answer may arrive twice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApprovalAnswer {
    /// The id from `approval.requested`.
    pub approval_id: String,
    pub decision: ApprovalDecision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Hash of the input that the person saw, from `approval.requested`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Answers to questions, by question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub answers: Option<serde_json::Map<String, serde_json::Value>>,
}
