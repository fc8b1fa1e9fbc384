//! Data of events from a forge.

use atoll_core::branch_workflow::WorkflowStep;
use atoll_core::git_settings::UpdateMethod;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitPullRequestEnded {
    pub number: u64,
    pub url: String,
    pub branch: String,
    /// The commit of the merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitReviewed {
    pub number: u64,
    pub url: String,
    pub branch: String,
    pub reviewer: String,
    /// `approved`, `changes_requested` or `commented`.
    pub verdict: String,
    /// The file of a comment on a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitCheckFailed {
    pub name: String,
    pub url: String,
    pub branch: String,
    pub commit: String,
    /// The forge's word, such as `failure` or `timed_out`.
    pub conclusion: String,
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitBranchMoved {
    pub branch: String,
    pub commit: String,
    pub previous: String,
    pub pusher: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitBranchDeleted {
    pub branch: String,
    /// Its last commit.
    pub previous: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitPushFlagged {
    pub branch: String,
    pub commit: String,
    /// The flagged files; of very many, the first ones.
    pub paths: Vec<String>,
    pub count: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitPushed {
    pub branch: String,
    pub commit: String,
    /// The remote branch before; absent if the push created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    pub repo: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitStepFailed {
    pub branch: String,
    pub step: WorkflowStep,
    pub code: String,
    pub detail: String,
    /// Time until the next attempt; absent if a person has to act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_s: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitBranchUpdated {
    pub branch: String,
    pub commit: String,
    pub previous: String,
    /// The commit that the branch now contains.
    pub base: String,
    pub method: UpdateMethod,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitConflict {
    pub branch: String,
    /// The branch's commit before the conflict.
    pub commit: String,
    /// The commit that it conflicts with.
    pub base: String,
    /// The files; of very many, the first ones.
    pub paths: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitPullRequestOpened {
    pub number: u64,
    pub url: String,
    pub title: String,
    pub branch: String,
    pub base: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitMergeWaiting {
    pub number: u64,
    pub url: String,
    pub reason: String,
}
