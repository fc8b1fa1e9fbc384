//! Why a job of git could not be done. The server reads the code and shows the sentence.

use atoll_forge::plumbing::Rejected;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the job was not understood: {detail}")]
    Arguments { detail: String },

    #[error("git is not installed where sandboxes find their programs; install it on the host (`apt install git`)")]
    GitMissing,

    #[error("{}: there are files here already; a repository goes only into an empty directory", root.display())]
    NotEmpty { root: PathBuf },

    #[error("{branch:?} cannot be the name of a branch")]
    BadBranch { branch: String },

    #[error("what came in is not a bundle of commits: {detail}")]
    BadBundle { detail: String },

    #[error("what came in is commit {found}, and not {wanted}")]
    BaseMismatch { wanted: String, found: String },

    #[error("commit {base}, which the sandbox started from, is not in the workspace's repository")]
    BaseMissing { base: String },

    #[error("{}: there is no git repository any more; the files are still there", root.display())]
    NoRepository { root: PathBuf },

    #[error("{}: git cannot use the repository any more ({detail}); the files are still there", root.display())]
    BrokenRepository { root: PathBuf, detail: String },

    #[error("{what} took longer than {seconds} s and was stopped")]
    TimedOut { what: &'static str, seconds: u64 },

    #[error("{what}: that is more than {bound} bytes; are there large files, or many, that .gitignore should name?")]
    TooMuch { what: &'static str, bound: u64 },

    #[error("{what} failed: {detail}")]
    Git { what: &'static str, detail: String },

    #[error("{what} failed: {source}")]
    Io { what: &'static str, source: io::Error },
}

impl From<Rejected> for Error {
    fn from(Rejected { what, detail }: Rejected) -> Self {
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
            Self::TooMuch { .. } => "too_much",
            Self::Git { .. } => "git_failed",
            Self::Io { .. } => "io",
        }
    }
}
