//! Errors of git operations. The server reads the code and shows the message.

use atoll_forge::plumbing::GitFailure;
use atoll_forge::plumbing::sync::WorkspaceError;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid job: {detail}")]
    Arguments { detail: String },

    #[error("git is not installed; install it on the host (`apt install git`)")]
    GitMissing,

    #[error("{} is not empty; a repository needs an empty directory", root.display())]
    NotEmpty { root: PathBuf },

    #[error("{branch:?} is not a valid branch name")]
    BadBranch { branch: String },

    #[error("the input is not a bundle of commits: {detail}")]
    BadBundle { detail: String },

    #[error("expected commit {expected}, found {found}")]
    BaseMismatch { expected: String, found: String },

    #[error("the start commit {base} is not in the workspace's repository")]
    BaseMissing { base: String },

    #[error("{}: the git repository is gone; the files are still there", root.display())]
    NoRepository { root: PathBuf },

    #[error("{}: git cannot use the repository ({detail}); the files are still there", root.display())]
    BrokenRepository { root: PathBuf, detail: String },

    #[error("{what} took longer than {seconds} s and was stopped")]
    TimedOut { what: &'static str, seconds: u64 },

    #[error("{what}: the output exceeds {bound} bytes; add large or generated files to .gitignore")]
    OutputTooLarge { what: &'static str, bound: u64 },

    #[error(transparent)]
    Workspace(#[from] WorkspaceError),

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
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Arguments { .. } => "arguments",
            Self::GitMissing => "git_missing",
            Self::NotEmpty { .. } => "not_empty",
            Self::BadBranch { .. } => "bad_branch",
            Self::BadBundle { .. } => "bad_bundle",
            Self::BaseMismatch { .. } => "base_mismatch",
            Self::BaseMissing { .. } => "base_missing",
            Self::NoRepository { .. } => "no_repository",
            Self::BrokenRepository { .. } => "broken_repository",
            Self::TimedOut { .. } => "timed_out",
            Self::OutputTooLarge { .. } => "too_much",
            Self::Workspace(WorkspaceError::NotEmpty) => "not_empty",
            Self::Workspace(WorkspaceError::BaseMismatch) => "base_mismatch",
            Self::Workspace(WorkspaceError::Conflict { .. }) => "conflict",
            Self::Workspace(WorkspaceError::Stream(_)) => "bad_stream",
            Self::Workspace(WorkspaceError::Io { .. }) => "io",
            Self::Git { .. } => "git_failed",
            Self::Io { .. } => "io",
        }
    }
}
