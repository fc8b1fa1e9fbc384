//! Repositories on this machine: packs them for sandboxes and imports the resulting branches. Git blocks, so everything runs
//! on blocking threads.

use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::provider::{Author, RepositorySource};
use atoll_core::sandbox::Repo;
use atoll_core::setup::RepositoryFiles;
use atoll_forge::{HostRepository, ImportOutcome, ImportRequest};
use std::collections::BTreeSet;
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

/// A repository with its base commit and the names that its new branch cannot have.
pub struct ResolvedRepository {
    pub repo: Repo,
    pub taken_branches: BTreeSet<String>,
}

/// Resolves the base commit and the branch before a sandbox is created, so that errors reach the client.
pub async fn resolve_repository(repo: Repo, prefix: String, title: String) -> Result<ResolvedRepository> {
    let path = repository_path(&repo)?;
    run_blocking(move || {
        let found = HostRepository::open(&path)?;
        let base = match &repo.base {
            Some(base) => found.resolve_base(base)?,
            None => found.head()?.commit,
        };
        let branch = repo.branch.clone().unwrap_or_else(|| atoll_forge::branch_name(&prefix, &title));
        let taken_branches = found.list_taken_branches()?;
        Ok(ResolvedRepository { repo: Repo { base: Some(base), branch: Some(branch), ..repo }, taken_branches })
    })
    .await
}

/// The outcome of creating a branch before its sandbox exists.
pub enum BranchPlacement {
    Exists,
    /// Another branch has the name; `free` is the next one like it.
    Taken {
        free: String,
    },
}

