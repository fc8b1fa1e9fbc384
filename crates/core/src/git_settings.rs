//! Git settings of a project or a sandbox.

use crate::pull_request::MergeMethod;
use crate::string_enum;
use serde::{Deserialize, Serialize};

string_enum! {
    /// Publication of results that are on the session's branch.
    "publication"
    Publication {
        /// The branch stays in the server's copy of the repository.
        None = "none",
        /// The server pushes the branch to the remote repository.
        Push = "push",
        /// The server also opens a pull request, or updates the open one.
        PullRequest = "pull_request",
    }
}

string_enum! {
    /// The way in which a branch gets the newest commits of its base.
    "update method"
    UpdateMethod { Merge = "merge", Rebase = "rebase" }
}

/// How a sandbox's branch is connected with its forge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GitSettings {
    /// Send reviews, comments and failed checks of the branch to the agent as messages; off by default. A session without a
    /// sandbox gets a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_messages: Option<bool>,
    /// What happens to the results of successful work; `none` by default. Needs a repository with a `url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<Publication>,
    /// Merge the pull request as soon as its checks and reviews allow it; off by default. Needs `publish: pull_request`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge: Option<bool>,
    /// `squash` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge_method: Option<MergeMethod>,
    /// How the branch gets commits of its base that it needs; `merge` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<UpdateMethod>,
}

impl GitSettings {
    /// Fills absent fields from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            webhook_messages: self.webhook_messages.or(other.webhook_messages),
            publish: self.publish.or(other.publish),
            merge: self.merge.or(other.merge),
            merge_method: self.merge_method.or(other.merge_method),
            update: self.update.or(other.update),
        }
    }
}
