//! The conductor's view of all agents.

use atoll_core::conductor::{FindingKind, Phase, StuckReason};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::sandbox::Activity;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The live agents that the caller can see, and how they fit together: `GET /sandboxes/monitoring/status`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MonitoringStatus {
    pub at: Timestamp,
    pub agents: Vec<MonitoredAgent>,
    /// Number of agents in each phase that has any.
    pub phases: BTreeMap<Phase, u32>,
    /// The most important first.
    pub findings: Vec<MonitoringFinding>,
    /// From 0 to 1: 1 if nothing was found. Absent without agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coherence: Option<f64>,
    /// There are more agents than the list has.
    #[serde(default)]
    pub truncated: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MonitoredAgent {
    pub sandbox_id: SandboxId,
    pub session_id: SessionId,
    pub project_id: ProjectId,
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub agent: Option<String>,
    pub activity: Activity,
    pub phase: Phase,
    #[serde(default)]
    pub turn: Option<i64>,
    /// When its newest work event came.
    #[serde(default)]
    pub last_progress_at: Option<Timestamp>,
    #[serde(default)]
    pub stuck: Option<StuckReason>,
    /// The newest files that it edited, at most ten, newest first.
    #[serde(default)]
    pub files: Vec<String>,
    pub anomaly: AgentAnomaly,
}

/// How unusual an agent is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentAnomaly {
    /// The composite of the four measures, from 0 to 1. From 0.4 on it is an anomaly.
    pub score: f64,
    /// Distance of its newest tool calls from their usual time, in standard deviations.
    pub latency_z: f64,
    /// Share of errors among its newest tool calls.
    pub error_rate: f64,
    /// The highest ratio of its processors or memory to the median of all agents.
    pub resource_ratio: f64,
    /// Messages that wait for it.
    pub waiting_messages: u32,
    /// Rounds of 30 seconds in a row with an anomaly. From 3 on there is a finding.
    pub in_a_row: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MonitoringFinding {
    pub kind: FindingKind,
    /// A sentence for people.
    pub text: String,
    pub sandbox_ids: Vec<SandboxId>,
    /// The files that they share, at most twenty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<StuckReason>,
}
