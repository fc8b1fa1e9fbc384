//! Data of the events `guardian.*` that the server's guardian reports, and of `model.usage`.

use atoll_core::guardian::judge::JudgeReport;
use atoll_core::guardian::{Detector, GuardianAction, HeldBack, InterventionOutcome};
use atoll_core::id::{InterventionId, MessageId, SandboxId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuardianDetected {
    pub detector: Detector,
    /// The problem in one sentence.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub summary: String,
    /// The seqs of the events that show the problem, oldest first.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub evidence: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intervention_id: Option<InterventionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<GuardianAction>,
    /// Why the action is only `observe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_back: Option<HeldBack>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The detector's count, in its own unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuardianNudged {
    /// The nudge.
    pub text: String,
    /// The detector that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detector: Option<Detector>,
    /// The seqs of the events that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Value>,
    /// The denied tool call that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intervention_id: Option<InterventionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuardianIntervened {
    pub intervention_id: InterventionId,
    pub detector: Detector,
    pub action: GuardianAction,
    /// The problem in one sentence.
    pub summary: String,
    /// The seqs of the events that show the problem.
    pub evidence: Vec<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuardianEscalated {
    pub intervention_id: InterventionId,
    pub detector: Detector,
    /// The problem in one sentence.
    pub summary: String,
    /// The seqs of the events that show the problem.
    pub evidence: Vec<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuardianFollowedUp {
    pub intervention_id: InterventionId,
    pub detector: Detector,
    pub action: GuardianAction,
    pub outcome: InterventionOutcome,
    /// The event that shows the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shown_by: Option<i64>,
    /// The sandbox in which the session continues after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_sandbox_id: Option<SandboxId>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuardianJudged {
    pub report: JudgeReport,
    /// The judge's model.
    pub model: String,
    /// Cost of this judgement, if its price is known.
    pub cost_usd: Option<f64>,
}

/// Tokens and costs of a sandbox until now, as the gateway measured them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelUsageReport {
    pub requests: u64,
    /// Tokens without those read from a cache.
    pub tokens: u64,
    pub cost_usd: f64,
    /// The model of the last request.
    pub model: String,
    /// Length of the last request's prompt.
    pub prompt_tokens: u64,
    /// Size of the model's context window, if it is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u64>,
}
