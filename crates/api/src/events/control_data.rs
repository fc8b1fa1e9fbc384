//! Data of events about decisions and bounds: approvals, checks, limits, the guardian, networks and models.

use crate::is_false;
use atoll_core::approval::ApprovalDecision;
use atoll_core::budget::BudgetPeriod;
use atoll_core::continuous::check::CheckResult;
use atoll_core::continuous::{CheckVerdict, Requirement, StopReason};
use atoll_core::id::ProjectId;
use atoll_core::limit::Limit;
use atoll_core::sandbox::{AgentLimits, NetworkPolicy};
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApprovalRequested {
    pub approval_id: String,
    /// `permission` or `question`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_id: Option<String>,
    /// The tool's whole input; the start of its text if `input_truncated` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// `input` is truncated. The blob `sha256` holds the whole.
    #[serde(default, skip_serializing_if = "is_false")]
    pub input_truncated: bool,
    /// Size of the whole input as JSON, if `input` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_bytes: Option<u64>,
    /// The change that an edit makes, as a unified diff without line numbers of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<String>,
    /// Hash of the input. The answer names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<i64>,
    /// The question of an agent that asks by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApprovalAnswered {
    pub approval_id: String,
    pub decision: ApprovalDecision,
    pub reason: Option<String>,
    /// Answers to questions, by question.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub answers: Option<Map<String, Value>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ApprovalResolved {
    pub approval_id: String,
    pub decision: ApprovalDecision,
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_use_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContinuousStarted {
    /// Commands that must succeed.
    pub checks: Vec<String>,
    pub require: Vec<Requirement>,
    /// Maximum number of runs.
    pub iterations: u32,
    /// Maximum number of failed runs in a row.
    pub errors: u32,
    pub duration_s: u64,
    pub cost_usd: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContinuousValidating {
    pub iteration: u32,
    pub iterations: u32,
    pub round: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContinuousCheck {
    #[serde(flatten)]
    pub check: CheckResult,
    pub round: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContinuousChecked {
    pub round: u32,
    pub verdict: CheckVerdict,
    /// Number of checks that passed.
    pub passed: usize,
    /// Names of the checks that failed.
    pub failed: Vec<String>,
    /// Names of the checks whose result is unknown.
    pub unknown: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContinuousRunFailed {
    pub iteration: u32,
    pub errors: u32,
    pub errors_limit: u32,
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContinuousPassed {
    pub iteration: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContinuousStopped {
    pub reason: StopReason,
    pub detail: String,
    pub iteration: u32,
    pub errors: u32,
    pub last_error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkChanged {
    pub policy: NetworkPolicy,
    /// The hosts of the policy `allow`.
    pub allow: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NetworkRefused {
    pub host: String,
    /// 0 if the port is unknown.
    pub port: u16,
    /// The stable code of the reason.
    pub reason: String,
    /// Refusals of this host since the last event about it.
    pub count: u64,
    pub detail: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelRefused {
    /// The stable code of the reason.
    pub reason: String,
    pub detail: String,
    /// Refusals for this reason since the last event about it.
    pub count: u64,
}

/// A limit and its use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LimitUse {
    pub limit: Limit,
    /// The limit's value, in its own unit.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub value: f64,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub used: f64,
    /// The worker has already informed the agent of the warning.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "told")]
    pub agent_informed: Option<bool>,
    /// The period of a project's budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<BudgetPeriod>,
    /// The end of the current period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<ProjectId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LimitResumed {
    pub limit: Limit,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LimitChanged {
    pub before: AgentLimits,
    pub limits: AgentLimits,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuardianDenied {
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub tool: String,
    pub tool_use_id: Option<String>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub rule: String,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub reason: String,
    /// The tool's input; a string if it is too long.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub input: Value,
    /// The driver gives the agent the reason.
    #[serde(default, alias = "told")]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub agent_informed: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuardianChanged {
    pub tool: String,
    pub tool_use_id: Option<String>,
    /// The tool's input; a string if it is too long.
    pub input: Value,
    /// The input that the tool runs with.
    pub changed: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProtectedPaths {
    /// The changed paths; at most 200.
    pub paths: Vec<String>,
    pub count: usize,
    /// The patterns of the protected paths.
    pub protected: Vec<String>,
}
