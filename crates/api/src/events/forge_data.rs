//! Data of events from a forge.

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
