//! The repository of a sandbox: a directory of this machine, or the mirror of a URL.

use super::git_credentials::{CredentialScope, credential_for};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::Repo;
use atoll_forge::HostRepository;
use atoll_forge::remote::{Mirror, MirrorOptions, RemoteCredential, RemoteError, RemoteUrl};
use std::path::PathBuf;
use std::time::Duration;

/// The directory of mirrors in the data directory.
pub(super) const MIRRORS_DIR: &str = "mirrors";

#[derive(Debug, Clone)]
pub enum GitSource {
    Directory(PathBuf),
    Remote(Box<RemoteSource>),
}

/// The mirror of a URL, and what a fetch needs.
#[derive(Debug, Clone)]
pub struct RemoteSource {
    pub mirror: Mirror,
    pub(super) credential: RemoteCredential,
    max_age: Duration,
}

/// Runs git on a blocking thread.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::result::Result<T, RemoteError> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| source_problem(&error)),
        Err(error) => Err(Problem::internal(error)),
    }
}

fn source_problem(error: &RemoteError) -> Problem {
    let (code, detail) = match error {
        RemoteError::Local(local @ atoll_forge::Error::OutputTooLarge { .. }) => (Code::TooLarge, local.to_string()),
        RemoteError::Local(local) => (Code::NotARepository, local.to_string()),
        RemoteError::Url(refused) => (Code::Invalid, format!("repo.url: {refused}")),
        RemoteError::Connection { .. } | RemoteError::BranchMissing { .. } | RemoteError::PushRefused { .. } => {
            (Code::CloneFailed, error.to_string())
        }
    };
    Problem::new(code, detail).with("cause", error.code())
}

/// Checks the URL of a request.
pub fn parse_url(url: &str) -> Result<RemoteUrl> {
    RemoteUrl::parse(url).map_err(|error| source_problem(&error.into()))
}

impl GitSource {
    /// The source with the credential of the project or of the requesting user for its URL, which a fetch needs.
    pub async fn connect(app: &App, scope: CredentialScope, repo: &Repo) -> Result<Self> {
        let mut source = Self::open_stored(app, repo)?;
        if let Self::Remote(remote) = &mut source {
            remote.credential = credential_for(app, scope, remote.mirror.url()).await?;
        }
        Ok(source)
    }

    /// The source as it is stored on this machine.
    pub fn open_stored(app: &App, repo: &Repo) -> Result<Self> {
        match (&repo.path, &repo.url) {
            (Some(path), _) => Ok(Self::Directory(PathBuf::from(path))),
            (None, Some(url)) => {
                let git = &app.config.git;
                let options =
                    MirrorOptions { depth: repo.depth, timeout: git.clone_timeout, ..MirrorOptions::default() };
                let mirror = Mirror::open(&app.config.data_dir.join(MIRRORS_DIR), &parse_url(url)?, options);
                let (credential, max_age) = (RemoteCredential::None, git.mirror_age);
                Ok(Self::Remote(Box::new(RemoteSource { mirror, credential, max_age })))
            }
            (None, None) => Err(Problem::invalid("repo: needs a `url` or a `path`")),
        }
    }

    pub fn open(&self) -> std::result::Result<HostRepository, RemoteError> {
        match self {
            Self::Directory(path) => Ok(HostRepository::open(path)?),
            Self::Remote(remote) => Ok(remote.mirror.repository()?),
        }
    }

    /// Resolves a branch, tag or commit; without one, HEAD or the remote's default branch.
    pub(super) fn resolve_base(&self, base: Option<&str>) -> std::result::Result<String, RemoteError> {
        match self {
            Self::Directory(path) => {
                let found = HostRepository::open(path)?;
                Ok(match base {
                    Some(base) => found.resolve_base(base)?,
                    None => found.head()?.commit,
                })
            }
            Self::Remote(remote) => remote.resolve_base(base),
        }
    }

    /// The remote branch that the work is for: the requested one, else `base` if it is a branch, else the default branch.
    pub(super) fn choose_target(
        &self,
        requested: Option<String>,
        base: Option<&str>,
    ) -> std::result::Result<Option<String>, RemoteError> {
        let Self::Remote(remote) = self else { return Ok(None) };
        let mirror = &remote.mirror;
        match (requested, base) {
            (Some(target), _) if mirror.has_branch(&target)? => Ok(Some(target)),
            (Some(target), _) => Err(RemoteError::BranchMissing {
                url: mirror.url().to_string(),
                base: target.chars().take(100).collect(),
            }),
            (None, Some(base)) if mirror.has_branch(base)? => Ok(Some(base.to_owned())),
            (None, _) => Ok(mirror.default_branch()?),
        }
    }

    /// Makes sure that the base commit is there and stays for the sandbox.
    pub(super) fn hold_commit(&self, sandbox: SandboxId, base: Option<&str>) -> std::result::Result<(), RemoteError> {
        match self {
            Self::Directory(_) => Ok(()),
            Self::Remote(remote) => {
                let commit = remote.resolve_base(base)?;
                Ok(remote.mirror.pin(&sandbox.to_string(), &commit)?)
            }
        }
    }

    pub(super) fn release_commit(&self, sandbox: SandboxId) -> std::result::Result<(), RemoteError> {
        match self {
            Self::Directory(_) => Ok(()),
            Self::Remote(remote) => Ok(remote.mirror.unpin(&sandbox.to_string())?),
        }
    }
}

impl RemoteSource {
    /// Resolves a base with as little network as possible: a commit that the mirror has needs none, a branch only if the
    /// mirror is stale or lacks it.
    fn resolve_base(&self, base: Option<&str>) -> std::result::Result<String, RemoteError> {
        let was_fetched = self.mirror.is_fresh(&self.credential, Duration::MAX);
        if let Some(commit) = base.filter(|base| was_fetched && is_commit_id(base))
            && let Ok(found) = self.mirror.resolve(Some(commit))
        {
            return Ok(found);
        }
        self.mirror.fetch(&self.credential, self.max_age)?;
        match self.mirror.resolve(base) {
            // It may be newer than the mirror.
            Err(RemoteError::BranchMissing { .. }) => {
                self.mirror.fetch(&self.credential, Duration::ZERO)?;
                self.mirror.resolve(base)
            }
            resolved => resolved,
        }
    }
}

/// True for a full object id.
fn is_commit_id(base: &str) -> bool {
    matches!(base.len(), 40 | 64) && base.bytes().all(|byte| byte.is_ascii_hexdigit())
}
