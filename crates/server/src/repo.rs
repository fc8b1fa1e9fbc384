//! Repositories on this machine: what goes into a sandbox, and the branch that comes out.
//! All of it waits for git, so it runs on threads where waiting is no harm.

use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::provider::{Author, Source};
use atoll_core::sandbox::Repo;
use atoll_forge::{Outcome, Repository};
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::result::Result<T, atoll_forge::Error> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => {
            done.map_err(|error| Problem::new(Code::NotARepository, error.to_string()).with("cause", error.code()))
        }
        Err(error) => Err(Problem::internal(error)),
    }
}

fn path(repo: &Repo) -> Result<PathBuf> {
    match (&repo.path, &repo.url) {
        (Some(path), _) => Ok(PathBuf::from(path)),
        (None, Some(_)) => Err(Problem::new(
            Code::ProviderUnsupported,
            "cloning from a URL comes in a later version; clone it on the server and give the directory as repo.path",
        )),
        (None, None) => Err(Problem::invalid("repo: needs a `path`")),
    }
}

/// The repository as a sandbox will have it: the commit to begin at and the branch to work on are
/// settled before anything is made, so that what can't be had is said at once.
pub async fn settle(repo: Repo, prefix: String, title: String) -> Result<Repo> {
    let path = path(&repo)?;
    blocking(move || {
        let found = Repository::open(&path)?;
        let base = match &repo.base {
            Some(base) => found.resolve(base)?,
            None => found.head()?.commit,
        };
        let branch = repo.branch.clone().unwrap_or_else(|| atoll_forge::branch_name(&prefix, &title));
        Ok(Repo { base: Some(base), branch: Some(branch), ..repo })
    })
    .await
}

/// A directory for files on their way, removed with all that is in it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(app: &App, sandbox: SandboxId) -> io::Result<Self> {
        let dir = app.data_dir.join("scratch").join(sandbox.to_string());
        // What a server that was killed had left of it.
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

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, "a scratch directory could not be removed");
        }
    }
}

/// What is put into the workspace, and how many files of the user's are not in it.
pub struct Packed {
    pub source: Source,
    pub uncommitted: u64,
    /// Holds the bundle, which goes when the sandbox has it.
    #[expect(dead_code, reason = "it is there to be dropped")]
    pub scratch: Scratch,
}

pub async fn pack(app: &App, sandbox: SandboxId, repo: Repo, earlier: Option<String>) -> Result<Packed> {
    let path = path(&repo)?;
    let failed = |error: io::Error| Problem::internal(format!("no scratch directory: {error}"));
    let scratch = Scratch::new(app, sandbox).map_err(failed)?;
    let bundle = scratch.path("source");
    let file = scratch.create("source").map_err(failed)?;
    let (Some(commit), Some(branch)) = (repo.base, repo.branch) else {
        return Err(Problem::internal("a repository without its commit"));
    };
    let (source, uncommitted) = blocking(move || {
        let found = Repository::open(&path)?;
        // A branch that is gone meanwhile is no reason to fail: the work begins anew.
        let commit = earlier.and_then(|branch| found.resolve(&branch).ok()).unwrap_or(commit);
        found.bundle(&commit, file)?;
        let author = by(&found);
        Ok((Source { bundle, commit, branch, author }, found.uncommitted()?))
    })
    .await?;
    Ok(Packed { source, uncommitted, scratch })
}

fn by(repository: &Repository) -> Author {
    let author = repository.author();
    Author { name: author.name, email: author.email }
}

pub async fn author(repo: &Repo) -> Result<Author> {
    let path = path(repo)?;
    blocking(move || Ok(by(&Repository::open(&path)?))).await
}

/// Makes the branch from the bundle `results` of the scratch directory, unless it changes what is protected.
pub async fn take(repo: &Repo, scratch: Scratch, base: String, protected: Vec<String>) -> Result<Outcome> {
    let path = path(repo)?;
    let branch = repo.branch.clone().unwrap_or_default();
    blocking(move || {
        let bundle = scratch.path("results");
        let is_empty = std::fs::metadata(&bundle).is_ok_and(|file| file.len() == 0);
        if is_empty {
            return Ok(Outcome::Nothing);
        }
        let is_protected = |changed: &str| atoll_core::protected::touches(&protected, changed);
        Repository::open(&path)?.take_unless(&bundle, &base, &branch, Path::new(&scratch.0), &is_protected)
    })
    .await
}

/// The sentence in what a git job said in error.
pub fn said(text: &str) -> String {
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let told = serde_json::from_str::<serde_json::Value>(last).ok();
    let sentence = told.as_ref().and_then(|told| told.get("error")?.as_str());
    sentence.unwrap_or(last).chars().take(300).collect()
}
