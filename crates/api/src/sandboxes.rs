//! Sandboxes.

use atoll_core::continuous::check::CheckResult;
use atoll_core::continuous::{Continuous, LoopPhase, StopReason};
use atoll_core::git_settings::GitSettings;
use atoll_core::guardian::GuardianSettings;
use atoll_core::health::HealthSettings;
use atoll_core::id::{ProjectId, SandboxId, SessionId, TicketId};
use atoll_core::limit::Limit;
use atoll_core::mode::ModeSettings;
use atoll_core::model::CostSource;
use atoll_core::policy::ToolPolicy;
use atoll_core::sandbox::{
    Activity, AgentLimits, ApprovalMode, EndPolicy, IsolationTier, Mode, Network, Outcome, ProviderKind, Reason, Repo,
    Resources, ResultsAction, ResultsState, SandboxState, Settings,
};
use atoll_core::service::Service;
use atoll_core::service::status::ServiceStatus;
use atoll_core::setup::SetupRequest;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A request for a new sandbox. Every field has a default.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewSandbox {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The session's first message; without one the agent waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// A name for the sandbox, unique among the live ones of its project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ApprovalMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<EndPolicy>,
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub repo: Option<Repo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<ProjectId>,
    /// Continue this session in place of a new one: with its agent, model and branch, unless the request sets others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Work on this ticket: on its branch, with its title, and with its description as the prompt if there is none. The
    /// ticket's session continues, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ticket_id: Option<TicketId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Refuse the request where the provider offers less; a request cannot lower its project's tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationTier>,
    /// Paths of the workspace that the agent must not change, in addition to those of the project and the server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<String>,
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub limits: Option<AgentLimits>,
    /// How to prepare the project before the agent starts; by default the repository decides.
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub setup: Option<SetupRequest>,
    /// Rules for tool calls; the project's rules apply first.
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub policy: Option<ToolPolicy>,
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub guardian: Option<GuardianSettings>,
    /// When the sandbox is idle or stalled, and what follows when it fails.
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthSettings>,
    /// The provider to use while the circuit of `provider` is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_provider: Option<ProviderKind>,
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
    /// The only tools of the agent; by default it has all its own tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Tools that the agent does not have, in addition to those that its project and mode deny.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied_tools: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The agent may start subagents; `true` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_subagents: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_skills: Option<bool>,
    /// Export the results at the end; `true` by default, unless the mode says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver: Option<bool>,
    /// Work until the checks pass.
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub continuous: Option<Continuous>,
    /// Settings by mode; only valid in a project's defaults.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub modes: BTreeMap<Mode, ModeSettings>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcp: Option<serde_json::Map<String, serde_json::Value>>,
    /// How the branch is connected with its forge.
    #[serde(default, deserialize_with = "atoll_core::json::object", skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSettings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
    /// Programs that run beside the agent, such as a database; they replace those of the project.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_items = 8))]
    pub services: Option<Vec<Service>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Cost {
    /// In US dollars; absent if it is unknown.
    pub model: Option<f64>,
    pub model_source: CostSource,
    pub compute: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Sandbox {
    pub id: SandboxId,
    #[serde(default)]
    pub name: Option<String>,
    /// The title of its session.
    #[serde(default)]
    pub title: String,
    /// The branch with its results; before the export, the planned name.
    #[serde(default)]
    pub branch: Option<String>,
    pub session_id: SessionId,
    pub project_id: ProjectId,
    pub state: SandboxState,
    pub activity: Activity,
    /// The limit that paused its agent, until a person raises it.
    pub limit_paused: Option<Limit>,
    /// When the agent may continue, if it is `rate_limited` and its model said so.
    #[serde(default)]
    pub rate_limited_until: Option<Timestamp>,
    pub outcome: Option<Outcome>,
    pub reason: Option<Reason>,
    pub results: ResultsState,
    pub end: EndPolicy,
    pub provider: ProviderKind,
    pub provider_id: Option<String>,
    pub agent: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub settings: Settings,
    /// Secrets whose values are in its environment, or in a file of its agent.
    pub exposed_secrets: Vec<String>,
    pub turn: Option<i64>,
    pub first_seq: i64,
    pub last_seq: i64,
    /// Bytes of its events and blobs.
    #[serde(default)]
    pub log_bytes: i64,
    /// Events that the log's quota did not admit.
    #[serde(default)]
    pub dropped_events: i64,
    pub last_heartbeat: Option<Timestamp>,
    pub cost: Cost,
    /// Model usage; only in responses about one sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<ModelUsage>,
    /// Id of its trace; only in responses about one sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// Progress of continuous mode; only in responses about one sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuous: Option<ContinuousProgress>,
    /// Its services; only in responses about one sandbox.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceStatus>,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub state_since: Timestamp,
    pub ended_at: Option<Timestamp>,
    /// It was removed: lists omit it.
    #[serde(default)]
    pub archived: bool,
    /// How to start its worker; only in the response that created an `external` sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerStart>,
}

/// The agent and the settings that a new sandbox would have.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxPreview {
    pub project_id: ProjectId,
    pub provider: ProviderKind,
    pub agent: Option<String>,
    pub settings: Settings,
}

/// How to start the worker of an `external` sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerStart {
    /// The worker's token, which only this response shows. Store it in the command's FILE, readable only by its owner.
    pub token: Option<String>,
    pub command: String,
}

/// Progress of a sandbox in continuous mode.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContinuousProgress {
    pub phase: LoopPhase,
    /// Why it ended before its checks passed.
    pub stopped: Option<StopReason>,
    /// `stopped` as a sentence.
    pub detail: Option<String>,
    /// Number of the current run of the agent.
    pub iteration: u32,
    /// Maximum number of runs.
    pub iterations: u32,
    /// Failed runs in a row.
    pub errors: u32,
    /// Results of the last checks.
    pub checks: Vec<CheckResult>,
}

/// Model usage through the gateway, in tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelUsage {
    pub requests: i64,
    /// Input tokens that were neither read from a cache nor written to one.
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    /// In US dollars; absent if it is unknown.
    pub cost: Option<f64>,
    pub cost_source: CostSource,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct SandboxListQuery {
    pub state: Option<SandboxState>,
    pub activity: Option<Activity>,
    pub provider: Option<ProviderKind>,
    pub project: Option<ProjectId>,
    pub session: Option<SessionId>,
    /// `key` or `key=value`.
    pub label: Option<String>,
    /// The beginning or the end of an id, a name, or a branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Only sandboxes that the caller created.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mine: bool,
    /// Only sandboxes that have not ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub live: bool,
    /// Also removed sandboxes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub archived: bool,
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 200))]
    pub limit: Option<i64>,
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StopSandbox {
    #[serde(default = "export_results")]
    pub results: ResultsAction,
}

const fn export_results() -> ResultsAction {
    ResultsAction::Take
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct RemoveSandboxQuery {
    /// Remove it even if its results are not exported yet, which loses them.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForkSandbox {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The first message to the fork's agent; without one it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<EndPolicy>,
}
