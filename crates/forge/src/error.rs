//! What can go wrong with a repository, and what to do about it.

use crate::plumbing::Rejected;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: there is no such directory; check the path", path.display())]
    NotThere { path: PathBuf },

    #[error("{}: this is not a directory; name the directory of a git repository", path.display())]
    NotADirectory { path: PathBuf },

    #[error("{}: may not be read ({detail}); give {} access to it, or name another repository", path.display(), reader(.uid))]
    NotAllowed { path: PathBuf, uid: u32, detail: String },

    #[error(
        "{}: belongs to user {owner}, and git is run only as a repository's owner; \
         run Atoll as that user or as root", path.display()
    )]
    NotYours { path: PathBuf, owner: u32 },

    #[error(
        "{}: is not in a git repository{}; make one with `git init` and a first commit, or name another directory",
        path.display(), because(.detail)
    )]
    NotARepository { path: PathBuf, detail: String },

    #[error("{}: this repository has no commit yet; make one (`git add -A && git commit`) and try again", path.display())]
    NoCommits { path: PathBuf },

    #[error(
        "{}: its current branch {branch} has no commit yet; \
         make one, or name the branch, tag or commit to start from", path.display()
    )]
    HeadUnborn { path: PathBuf, branch: String },

    #[error("git is not installed; install it (`apt install git`, or your system's way) and try again")]
    GitMissing,

    #[error("git {found} is too old; install git 2.31 or newer")]
    GitTooOld { found: String },

    #[error("{base:?} cannot name a branch, tag or commit; give one of these as git prints it")]
    BaseRefused { base: String },

    #[error(
        "{}: there is no branch, tag or commit {base:?}; `git branch -a` and `git tag` list what there is, \
         `git fetch` brings what is only at the remote", path.display()
    )]
    BaseMissing { path: PathBuf, base: String },

    #[error(
        "{}: this repository does not hold all of commit {commit} ({detail}); bring the rest in with \
         `git fetch --refetch --no-filter`, name a whole clone, or look for damage with `git fsck`", path.display()
    )]
    Incomplete { path: PathBuf, commit: String, detail: String },

    #[error("{branch:?} cannot be the name of a branch; give another")]
    BranchRefused { branch: String },

    #[error("all names like {wanted} are taken; remove old branches (`git branch -D`) or choose another name")]
    NoFreeName { wanted: String },

    #[error(
        "what came out of the sandbox is not a bundle of commits: {detail}; nothing was taken from it, try once more"
    )]
    BundleRefused { detail: String },

    #[error(
        "git refuses the commits that came out of the sandbox: {detail}; nothing was taken, the work is still in the sandbox"
    )]
    ResultRefused { detail: String },

    #[error(
        "what came out of the sandbox is too large ({what}: {found}, allowed: {bound}); nothing was taken; \
         remove large files in the sandbox (or list them in .gitignore) and try again"
    )]
    ResultTooLarge { what: &'static str, found: String, bound: u64 },

    #[error("{}: the packed repository is larger than {bound} bytes; name a shallow clone of it", path.display())]
    SourceTooLarge { path: PathBuf, bound: u64 },

    #[error("{what} took longer than {} s{} and was stopped; try again when the machine has less to do", after.as_secs(), pace(*after, *bytes))]
    TooSlow { what: &'static str, after: Duration, bytes: Option<u64> },

    #[error("{what}: git said more than {bound} bytes")]
    TooMuchSaid { what: &'static str, bound: u64 },

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
    /// A word for programs; it does not change when the sentence does.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotThere { .. } => "source_not_found",
            Self::NotADirectory { .. } => "source_not_a_directory",
            Self::NotAllowed { .. } => "source_not_allowed",
            Self::NotYours { .. } => "source_not_yours",
            Self::NotARepository { .. } => "not_a_repository",
            Self::NoCommits { .. } | Self::HeadUnborn { .. } => "no_commits",
            Self::GitMissing => "git_missing",
            Self::GitTooOld { .. } => "git_too_old",
            Self::BaseRefused { .. } => "base_refused",
            Self::BaseMissing { .. } => "base_missing",
            Self::Incomplete { .. } => "source_incomplete",
            Self::BranchRefused { .. } => "branch_refused",
            Self::NoFreeName { .. } => "no_free_branch",
            Self::BundleRefused { .. } => "bundle_refused",
            Self::ResultRefused { .. } => "result_refused",
            Self::ResultTooLarge { .. } => "result_too_large",
            Self::SourceTooLarge { .. } => "source_too_large",
            Self::TooSlow { .. } => "git_too_slow",
            Self::TooMuchSaid { .. } | Self::Git { .. } => "git_failed",
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
