//! What a sandbox is and what can be said of one.

use crate::continuous::Continuous;
use crate::guardian::Guardian;
use crate::id::SandboxId;
use crate::policy::ToolPolicy;
use crate::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

words! {
    /// Where a sandbox is in its life. Changes only by `lifecycle::next`.
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
    /// A live sandbox holds its session's one place.
    pub const fn is_live(self) -> bool {
        match self {
            Self::Pending | Self::Creating | Self::Running | Self::Completing => true,
            Self::Completed | Self::Failed => false,
        }
    }

    pub const fn has_ended(self) -> bool {
        !self.is_live()
    }

    pub const fn takes_messages(self) -> bool {
        match self {
            Self::Pending | Self::Creating | Self::Running => true,
            Self::Completing | Self::Completed | Self::Failed => false,
        }
    }
}

words! {
    /// How a sandbox ended.
    "outcome"
    Outcome { Succeeded = "succeeded", Cancelled = "cancelled", Failed = "failed" }
}

words! {
    /// What became of a sandbox's results. Unknown counts as pending.
    "results state"
    Results { None = "none", Pending = "pending", Taken = "taken", Lost = "lost" }
}

words! {
    /// What happens when the agent's turn has ended and nothing is queued.
    "end"
    End { WhenDone = "when_done", Keep = "keep" }
}

words! {
    /// What is going on right now, which is what people ask for.
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

words! {
    /// Where the agent is in its turn.
    "turn state"
    TurnState {
        /// It has not begun one, or the last one was broken off.
        Idle = "idle",
        /// It is in one: messages to `queue` wait.
        Open = "open",
        /// The last one ended by itself.
        Done = "done",
    }
}

words! {
    /// What to do with the results when a sandbox is stopped.
    "results choice"
    TakeResults { Take = "take", Discard = "discard" }
}

words! {
    /// Who makes sandboxes.
    "provider"
    ProviderKind { Local = "local", Docker = "docker", External = "external", Fake = "fake" }
}

impl ProviderKind {
    /// The server itself dials the workers in its sandboxes and runs agents there; what a dead worker left is on
    /// this machine's disk, and so belongs to one server.
    pub const fn is_on_this_machine(self) -> bool {
        match self {
            Self::Local | Self::Docker => true,
            Self::External | Self::Fake => false,
        }
    }
}

words! {
    /// What the agent is asked to do, which chooses among its settings.
    "mode"
    Mode { Exploration = "exploration", Implementation = "implementation", Validation = "validation" }
}

words! {
    "approvals policy"
    Approvals { Full = "full", Edits = "edits", Ask = "ask" }
}

words! {
    /// How well a sandbox must be kept apart, from less to more.
    "isolation tier"
    IsolationTier {
        /// Isolated; a limit may be watched only.
        Standard = "standard",
        /// Isolated, and every limit enforced.
        Strong = "strong",
    }
}

words! {
    "network policy"
    NetworkPolicy { None = "none", Allow = "allow", All = "all" }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Repo {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A directory of the server: only for an admin over loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The commit that the work begins at; a branch or tag is looked up when the sandbox is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
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
    /// What is not said here, as it is there.
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
    /// What is not said here, as it is there: who names one limit keeps the others.
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

/// Everything about a sandbox that is chosen at its creation and carried to provider and worker.
/// Stored as it is, so that a session's next sandbox can have the same.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Settings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<Approvals>,
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
    /// Where less can be had, no sandbox is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationTier>,
    /// Paths of the workspace that the agent must not change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protected: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<AgentLimits>,
    /// What is decided about tool calls before they run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<ToolPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guardian: Option<Guardian>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
    /// The only tools that the agent has; without it all of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Tools that it has not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied_tools: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_subagents: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_skills: Option<bool>,
    /// Whether its work is taken out at the end; yes unless it says no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver: Option<bool>,
    /// There only if it is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuous: Option<Continuous>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// MCP servers by name, in the agent's own form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub mcp: Option<serde_json::Map<String, serde_json::Value>>,
    /// The sandbox whose files this one began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<SandboxId>,
    /// Names of the project's secrets that the sandbox may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
    /// Those of them whose values stand in its environment or in a file: whoever works in it can read them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exposed_secrets: Vec<String>,
}

/// Why a sandbox is where it is: a stable code and a sentence.
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
