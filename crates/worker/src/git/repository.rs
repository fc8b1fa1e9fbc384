//! The workspace's repository, as the agent left it.

use super::command::{Git, Place};
use super::error::Error;
use atoll_forge::plumbing::bundle::Format;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A lock that a living git holds goes away by itself within this.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Repository {
    pub git: Git,
    pub format: Format,
    /// Where HEAD and the index are.
    pub git_dir: PathBuf,
}

/// What the agent was in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Underway {
    Nothing,
    Merge,
    Rebase,
    CherryPick,
    Revert,
    Bisect,
}

impl Underway {
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
    pub fn open(place: &Place) -> Result<Self, Error> {
        let root = place.root.clone();
        let mut git = Git::find(place)?;
        if fs::symlink_metadata(root.join(".git")).is_err() {
            return Err(Error::NoRepository { root });
        }
        let found = git.read(["rev-parse", "--absolute-git-dir"])?;
        if !found.succeeded() {
            return Err(Error::BrokenRepository { root, detail: found.detail() });
        }
        let mut path = found.stdout;
        path.pop();
        let git_dir: PathBuf = OsString::from_vec(path).into();
        let named = git.read(["rev-parse", "--show-object-format"])?.checked()?.text();
        let detail = || format!("its objects are named by {named}");
        let format = Format::named(&named).ok_or_else(|| Error::BrokenRepository { root, detail: detail() })?;
        git.without_filters()?;
        Ok(Self { git, format, git_dir })
    }

    /// The commit that a revision stands for, if it is there.
    pub fn commit_of(&self, revision: &str) -> Result<Option<String>, Error> {
        let peeled = format!("{revision}^{{commit}}");
        let answer = self.git.read(["rev-parse", "--verify", "--quiet", "--end-of-options", &peeled])?;
        Ok(answer.succeeded().then(|| answer.text()).filter(|commit| self.format.names(commit)))
    }

    /// A base as the server names it: a whole commit id.
    pub fn base(&self, base: &str) -> Result<Option<String>, Error> {
        let is_id = [Format::Sha1, Format::Sha256].iter().any(|format| format.names(base));
        if !is_id {
            return Err(Error::Arguments { detail: "--base is not a commit".to_owned() });
        }
        if self.format.names(base) { self.commit_of(base) } else { Ok(None) }
    }

    pub fn underway(&self) -> Underway {
        let has = |name: &str| fs::symlink_metadata(self.git_dir.join(name)).is_ok();
        if has("rebase-merge") || has("rebase-apply") {
            Underway::Rebase
        } else if has("MERGE_HEAD") {
            Underway::Merge
        } else if has("CHERRY_PICK_HEAD") {
            Underway::CherryPick
        } else if has("REVERT_HEAD") {
            Underway::Revert
        } else if has("BISECT_START") {
            Underway::Bisect
        } else {
            Underway::Nothing
        }
    }

    /// Removes locks that a killed git left. One of a living git is waited for first.
    pub fn unlock(&self) {
        let locks = ["index.lock", "HEAD.lock"].map(|name| self.git_dir.join(name));
        let held = || locks.iter().any(|lock| fs::symlink_metadata(lock).is_ok());
        let step = Duration::from_millis(100);
        let mut waited = Duration::ZERO;
        while held() && waited < LOCK_PATIENCE {
            std::thread::sleep(step);
            waited += step;
        }
        locks.iter().for_each(|lock| drop(fs::remove_file(lock)));
    }
}

/// A regular file's bytes. Anything else that stands there — a pipe would block for ever — is refused.
pub(super) fn regular(path: &Path, bound: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() || found.len() > bound {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a file, or too large"));
    }
    let mut bytes = Vec::new();
    file.take(bound).read_to_end(&mut bytes)?;
    Ok(bytes)
}
