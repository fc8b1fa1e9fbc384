//! The workspace's repository.

use super::command::{Git, GitWorkspace};
use super::error::Error;
use super::large_file_filters::PointerUse;
use atoll_forge::plumbing::bundle::ObjectFormat;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Time for a running git to release its lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Repository {
    pub git: Git,
    pub format: ObjectFormat,
    /// The directory of HEAD and the index.
    pub git_dir: PathBuf,
}

/// An unfinished operation of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnfinishedOperation {
    Nothing,
    Merge,
    Rebase,
    CherryPick,
    Revert,
    Bisect,
}

impl UnfinishedOperation {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Merge => "merge",
            Self::Rebase => "rebase",
            Self::CherryPick => "cherry-pick",
            Self::Revert => "revert",
            Self::Bisect => "bisect",
        }
    }
}

impl Repository {
    pub fn open(workspace: &GitWorkspace, pointers: PointerUse) -> Result<Self, Error> {
        let root = workspace.root.clone();
        let mut git = Git::find(workspace)?;
        if fs::symlink_metadata(root.join(".git")).is_err() {
            return Err(Error::NoRepository { root });
        }
        let found = git.query(["rev-parse", "--absolute-git-dir"])?;
        if !found.is_success() {
            return Err(Error::BrokenRepository { root, detail: found.failure_detail() });
        }
        let mut path = found.stdout;
        path.pop();
        let git_dir: PathBuf = OsString::from_vec(path).into();
        let named = git.query(["rev-parse", "--show-object-format"])?.require_success()?.text();
        let detail = || format!("unsupported object format `{named}`");
        let format =
            ObjectFormat::from_name(&named).ok_or_else(|| Error::BrokenRepository { root, detail: detail() })?;
        git.replace_filters(pointers)?;
        Ok(Self { git, format, git_dir })
    }

    /// Resolves a revision to a commit, if it exists.
    pub fn resolve_commit(&self, revision: &str) -> Result<Option<String>, Error> {
        let peeled = format!("{revision}^{{commit}}");
        let answer = self.git.query(["rev-parse", "--verify", "--quiet", "--end-of-options", &peeled])?;
        Ok(answer.is_success().then(|| answer.text()).filter(|commit| self.format.is_object_id(commit)))
    }

    /// Resolves the start commit, which must be a full id.
    pub fn resolve_base(&self, base: &str) -> Result<Option<String>, Error> {
        let is_id = [ObjectFormat::Sha1, ObjectFormat::Sha256].iter().any(|format| format.is_object_id(base));
        if !is_id {
            return Err(Error::Arguments { detail: "--base must be a full commit id".to_owned() });
        }
        if self.format.is_object_id(base) { self.resolve_commit(base) } else { Ok(None) }
    }

    pub fn unfinished_operation(&self) -> UnfinishedOperation {
        let has = |name: &str| fs::symlink_metadata(self.git_dir.join(name)).is_ok();
        if has("rebase-merge") || has("rebase-apply") {
            UnfinishedOperation::Rebase
        } else if has("MERGE_HEAD") {
            UnfinishedOperation::Merge
        } else if has("CHERRY_PICK_HEAD") {
            UnfinishedOperation::CherryPick
        } else if has("REVERT_HEAD") {
            UnfinishedOperation::Revert
        } else if has("BISECT_START") {
            UnfinishedOperation::Bisect
        } else {
            UnfinishedOperation::Nothing
        }
    }

    /// Removes locks that a killed git left, after waiting for a running one.
    pub fn remove_stale_locks(&self) {
        let locks = ["index.lock", "HEAD.lock"].map(|name| self.git_dir.join(name));
        let is_locked = || locks.iter().any(|lock| fs::symlink_metadata(lock).is_ok());
        let step = Duration::from_millis(100);
        let mut waited = Duration::ZERO;
        while is_locked() && waited < LOCK_TIMEOUT {
            std::thread::sleep(step);
            waited += step;
        }
        locks.iter().for_each(|lock| drop(fs::remove_file(lock)));
    }
}

/// Reads a regular file and its modification time. Rejects everything else: opening a pipe would block.
pub(super) fn read_regular_file(path: &Path, bound: u64) -> io::Result<(Vec<u8>, SystemTime)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    if found.len() > bound {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("larger than {bound} bytes")));
    }
    let mut bytes = Vec::new();
    file.take(bound).read_to_end(&mut bytes)?;
    Ok((bytes, found.modified()?))
}
