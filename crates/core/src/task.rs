//! Tasks: pieces of work that the server queues, dispatches to sandboxes, retries and ends on time.
//!
//! Every rule is pure: the caller passes times and counts, and stores what the rule decides.

pub mod claim_choice;
pub mod failure_class;
pub mod owned_files;
pub mod queue_score;
pub mod task_state;
pub mod task_timing;

pub use claim_choice::{ActiveTask, Candidate, Choice, DispatchLimits, choose_next};
pub use failure_class::{Failure, FailureClass, FailureVerdict, RetryPolicy, classify_failure, decide_failure};
pub use owned_files::OwnedFiles;
pub use queue_score::{DeadlineLevel, Standing};
pub use task_state::{PickUpFact, TaskEffect, TaskPhase, TaskStep, TaskTrigger, next};
pub use task_timing::{TimeoutPlan, TimeoutStep, is_pick_up_overdue};

use crate::provider::capabilities::{
    Capabilities, EgressAbility, ForkAbility, ImageAbility, PauseAbility, PortAbility, ProtectionAbility,
    SnapshotAbility,
};
use crate::string_enum;

/// Tasks that one task can depend on.
pub const MAX_DEPENDENCIES: usize = 50;
pub const MAX_RETRIES: u32 = 10;
pub const MAX_TIMEOUT_S: u32 = 7 * 24 * 3600;
/// Tasks of one bulk request.
pub const MAX_BULK_TASKS: usize = 200;
/// Longest stored result of a task, and longest feedback of a validation.
pub const MAX_RESULT_BYTES: usize = 10 * 1024;
/// Sender of messages that the orchestrator sends to agents.
pub const TASKS_SENDER: &str = "atoll:tasks";

string_enum! {
    /// State of a task. Only `task_state::next` changes it.
    "task state"
    TaskState {
        /// In the queue, or waiting for something.
        Pending = "pending",
        /// A server has chosen the task and prepares its sandbox.
        Claiming = "claiming",
        /// The task has a sandbox, which starts.
        Assigned = "assigned",
        /// The agent works.
        Running = "running",
        /// The work is done and waits for a verdict.
        Validating = "validating",
        /// In the queue again, with the feedback of a validation.
        NeedsRevision = "needs_revision",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

impl TaskState {
    /// True for tasks that wait to be claimed.
    pub const fn is_queued(self) -> bool {
        match self {
            Self::Pending | Self::NeedsRevision => true,
            Self::Claiming
            | Self::Assigned
            | Self::Running
            | Self::Validating
            | Self::Completed
            | Self::Failed
            | Self::Cancelled => false,
        }
    }

    /// True for tasks that occupy a slot and hold their files.
    pub const fn is_active(self) -> bool {
        match self {
            Self::Claiming | Self::Assigned | Self::Running => true,
            Self::Pending
            | Self::Validating
            | Self::NeedsRevision
            | Self::Completed
            | Self::Failed
            | Self::Cancelled => false,
        }
    }

    pub const fn has_ended(self) -> bool {
        match self {
            Self::Completed | Self::Failed | Self::Cancelled => true,
            Self::Pending
            | Self::Claiming
            | Self::Assigned
            | Self::Running
            | Self::Validating
            | Self::NeedsRevision => false,
        }
    }
}

string_enum! {
    /// An ability of the provider that a task needs.
    "capability"
    TaskCapability {
        /// The server runs the agent and exports its commits.
        Agents = "agents",
        Pause = "pause",
        Fork = "fork",
        Snapshot = "snapshot",
        Ports = "ports",
        Images = "images",
        /// Network policies by host.
        Domains = "domains",
        /// Protected paths are read-only in the sandbox.
        Protection = "protection",
    }
}

impl TaskCapability {
    pub fn is_met_by(self, provider: &Capabilities) -> bool {
        match self {
            Self::Agents => provider.runs_agents(),
            Self::Pause => provider.pause != PauseAbility::None,
            Self::Fork => provider.fork != ForkAbility::None,
            Self::Snapshot => provider.snapshot != SnapshotAbility::None,
            Self::Ports => provider.ports != PortAbility::None,
            Self::Images => provider.images != ImageAbility::None,
            Self::Domains => provider.egress == EgressAbility::Domains,
            Self::Protection => provider.protected == ProtectionAbility::Mounts,
        }
    }
}

string_enum! {
    /// What a bulk request does to each task.
    "bulk action"
    BulkTaskAction { Cancel = "cancel", Retry = "retry" }
}

string_enum! {
    /// What a queued task waits for.
    "wait reason"
    TaskWait {
        /// Only for a free slot.
        Slot = "slot",
        /// Tasks that come first have not completed.
        Dependencies = "dependencies",
        /// An active task owns one of its files.
        Files = "files",
        /// The pause before a retry.
        BackOff = "back_off",
        /// The provider's quota.
        Quota = "quota",
    }
}
