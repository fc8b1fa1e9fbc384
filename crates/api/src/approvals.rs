//! Tool calls and questions that wait for a person.

use atoll_core::approval::{ApprovalDecision, ApprovalState};
use atoll_core::id::SandboxId;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A tool call or a question that waits, or waited, for a person's decision.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Approval {
    pub sandbox_id: SandboxId,
    pub approval_id: String,
    pub state: ApprovalState,
    /// The request: its kind, the tool, its input and the input's hash, or a text.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub request: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<ApprovalDecision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub answers: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered_by: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = "date-time"))]
    pub requested_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = "date-time"))]
    pub answered_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct ApprovalListQuery {
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 200))]
    pub limit: Option<i64>,
    pub cursor: Option<String>,
    /// List the approvals with this id in any state, the newest first and on one page, in place of the pending ones.
    pub id: Option<String>,
}

/// A person's decision on an approval.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AnswerApproval {
    pub decision: ApprovalDecision,
    /// Shown to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Hash of the input that the person saw: `request.sha256`. Allowing a request that has one requires it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Answers to questions, by question.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub answers: Option<Map<String, Value>>,
}
