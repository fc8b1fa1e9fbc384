//! Sandboxes: states, outcomes and settings.

use crate::continuous::Continuous;
use crate::git_settings::GitSettings;
use crate::guardian::GuardianSettings;
use crate::health::HealthSettings;
use crate::id::SandboxId;
use crate::policy::ToolPolicy;
use crate::service::Service;
use crate::setup::SetupRequest;
use crate::string_enum;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

string_enum! {
    /// Lifecycle state of a sandbox. Only `lifecycle::next` changes it.
    "sandbox state"
    SandboxState {
        Pending = "pending",
        Creating = "creating",
        Running = "running",
        Completing = "completing",
        Completed = "completed",
        Failed = "failed",
    }
}

impl SandboxState {
    /// True for states in which the sandbox occupies its session. A session has at most one live sandbox.
    pub const fn is_live(self) -> bool {
        match self {
            Self::Pending | Self::Creating | Self::Running | Self::Completing => true,
            Self::Completed | Self::Failed => false,
        }
    }

    pub const fn has_ended(self) -> bool {
        !self.is_live()
    }

    pub const fn accepts_messages(self) -> bool {
        match self {
            Self::Pending | Self::Creating | Self::Running => true,
            Self::Completing | Self::Completed | Self::Failed => false,
        }
    }
}

string_enum! {
    /// Outcome of an ended sandbox.
    "outcome"
    Outcome { Succeeded = "succeeded", Cancelled = "cancelled", Failed = "failed" }
}

string_enum! {
    /// State of a sandbox's results. Unknown counts as pending.
    "results state"
    ResultsState { None = "none", Pending = "pending", Taken = "taken", Lost = "lost" }
}

string_enum! {
    /// Action when the agent's turn has ended and the inbox is empty.
    "end policy"
    EndPolicy { WhenDone = "when_done", Keep = "keep" }
}

string_enum! {
    /// Current activity of the agent, as shown to users.
    "activity"
    Activity {
        Starting = "starting",
        Working = "working",
        WaitingApproval = "waiting_approval",
        WaitingMessage = "waiting_message",
        RateLimited = "rate_limited",
        Paused = "paused",
        LimitPaused = "limit_paused",
        Stalled = "stalled",
        Unreachable = "unreachable",
        TakingResults = "taking_results",
        Ended = "ended",
    }
}

string_enum! {
    /// State of the agent's turn.
    "turn state"
    TurnState {
        /// No turn has started, or the last one was interrupted.
        Idle = "idle",
        /// A turn is running: messages with `queue` delivery wait.
        Open = "open",
        /// The last turn completed normally.
        Done = "done",
    }
}

string_enum! {
    /// Handling of the results when a sandbox is stopped.
    "results choice"
    ResultsAction { Take = "take", Discard = "discard" }
}

string_enum! {
    /// Provider that creates a sandbox.
    "provider"
    ProviderKind { Local = "local", Docker = "docker", External = "external", Fake = "fake" }
}

string_enum! {
    /// Kind of task, which selects settings for the agent.
    "mode"
    Mode { Exploration = "exploration", Implementation = "implementation", Validation = "validation" }
}

string_enum! {
    "approvals policy"
    ApprovalMode { Full = "full", Edits = "edits", Ask = "ask" }
}

string_enum! {
    /// Minimum isolation of a sandbox, from weaker to stronger.
    "isolation tier"
    IsolationTier {
        /// Isolated; a limit may be monitored only.
        Standard = "standard",
        /// Isolated, and every limit is enforced.
        Strong = "strong",
    }
}

string_enum! {
    "network policy"
    NetworkPolicy { None = "none", Allow = "allow", Packages = "packages", All = "all" }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Repo {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Directory on the server: only for an admin over loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Commit that the work starts from. The server resolves a branch or tag when it creates the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The remote branch that the work is for, and that a pull request is merged into; only with a `url`. By default
    /// `base` if that is a branch, else the repository's default branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Number of commits of the history that the sandbox gets; only with a `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub depth: Option<u32>,
    /// Fill the submodules.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub submodules: bool,
    /// Fetch the files of large-file storage (LFS) in place of their pointers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lfs: bool,
    /// Check out only these directories, and the files above them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 100))]
    pub sparse: Vec<String>,
}

impl Repo {
    /// The path or the URL.
    pub fn location(&self) -> Option<&str> {
        self.path.as_deref().or(self.url.as_deref())
    }

    /// True if both name the same path or URL.
    pub fn has_same_location(&self, other: &Self) -> bool {
        self.path == other.path && self.url == other.url
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Resources {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gb: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_gb: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
}

impl Resources {
    /// Fills absent fields from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            memory_gb: self.memory_gb.or(other.memory_gb),
            cpu: self.cpu.or(other.cpu),
            disk_gb: self.disk_gb.or(other.disk_gb),
            pids: self.pids.or(other.pids),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Network {
    pub policy: NetworkPolicy,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_s: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_progress_s: Option<u32>,
}

impl AgentLimits {
    /// Fills absent fields from `other`: overriding one limit does not reset the others.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            turns: self.turns.or(other.turns),
            cost_usd: self.cost_usd.or(other.cost_usd),
            turn_s: self.turn_s.or(other.turn_s),
            no_progress_s: self.no_progress_s.or(other.no_progress_s),
        }
    }
}

/// Settings chosen when a sandbox is created and passed to the provider and the worker.
///
/// Stored unchanged, so that the session's next sandbox can reuse them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Settings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ApprovalMode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<Repo>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Creation fails if the provider offers weaker isolation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationTier>,
    /// Workspace paths that the agent must not change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<AgentLimits>,
    /// The request's own settings of set-up; the project's are added when the sandbox is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<SetupRequest>,
    /// Rules for tool calls, evaluated before a call runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<ToolPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guardian: Option<GuardianSettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthSettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
    /// Tools available to the agent. Absent: all of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Tools disabled for the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied_tools: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_subagents: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_skills: Option<bool>,
    /// Deliver the results at the end; true by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver: Option<bool>,
    /// Present only if continuous mode is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuous: Option<Continuous>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// MCP servers by name, in the agent's own format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub mcp: Option<serde_json::Map<String, serde_json::Value>>,
    /// Programs that run beside the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    /// Sandbox whose files this one started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SandboxId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSettings>,
    /// Names of the project's secrets that the sandbox may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
    /// Secrets whose values are in the sandbox's environment or in a file, readable by any process in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exposed_secrets: Vec<String>,
}

/// Reason for a sandbox's state: a stable code and a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reason {
    pub code: String,
    pub detail: String,
}

impl Reason {
    pub fn new(code: &str, detail: impl Into<String>) -> Self {
        Self { code: code.to_owned(), detail: detail.into() }
    }
}
