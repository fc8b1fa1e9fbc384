//! Branch workflows and their pull requests.

use atoll_core::branch_workflow::{WorkflowGoal, WorkflowState, WorkflowStep};
use atoll_core::git_settings::Publication;
use atoll_core::id::{ProjectId, SessionId, TicketId};
use atoll_core::pull_request::{MergeMethod, MergeVerdict, PullRequestState, PullRequestStatus};
use atoll_core::sandbox::{Reason, Repo};
use atoll_core::ticket::TicketKey;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The way of a branch from its creation to the merge.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BranchWorkflow {
    pub project_id: ProjectId,
    pub ticket: Option<TicketKey>,
    /// The session that works on the branch.
    pub session_id: Option<SessionId>,
    pub branch: Option<String>,
    /// Absent until the results are published for the first time.
    pub progress: Option<BranchWorkflowProgress>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BranchWorkflowProgress {
    pub goal: WorkflowGoal,
    pub step: WorkflowStep,
    pub state: WorkflowState,
    /// The last failure, or what the workflow waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    pub repo: String,
    /// The remote branch that the work is merged into.
    pub target: String,
    /// The newest commit that was pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pushed_commit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_request: Option<PullRequestFacts>,
    /// The files of a conflict that the agent resolves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<String>,
    /// Changed CI files and files with URLs of submodules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flagged: Vec<String>,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PullRequestFacts {
    pub number: u64,
    pub url: String,
    pub title: String,
    pub state: PullRequestState,
}

/// A pull request that Atoll opened. Its session names it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PullRequestView {
    pub session_id: SessionId,
    pub project_id: ProjectId,
    pub ticket: Option<TicketKey>,
    pub number: u64,
    pub url: String,
    pub title: String,
    pub state: PullRequestState,
    pub repo: String,
    pub branch: String,
    pub target: String,
    /// What the forge reports now; absent in lists, and if the forge does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PullRequestStatus>,
    /// Whether the server would merge it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<MergeVerdict>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// Creates the branch of a ticket.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StartBranchWorkflow {
    pub ticket_id: TicketId,
    /// By default the project's repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<Repo>,
}

/// Publishes the branch of a ticket or of a session; exactly one of both.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FinishBranchWorkflow {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket_id: Option<TicketId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// `push` or `pull_request`, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<Publication>,
}

/// Merges the pull request of a ticket or of a session; exactly one of both.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MergeBranchWorkflow {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket_id: Option<TicketId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// By default the project's, else `squash`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<MergeMethod>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct BranchWorkflowQuery {
    /// The ticket, unless `session` is given.
    pub ticket: Option<TicketId>,
    pub session: Option<SessionId>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct PullRequestListQuery {
    pub project: Option<ProjectId>,
    pub state: Option<PullRequestState>,
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 200))]
    pub limit: Option<i64>,
    pub cursor: Option<String>,
}
