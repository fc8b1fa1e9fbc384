//! Errors of this crate, with remedies.

use crate::plumbing::GitFailure;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: no such directory; check the path", path.display())]
    PathNotFound { path: PathBuf },

    #[error("{}: not a directory; give the directory of a git repository", path.display())]
    NotADirectory { path: PathBuf },

    #[error("{}: cannot be read ({detail}); give {} access to it, or use another repository", path.display(), reader(.uid))]
    NotAllowed { path: PathBuf, uid: u32, detail: String },

    #[error(
        "{}: belongs to user {owner}, and Atoll runs git only as a repository's owner; \
         run Atoll as that user or as root", path.display()
    )]
    WrongOwner { path: PathBuf, owner: u32 },

    #[error(
        "{}: not in a git repository{}; create one with `git init` and a first commit, or use another directory",
        path.display(), because(.detail)
    )]
    NotARepository { path: PathBuf, detail: String },

    #[error("{}: the repository has no commit yet; create one (`git add -A && git commit`) and try again", path.display())]
    NoCommits { path: PathBuf },

    #[error(
        "{}: the current branch {branch} has no commit yet; \
         create one, or give the branch, tag or commit to start from", path.display()
    )]
    HeadUnborn { path: PathBuf, branch: String },

    #[error("git is not installed; install it (such as `apt install git`) and try again")]
    GitMissing,

    #[error("git {found} is too old; install git 2.31 or newer")]
    GitTooOld { found: String },

    #[error("{base:?} is not a valid branch, tag or commit")]
    BaseRefused { base: String },

    #[error(
        "{}: no branch, tag or commit {base:?}; run `git branch -a` and `git tag` to list them, \
         or `git fetch` to update from the remote", path.display()
    )]
    BaseMissing { path: PathBuf, base: String },

    #[error("repo.sparse: commit {commit} has no directory {dir:?}; check the name")]
    DirectoryMissing { dir: String, commit: String },

    #[error(
        "{}: the repository lacks objects of commit {commit} ({detail}); fetch them with \
         `git fetch --refetch --no-filter`, use a full clone, or check for damage with `git fsck`", path.display()
    )]
    ObjectsMissing { path: PathBuf, commit: String, detail: String },

    #[error("{branch:?} is not a valid branch name; choose another")]
    BranchRefused { branch: String },

    #[error("all names like {name} exist; remove old branches (`git branch -D`) or choose another name")]
    NoFreeName { name: String },

    #[error("the sandbox's result is not a valid bundle: {detail}; nothing was imported, try again")]
    BundleRefused { detail: String },

    #[error("git rejects the sandbox's commits: {detail}; nothing was imported, the work is still in the sandbox")]
    ResultRefused { detail: String },

    #[error(
        "the sandbox's result is too large ({what}: {found}, limit: {bound}); nothing was imported; \
         remove large files in the sandbox (or list them in .gitignore) and try again"
    )]
    ResultTooLarge { what: &'static str, found: String, bound: u64 },

    #[error("{}: the packed repository exceeds {bound} bytes; use a shallow clone", path.display())]
    SourceTooLarge { path: PathBuf, bound: u64 },

    #[error("{what} took longer than {} s{} and was stopped; try again when the machine is less busy", after.as_secs(), pace(*after, *bytes))]
    TimedOut { what: &'static str, after: Duration, bytes: Option<u64> },

    #[error("{what}: git printed more than {bound} bytes")]
    OutputTooLarge { what: &'static str, bound: u64 },

    #[error("{}: not a worktree with files; run the command in a checkout", path.display())]
    NoWorktree { path: PathBuf },

    #[error("another command works on this worktree: {holder}; wait for it with --wait, or end it")]
    WorktreeBusy { holder: String },

    #[error("there is nothing to undo: no changes were applied to this worktree")]
    NothingToUndo,

    #[error("the worktree changed while changes were applied ({path}); nothing was changed, try again")]
    WorktreeChanged { path: String },

    #[error("{path} exists in the worktree, but it was not sent to the sandbox; move it away and try again")]
    PathOccupied { path: String },

    #[error("the path {path:?} would leave the worktree; nothing was changed")]
    PathRefused { path: String },

    #[error("{what} failed: {detail}")]
    Git { what: &'static str, detail: String },

    #[error("{what} failed: {source}")]
    Io { what: &'static str, source: io::Error },
}

impl From<GitFailure> for Error {
    fn from(GitFailure { what, detail }: GitFailure) -> Self {
        Self::Git { what, detail }
    }
}

impl Error {
    /// The stable error code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::PathNotFound { .. } => "source_not_found",
            Self::NotADirectory { .. } => "source_not_a_directory",
            Self::NotAllowed { .. } => "source_not_allowed",
            Self::WrongOwner { .. } => "source_not_yours",
            Self::NotARepository { .. } => "not_a_repository",
            Self::NoCommits { .. } | Self::HeadUnborn { .. } => "no_commits",
            Self::GitMissing => "git_missing",
            Self::GitTooOld { .. } => "git_too_old",
            Self::BaseRefused { .. } => "base_refused",
            Self::BaseMissing { .. } => "base_missing",
            Self::DirectoryMissing { .. } => "sparse_directory_missing",
            Self::ObjectsMissing { .. } => "source_incomplete",
            Self::BranchRefused { .. } => "branch_refused",
            Self::NoFreeName { .. } => "no_free_branch",
            Self::BundleRefused { .. } => "bundle_refused",
            Self::ResultRefused { .. } => "result_refused",
            Self::ResultTooLarge { .. } => "result_too_large",
            Self::SourceTooLarge { .. } => "source_too_large",
            Self::NoWorktree { .. } => "no_worktree",
            Self::WorktreeBusy { .. } => "worktree_busy",
            Self::NothingToUndo => "nothing_to_undo",
            Self::WorktreeChanged { .. } => "worktree_changed",
            Self::PathOccupied { .. } => "path_occupied",
            Self::PathRefused { .. } => "path_refused",
            Self::TimedOut { .. } => "git_too_slow",
            Self::OutputTooLarge { .. } | Self::Git { .. } => "git_failed",
            Self::Io { .. } => "git_io",
        }
    }
}

fn reader(uid: &u32) -> String {
    if *uid == 0 { "root".to_owned() } else { format!("user {uid}") }
}

fn because(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" that git can use ({detail})") }
}

fn pace(after: Duration, bytes: Option<u64>) -> String {
    let rate = |bytes: u64| bytes.checked_div(after.as_secs().max(1)).unwrap_or(0);
    bytes.map_or_else(String::new, |bytes| format!(" ({bytes} bytes done, {} bytes each second)", rate(bytes)))
}
