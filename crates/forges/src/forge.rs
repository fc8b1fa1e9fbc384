//! The interface to a forge. GitLab's merge requests and Gitea's pull requests fit it as well.

use crate::error::Result;
use atoll_core::BoxFuture;
use atoll_core::pull_request::{MergeMethod, PullRequestLink, PullRequestState, PullRequestStatus};
use std::fmt;

/// A repository at a forge: its owner (a group path at GitLab) and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryName {
    pub owner: String,
    pub name: String,
}

impl RepositoryName {
    /// Reads the owner and the name from an identity such as `github.com/owner/name`.
    pub fn from_identity(identity: &str) -> Option<Self> {
        let (_, path) = identity.split_once('/')?;
        let (owner, name) = path.rsplit_once('/')?;
        let is_part = |part: &str| {
            let letters = |b: u8| b.is_ascii_alphanumeric() || b"._-/".contains(&b);
            !part.is_empty() && part.bytes().all(letters) && part.split('/').all(|s| !matches!(s, "" | "." | ".."))
        };
        (is_part(owner) && is_part(name)).then(|| Self { owner: owner.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for RepositoryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    pub number: u64,
    /// The page for people.
    pub url: String,
    pub state: PullRequestState,
    pub title: String,
    /// The branch with the work.
    pub branch: String,
    /// The newest commit of the branch.
    pub head: String,
    /// The branch that it is merged into.
    pub base: String,
}

impl PullRequest {
    pub fn link(&self) -> PullRequestLink {
        PullRequestLink { number: self.number, url: self.url.clone(), state: self.state }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPullRequest {
    pub title: String,
    pub body: String,
    pub branch: String,
    pub base: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeRequest {
    pub number: u64,
    /// The commit that was checked. The forge merges nothing else.
    pub expected_head: String,
    pub method: MergeMethod,
    pub title: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeOutcome {
    Merged {
        commit: String,
    },
    /// The branch has another newest commit than expected.
    HeadMoved,
    /// The forge refuses to merge now, with its words.
    NotMergeable {
        detail: String,
    },
}

/// A forge. Every operation can be repeated: it finds what an earlier attempt did.
pub trait Forge: Send + Sync {
    fn default_branch<'a>(&'a self, repository: &'a RepositoryName) -> BoxFuture<'a, Result<String>>;

    /// Finds the pull request of a branch: the open one, or else the newest.
    fn find_pull_request<'a>(
        &'a self,
        repository: &'a RepositoryName,
        branch: &'a str,
    ) -> BoxFuture<'a, Result<Option<PullRequest>>>;

    fn read_pull_request<'a>(
        &'a self,
        repository: &'a RepositoryName,
        number: u64,
    ) -> BoxFuture<'a, Result<PullRequest>>;

    /// Opens a pull request, or finds the open one of the same branch and base.
    fn create_pull_request<'a>(
        &'a self,
        repository: &'a RepositoryName,
        new: &'a NewPullRequest,
    ) -> BoxFuture<'a, Result<PullRequest>>;

    /// Changes title and body of a pull request.
    fn update_pull_request<'a>(
        &'a self,
        repository: &'a RepositoryName,
        number: u64,
        title: &'a str,
        body: &'a str,
    ) -> BoxFuture<'a, Result<PullRequest>>;

    /// Reads everything that a merge depends on.
    fn read_status<'a>(
        &'a self,
        repository: &'a RepositoryName,
        number: u64,
    ) -> BoxFuture<'a, Result<PullRequestStatus>>;

    fn merge_pull_request<'a>(
        &'a self,
        repository: &'a RepositoryName,
        merge: &'a MergeRequest,
    ) -> BoxFuture<'a, Result<MergeOutcome>>;

    /// Deletes a branch; a branch that is gone already is no error.
    fn delete_branch<'a>(&'a self, repository: &'a RepositoryName, branch: &'a str) -> BoxFuture<'a, Result<()>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_owner_and_name_from_an_identity() {
        let read = |identity| RepositoryName::from_identity(identity).map(|name| name.to_string());
        assert_eq!(read("github.com/owner/name.js").as_deref(), Some("owner/name.js"));
        assert_eq!(read("gitlab.com/group/sub/name").as_deref(), Some("group/sub/name"));
        assert_eq!(read("127.0.0.1:80/o/n").as_deref(), Some("o/n"));
        for bad in ["github.com", "github.com/x", "github.com/../x", "github.com/a/b?c", "github.com//x", "h/a/b%2f"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
