//! The guardian: its interventions, its state for a sandbox, and the replay of a log.

use atoll_core::guardian::judge::JudgeReport;
use atoll_core::guardian::{Detector, GuardianAction, GuardianSettings, HeldBack, InterventionOutcome};
use atoll_core::id::{InterventionId, MessageId, ProjectId, SandboxId, SessionId};
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A problem that the guardian found, what it did, and what happened next.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Intervention {
    pub id: InterventionId,
    pub sandbox_id: SandboxId,
    pub session_id: SessionId,
    pub project_id: ProjectId,
    /// The cause.
    pub detector: Detector,
    /// The problem in one sentence.
    pub summary: String,
    /// The seqs of the events that show the problem, oldest first.
    pub evidence: Vec<i64>,
    /// The event that completed the finding.
    pub seq: i64,
    pub tool: Option<String>,
    pub path: Option<String>,
    /// The detector's count, in its own unit.
    pub times: Option<u32>,
    pub action: GuardianAction,
    /// Why the action is only `observe`.
    pub held_back: Option<HeldBack>,
    /// The message to the agent.
    pub text: Option<String>,
    pub message_id: Option<MessageId>,
    /// What happened next; `null` while it is open.
    pub outcome: Option<InterventionOutcome>,
    /// The event that shows the outcome.
    pub outcome_seq: Option<i64>,
    /// The sandbox in which the session continues after a restart.
    pub next_sandbox_id: Option<SandboxId>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct InterventionListQuery {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project: Option<ProjectId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detector: Option<Detector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<GuardianAction>,
    /// Only interventions whose outcome is open, or only others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 200))]
    pub limit: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The guardian's state for a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuardianStatus {
    pub sandbox_id: SandboxId,
    /// The strongest action that the guardian takes by itself.
    pub act: GuardianAction,
    /// The enabled detectors, and how close each is to a finding.
    pub detectors: Vec<DetectorStatus>,
    /// Absent if the sandbox has no judge.
    pub judge: Option<JudgeStatus>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DetectorStatus {
    pub detector: Detector,
    /// The strongest action for its findings.
    pub act: GuardianAction,
    /// In the detector's own unit.
    pub count: u32,
    /// The count that is a finding; absent if one occurrence suffices.
    pub at: Option<u32>,
}

/// The judge's work for a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JudgeStatus {
    pub requests: u64,
    /// Responses that were no valid report, and requests that failed.
    pub bad_responses: u64,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Cost of all requests; it is not part of the sandbox's cost.
    pub cost_usd: f64,
    /// The last report.
    pub report: Option<JudgeReport>,
    pub judged_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplayGuardian {
    /// The settings to try; by default the sandbox's own.
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub guardian: Option<GuardianSettings>,
}

/// What the guardian would have done, from the stored log. Nothing is sent or stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GuardianReplay {
    pub sandbox_id: SandboxId,
    /// Number of events that were replayed.
    pub events: u64,
    /// The log is longer than what was replayed, or there are more findings.
    pub truncated: bool,
    pub steps: Vec<ReplayStep>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplayStep {
    pub seq: i64,
    pub at: Timestamp,
    pub detector: Detector,
    /// The problem in one sentence.
    pub summary: String,
    pub evidence: Vec<i64>,
    pub action: GuardianAction,
    pub held_back: Option<HeldBack>,
    /// The message that the agent would have got.
    pub text: Option<String>,
    /// What the log shows after it.
    pub outcome: Option<InterventionOutcome>,
    pub outcome_seq: Option<i64>,
}
