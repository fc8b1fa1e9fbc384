//! The mirror of a repository whose branches the server changes at the remote, with the credential for it.

use super::git_credentials::{CredentialScope, credential_for};
use super::git_source::GitSource;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::sandbox::Repo;
use atoll_forge::Error;
use atoll_forge::remote::{Mirror, RemoteCredential, RemoteError};
use atoll_store::branch_workflows::BranchWorkflowRow;

#[derive(Debug, Clone)]
pub struct BranchRepository {
    pub mirror: Mirror,
    pub credential: RemoteCredential,
}

impl BranchRepository {
    /// Connects with the credential of the workflow's requester.
    pub async fn connect(app: &App, workflow: &BranchWorkflowRow, repo: &Repo) -> Result<Self> {
        let GitSource::Remote(source) = GitSource::open_stored(app, repo)? else {
            return Err(Problem::invalid("repo: a branch can only be pushed to a repository with a `url`"));
        };
        let mirror = source.mirror;
        let scope = CredentialScope { project: workflow.project_id, requester: workflow.requested_by };
        let credential = credential_for(app, scope, mirror.url()).await?;
        Ok(Self { mirror, credential })
    }

    /// Runs git on a blocking thread.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> std::result::Result<T, RemoteError> + Send + 'static,
    ) -> std::result::Result<T, RemoteError> {
        let own = self.clone();
        match tokio::task::spawn_blocking(move || work(&own)).await {
            Ok(done) => done,
            Err(error) => Err(Error::Git { what: "changing a branch", detail: error.to_string() }.into()),
        }
    }
}