/// Creates the repository's `branch` at its base. The session's own branch may have any later commit.
pub async fn place_branch(repo: Repo, is_own: bool) -> Result<BranchPlacement> {
    let path = repository_path(&repo)?;
    let (Some(base), Some(branch)) = (repo.base, repo.branch) else {
        return Err(Problem::internal("a repository without its commit"));
    };
    run_blocking(move || {
        let found = HostRepository::open(&path)?;
        let taken = found.list_taken_branches()?;
        if (is_own && taken.contains(&branch)) || found.ensure_branch(&branch, &base)? {
            return Ok(BranchPlacement::Exists);
        }
        let free = atoll_forge::free_branch_name(&branch, &taken).unwrap_or(branch);
        Ok(BranchPlacement::Taken { free })
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

    /// Creates a file again, empty.
    pub fn recreate(&self, name: &str) -> io::Result<File> {
        std::fs::remove_file(self.path(name))?;
        self.create(name)
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

/// A repository as a bundle for the workspace, and what the workspace lacks.
pub struct PackedRepository {
    pub source: RepositorySource,
    /// Number of files with uncommitted changes.
    pub uncommitted: u64,
    pub submodules: Vec<String>,
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
    let scratch = ScratchDir::new(app, sandbox).map_err(|error| scratch_problem(&error))?;
    // If the session's branch was deleted, start again from the base.
    let source = bundle_commit(&scratch, repo, earlier).await?;
    let commit = source.commit.clone();
    let (uncommitted, submodules) = run_blocking(move || {
        let found = HostRepository::open(&path)?;
        Ok((found.count_uncommitted_files()?, found.list_submodules(&commit)?))
    })
    .await?;
    Ok(PackedRepository { source, uncommitted, submodules, scratch })
}

/// Reads the files of a commit that set-up depends on.
pub async fn read_setup_files(repo: &Repo, commit: String) -> Result<RepositoryFiles> {
    let path = repository_path(repo)?;
    run_blocking(move || HostRepository::open(&path)?.read_setup_files(&commit)).await
}

fn scratch_problem(error: &io::Error) -> Problem {
    Problem::internal(format!("no scratch directory: {error}"))
}

/// Bundles the revision `earlier` if it exists, else the repository's base.
pub async fn bundle_commit(scratch: &ScratchDir, repo: Repo, earlier: Option<String>) -> Result<RepositorySource> {
    let path = repository_path(&repo)?;
    let bundle = scratch.path("source");
    let file = scratch.create("source").map_err(|error| scratch_problem(&error))?;
    let (Some(commit), Some(branch)) = (repo.base, repo.branch) else {
        return Err(Problem::internal("a repository without its commit"));
    };
    run_blocking(move || {
        let found = HostRepository::open(&path)?;
        let commit = earlier.and_then(|revision| found.resolve_base(&revision).ok()).unwrap_or(commit);
        found.write_bundle(&commit, file)?;
        let author = git_author(&found);
        Ok(RepositorySource { bundle, commit, branch, author })
    })
    .await
}

fn git_author(repository: &HostRepository) -> Author {
    let author = repository.author();
    Author { name: author.name, email: author.email }
}

pub async fn repository_author(repo: &Repo) -> Result<Author> {
    let path = repository_path(repo)?;
    run_blocking(move || Ok(git_author(&HostRepository::open(&path)?))).await
}

/// The commits and branch names that an import depends on.
pub struct ImportPlan {
    pub repo: Repo,
    /// The commit that the sandbox started from, if it is known.
    pub start: Option<String>,
    /// True if the repository's `branch` is the session's own: the import fast-forwards it.
    pub is_own: bool,
    pub protected: Vec<String>,
}

/// Creates or fast-forwards the branch from the bundle `results`, unless it changes protected paths.
pub async fn import_results(scratch: ScratchDir, plan: ImportPlan) -> Result<ImportOutcome> {
    let path = repository_path(&plan.repo)?;
    run_blocking(move || {
        let bundle = scratch.path("results");
        let is_empty = std::fs::metadata(&bundle).is_ok_and(|file| file.len() == 0);
        if is_empty {
            return Ok(ImportOutcome::NoNewCommits);
        }
        let ImportPlan { repo, start, is_own, protected } = plan;
        let is_protected = |changed: &str| atoll_core::protected_paths::touches_protected_path(&protected, changed);
        let (base, branch) = (repo.base.unwrap_or_default(), repo.branch.unwrap_or_default());
        let request = ImportRequest {
            bundle: &bundle,
            base: &base,
            start: start.as_deref(),
            branch: &branch,
            is_own,
            scratch: Path::new(&scratch.0),
        };
        HostRepository::open(&path)?.import_result_unless_protected(request, &is_protected)
    })
    .await
}

/// The last line of a git operation's error output: a report of the worker, as JSON.
fn last_report(text: &str) -> (&str, Option<serde_json::Value>) {
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    (last, serde_json::from_str(last).ok())
}

/// Extracts the error message from a git operation's output.
pub fn git_error_text(text: &str) -> String {
    let (last, report) = last_report(text);
    let sentence = report.as_ref().and_then(|report| report.get("error")?.as_str());
    sentence.unwrap_or(last).chars().take(300).collect()
}

/// Extracts the error code from a git operation's output.
pub fn git_error_code(text: &str) -> Option<String> {
    last_report(text).1?.get("code")?.as_str().map(str::to_owned)
}

/// Texts of a report are from the sandbox, so their number and length are bounded.
const MAX_REPORTED_TEXTS: usize = 60;
const MAX_REPORTED_CHARS: usize = 500;

/// Extracts a list of texts from the report of a successful git operation.
pub fn git_report_texts(text: &str, list: &str) -> Vec<String> {
    let report = last_report(text).1.unwrap_or_default();
    let listed = report.get(list).and_then(|list| list.as_array()).map(Vec::as_slice).unwrap_or_default();
    let texts = listed.iter().filter_map(|text| text.as_str()).take(MAX_REPORTED_TEXTS);
    texts.map(|text| text.chars().take(MAX_REPORTED_CHARS).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_workers_report() {
        let failed = "noise\n{\"error\": \"the git repository is gone\", \"code\": \"no_repository\"}\n";
        assert_eq!(git_error_text(failed), "the git repository is gone");
        assert_eq!(git_error_code(failed).as_deref(), Some("no_repository"));
        assert_eq!((git_error_text("plain"), git_error_code("plain")), ("plain".to_owned(), None));
        let long = "x".repeat(1000);
        let report = format!("{{\"commit\": \"1\", \"warnings\": [\"one\", 2, \"{long}\"]}}");
        let texts = git_report_texts(&report, "warnings");
        assert_eq!((texts.len(), texts[0].as_str(), texts[1].len()), (2, "one", 500));
        assert_eq!(git_report_texts(&report, "unsaved"), [] as [&str; 0]);
    }
}
