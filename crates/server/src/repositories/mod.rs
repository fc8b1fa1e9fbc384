//! Repositories of sandboxes: packs them and imports the resulting branches. Git blocks, so everything runs on blocking
//! threads.
//!
//! `GitSource` is the repository: a directory of this machine, or the mirror of a URL.

mod branch_repository;
mod checkout_contents;
mod git_credentials;
mod git_reports;
mod git_source;
mod large_files;
mod scratch_dir;
mod submodules;

pub use branch_repository::BranchRepository;
pub use checkout_contents::CheckoutContents;
use checkout_contents::MissingContents;
pub use git_credentials::CredentialScope;
pub use git_reports::{git_error_code, git_error_text, git_report_texts};
pub use git_source::{GitSource, parse_url};
pub use scratch_dir::ScratchDir;

use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::id::SandboxId;
use atoll_core::principal::user_of_actor;
use atoll_core::provider::{Author, RepositorySource};
use atoll_core::sandbox::Repo;
use atoll_core::setup::RepositoryFiles;
use atoll_forge::remote::Pin;
use atoll_forge::{CommitRange, FileChange, HostRepository, ImportOutcome, ImportRequest};
use atoll_store::sandboxes::SandboxRow;
use git_source::run_blocking;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;

/// A repository with its base commit and the names that its new branch cannot have.
pub struct ResolvedRepository {
    pub repo: Repo,
    pub taken_branches: BTreeSet<String>,
}

