//! Repositories on this machine: packs them for sandboxes and imports the resulting branches. Git blocks, so everything runs
//! on blocking threads.

use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::provider::{Author, RepositorySource};
use atoll_core::sandbox::Repo;
use atoll_forge::{HostRepository, ImportOutcome};
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::result::Result<T, atoll_forge::Error> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => {
            done.map_err(|error| Problem::new(Code::NotARepository, error.to_string()).with("cause", error.code()))
        }
        Err(error) => Err(Problem::internal(error)),
    }
}

fn repository_path(repo: &Repo) -> Result<PathBuf> {
    match (&repo.path, &repo.url) {
        (Some(path), _) => Ok(PathBuf::from(path)),
        (None, Some(_)) => Err(Problem::new(
            Code::ProviderUnsupported,
            "this version cannot clone from a URL; clone it on the server and set repo.path to the directory",
        )),
        (None, None) => Err(Problem::invalid("repo: needs a `path`")),
    }
}

/// Resolves the base commit and the branch before a sandbox is created, so that errors reach the client.
pub async fn resolve_repository(repo: Repo, prefix: String, title: String) -> Result<Repo> {
    let path = repository_path(&repo)?;
    run_blocking(move || {
        let found = HostRepository::open(&path)?;
        let base = match &repo.base {
            Some(base) => found.resolve_base(base)?,
            None => found.head()?.commit,
        };
        let branch = repo.branch.clone().unwrap_or_else(|| atoll_forge::branch_name(&prefix, &title));
        Ok(Repo { base: Some(base), branch: Some(branch), ..repo })
    })
    .await
}

/// A temporary directory, removed on drop.
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    pub fn new(app: &App, sandbox: SandboxId) -> io::Result<Self> {
        let dir = app.config.data_dir.join("scratch").join(sandbox.to_string());
        // Left over by a killed server.
        drop(std::fs::remove_dir_all(&dir));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Self(dir))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn create(&self, name: &str) -> io::Result<File> {
        File::options().read(true).write(true).create_new(true).mode(0o600).open(self.path(name))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, "failed to remove a scratch directory");
        }
    }
}

/// A repository as a bundle for the workspace, and the number of uncommitted files that it lacks.
pub struct PackedRepository {
    pub source: RepositorySource,
    pub uncommitted: u64,
    /// Holds the bundle until the sandbox has read it.
    #[expect(dead_code, reason = "removes the bundle on drop")]
    pub scratch: ScratchDir,
}

pub async fn pack_repository(
    app: &App,
    sandbox: SandboxId,
    repo: Repo,
    earlier: Option<String>,
) -> Result<PackedRepository> {
    let path = repository_path(&repo)?;
    let failed = |error: io::Error| Problem::internal(format!("no scratch directory: {error}"));
    let scratch = ScratchDir::new(app, sandbox).map_err(failed)?;
    let bundle = scratch.path("source");
    let file = scratch.create("source").map_err(failed)?;
    let (Some(commit), Some(branch)) = (repo.base, repo.branch) else {
        return Err(Problem::internal("a repository without its commit"));
    };
    let (source, uncommitted) = run_blocking(move || {
        let found = HostRepository::open(&path)?;
        // If the session's branch was deleted, start again from the base.
        let commit = earlier.and_then(|branch| found.resolve_base(&branch).ok()).unwrap_or(commit);
        found.write_bundle(&commit, file)?;
        let author = git_author(&found);
        Ok((RepositorySource { bundle, commit, branch, author }, found.count_uncommitted_files()?))
    })
    .await?;
    Ok(PackedRepository { source, uncommitted, scratch })
}

fn git_author(repository: &HostRepository) -> Author {
    let author = repository.author();
    Author { name: author.name, email: author.email }
}

pub async fn repository_author(repo: &Repo) -> Result<Author> {
    let path = repository_path(repo)?;
    run_blocking(move || Ok(git_author(&HostRepository::open(&path)?))).await
}

/// Creates the branch from the bundle `results`, unless it changes protected paths.
pub async fn import_results(
    repo: &Repo,
    scratch: ScratchDir,
    base: String,
    protected: Vec<String>,
) -> Result<ImportOutcome> {
    let path = repository_path(repo)?;
    let branch = repo.branch.clone().unwrap_or_default();
    run_blocking(move || {
        let bundle = scratch.path("results");
        let is_empty = std::fs::metadata(&bundle).is_ok_and(|file| file.len() == 0);
        if is_empty {
            return Ok(ImportOutcome::NoNewCommits);
        }
        let is_protected = |changed: &str| atoll_core::protected_paths::touches_protected_path(&protected, changed);
        HostRepository::open(&path)?.import_result_unless_protected(
            &bundle,
            &base,
            &branch,
            Path::new(&scratch.0),
            &is_protected,
        )
    })
    .await
}

/// Extracts the error message from a git operation's output.
pub fn git_error_text(text: &str) -> String {
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let report = serde_json::from_str::<serde_json::Value>(last).ok();
    let sentence = report.as_ref().and_then(|report| report.get("error")?.as_str());
    sentence.unwrap_or(last).chars().take(300).collect()
}