/// Resolves the base commit and the branch before a sandbox is created, so that errors reach the client.
///
/// Fetches a repository behind a URL, unless its mirror is recent.
pub async fn resolve_repository(
    app: &App,
    scope: CredentialScope,
    repo: Repo,
    title: String,
) -> Result<ResolvedRepository> {
    let source = GitSource::connect(app, scope, &repo).await?;
    let prefix = app.config.git.branch_prefix.clone();
    let (resolved, requested) = (source.clone(), repo.clone());
    let base = run_blocking(move || {
        let base = resolved.resolve_base(requested.base.as_deref())?;
        resolved.open()?.check_directories(&base, &requested.sparse)?;
        Ok(base)
    })
    .await?;
    if repo.submodules || repo.lfs {
        // A failure is an error of the request, and the job finds everything on this machine.
        CheckoutContents::fetch(app, scope, &source, &repo, &base, MissingContents::Refuse).await?;
    }
    run_blocking(move || {
        let branch = repo.branch.clone().unwrap_or_else(|| atoll_forge::branch_name(&prefix, &title));
        let taken_branches = source.open()?.list_taken_branches()?;
        let target = source.choose_target(repo.target.clone(), repo.base.as_deref())?;
        Ok(ResolvedRepository { repo: Repo { base: Some(base), branch: Some(branch), target, ..repo }, taken_branches })
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

/// Creates the repository's `branch` at its base; for a URL, in the mirror. The session's own branch may have any later commit.
pub async fn place_branch(app: &App, repo: Repo, is_own: bool) -> Result<BranchPlacement> {
    let source = GitSource::open_stored(app, &repo)?;
    let (Some(base), Some(branch)) = (repo.base, repo.branch) else {
        return Err(Problem::internal("a repository without its commit"));
    };
    run_blocking(move || {
        let found = source.open()?;
        let taken = found.list_taken_branches()?;
        if (is_own && taken.contains(&branch)) || found.ensure_branch(&branch, &base)? {
            return Ok(BranchPlacement::Exists);
        }
        let free = atoll_forge::free_branch_name(&branch, &taken).unwrap_or(branch);
        Ok(BranchPlacement::Taken { free })
    })
    .await
}

/// A repository at the commit of a new sandbox, and what the workspace will lack.
pub struct PreparedRepository {
    /// The source, whose bundle is not written yet.
    pub source: RepositorySource,
    /// Number of files with uncommitted changes.
    pub uncommitted: u64,
    pub contents: CheckoutContents,
    /// True if all objects of the history are there, so that the checkout can become a layer.
    pub is_complete: bool,
    origin: GitSource,
    /// Holds the bundle until the sandbox has read it.
    scratch: ScratchDir,
}

/// Prepares a repository at the revision `earlier` if it exists, else at its base.
pub async fn prepare_repository(
    app: &App,
    row: &SandboxRow,
    repo: Repo,
    earlier: Option<String>,
) -> Result<PreparedRepository> {
    let sandbox = row.id;
    let requester = row.created_by.as_deref().and_then(user_of_actor);
    let scope = CredentialScope { project: row.project_id, requester };
    let origin = GitSource::connect(app, scope, &repo).await?;
    let (prepared, base) = (origin.clone(), repo.base.clone());
    run_blocking(move || prepared.hold_commit(sandbox, base.as_deref())).await?;
    let scratch = ScratchDir::new(app, sandbox).map_err(|error| scratch_problem(&error))?;
    let (Some(base), Some(branch)) = (repo.base.clone(), repo.branch.clone()) else {
        return Err(Problem::internal("a repository without its commit"));
    };
    let (opened, bundle) = (origin.clone(), scratch.path("source"));
    let settings = repo.clone();
    let (source, uncommitted, is_complete) = run_blocking(move || {
        let found = opened.open()?;
        // If the session's branch was deleted, start again from the base.
        let commit = earlier.and_then(|revision| found.resolve_base(&revision).ok()).unwrap_or(base);
        let source = new_source(bundle, commit, branch, git_author(&found), &settings);
        Ok((source, found.count_uncommitted_files()?, found.is_complete()?))
    })
    .await?;
    let is_base = repo.base.as_ref() == Some(&source.commit);
    let missing = if is_base { MissingContents::Refuse } else { MissingContents::Skip };
    let contents = CheckoutContents::fetch(app, scope, &origin, &repo, &source.commit, missing).await?;
    Ok(PreparedRepository { source, uncommitted, contents, is_complete, origin, scratch })
}

impl PreparedRepository {
    /// Finds the commit whose id begins with `start`.
    pub async fn find_commit(&self, start: String) -> Result<Option<String>> {
        let origin = self.origin.clone();
        run_blocking(move || Ok(origin.open()?.find_commit(&start)?)).await
    }

    /// Writes the bundle: what the checkout layer lacks, or everything.
    pub async fn write_bundle(&self, layer_commit: Option<String>) -> Result<RepositorySource> {
        // An earlier bundle may be there, for a layer that is gone.
        drop(std::fs::remove_file(self.scratch.path("source")));
        let file = self.scratch.create("source").map_err(|error| scratch_problem(&error))?;
        let (origin, commit, known) = (self.origin.clone(), self.source.commit.clone(), layer_commit.clone());
        run_blocking(move || {
            let found = origin.open()?;
            match known {
                Some(known) => Ok(found.write_bundle_above(&known, &commit, file)?),
                None => Ok(found.write_bundle(&commit, file)?),
            }
        })
        .await?;
        // A layer that is at the commit has its parts.
        let is_there = layer_commit.as_ref() == Some(&self.source.commit);
        let parts = if is_there { None } else { self.contents.write_parts(&self.scratch).await? };
        Ok(RepositorySource { layer_commit, parts, ..self.source.clone() })
    }
}

/// Releases the commits that a mirror holds for a removed sandbox.
pub async fn release_repository(app: &App, sandbox: SandboxId, repo: &Repo) {
    let Ok(source) = GitSource::open_stored(app, repo) else { return };
    if let Err(problem) = run_blocking(move || source.release_commit(sandbox)).await {
        tracing::debug!(%sandbox, detail = problem.detail, "failed to release the commit of a removed sandbox");
    }
}

/// Lists the commits that the mirrors keep for sandboxes.
pub async fn list_pins(app: &App) -> Result<Vec<Pin>> {
    let mirrors = app.config.data_dir.join(git_source::MIRRORS_DIR);
    run_blocking(move || Ok(Pin::list_all(&mirrors))).await
}

pub async fn remove_pin(pin: Pin) -> Result<()> {
    run_blocking(move || Ok(pin.remove()?)).await
}

/// Reads the files of a commit that set-up depends on.
pub async fn read_setup_files(app: &App, repo: &Repo, commit: String) -> Result<RepositoryFiles> {
    let source = GitSource::open_stored(app, repo)?;
    run_blocking(move || Ok(source.open()?.read_setup_files(&commit)?)).await
}

fn scratch_problem(error: &io::Error) -> Problem {
    Problem::internal(format!("no scratch directory: {error}"))
}

/// Bundles the revision `earlier` if it exists, else the repository's base.
pub async fn bundle_commit(
    origin: &GitSource,
    scratch: &ScratchDir,
    repo: Repo,
    earlier: Option<String>,
) -> Result<RepositorySource> {
    let origin = origin.clone();
    let bundle = scratch.path("source");
    let file = scratch.create("source").map_err(|error| scratch_problem(&error))?;
    let (Some(commit), Some(branch)) = (repo.base.clone(), repo.branch.clone()) else {
        return Err(Problem::internal("a repository without its commit"));
    };
    run_blocking(move || {
        let found = origin.open()?;
        let commit = earlier.and_then(|revision| found.resolve_base(&revision).ok()).unwrap_or(commit);
        found.write_bundle(&commit, file)?;
        Ok(new_source(bundle, commit, branch, git_author(&found), &repo))
    })
    .await
}

fn new_source(bundle: PathBuf, commit: String, branch: String, author: Author, repo: &Repo) -> RepositorySource {
    let (sparse_dirs, uses_lfs) = (repo.sparse.clone(), repo.lfs);
    RepositorySource {
        bundle,
        parts: None,
        sparse_dirs,
        uses_lfs,
        layer_commit: None,
        store_as: None,
        commit,
        branch,
        author,
    }
}

/// Lists the changed files between two commits.
pub async fn list_changes(app: &App, repo: &Repo, range: CommitRange) -> Result<Vec<FileChange>> {
    let source = GitSource::open_stored(app, repo)?;
    run_blocking(move || Ok(source.open()?.list_changes(&range)?)).await
}

/// Writes the patch between two commits, at most `bound` bytes.
pub async fn write_patch(app: &App, repo: &Repo, range: CommitRange, mut file: File, bound: u64) -> Result<()> {
    let source = GitSource::open_stored(app, repo)?;
    run_blocking(move || Ok(source.open()?.write_patch(&range, &mut file, bound)?)).await
}

fn git_author(repository: &HostRepository) -> Author {
    let author = repository.author();
    Author { name: author.name, email: author.email }
}

pub async fn repository_author(app: &App, repo: &Repo) -> Result<Author> {
    let source = GitSource::open_stored(app, repo)?;
    run_blocking(move || Ok(git_author(&source.open()?))).await
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

/// Creates or fast-forwards the branch from the bundle `results`, unless it changes protected paths. For a URL, the branch is
/// in the mirror.
pub async fn import_results(app: &App, scratch: ScratchDir, plan: ImportPlan) -> Result<ImportOutcome> {
    let source = GitSource::open_stored(app, &plan.repo)?;
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
            scratch: scratch.directory(),
        };
        Ok(source.open()?.import_result_unless_protected(request, &is_protected)?)
    })
    .await
}
