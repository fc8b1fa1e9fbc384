//! A repository of the user's, read without changing anything in it.

use crate::branch::is_name;
use crate::discover::discover;
use crate::error::Error;
use crate::git::{Owner, Place, Run, program};
use crate::plumbing::bundle::Format;
use crate::plumbing::{Answer, filters};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How far git may go. The defaults are far beyond what a healthy repository needs.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// For a command that only looks something up.
    pub quick: Duration,
    /// For one that packs, unpacks, or compares all files.
    pub slow: Duration,
    /// A repository, packed.
    pub source_bytes: u64,
    /// What comes out of a sandbox, packed.
    pub result_bytes: u64,
    /// What comes out of a sandbox, unpacked.
    pub unpacked_bytes: u64,
    /// Files in the tree that comes out of a sandbox.
    pub files: u64,
    /// What git may allocate while it reads what comes out of a sandbox.
    pub memory: u64,
    /// A list of files or refs.
    pub listing_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            quick: Duration::from_secs(60),
            slow: Duration::from_secs(30 * 60),
            source_bytes: 32 << 30,
            result_bytes: 2 << 30,
            unpacked_bytes: 8 << 30,
            files: 4_000_000,
            memory: 4 << 30,
            listing_bytes: 64 << 20,
        }
    }
}

/// Where the user is in a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub commit: String,
    /// None when a commit is checked out and no branch.
    pub branch: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Repository {
    pub(crate) path: PathBuf,
    pub(crate) place: Place,
    pub(crate) owner: Owner,
    pub(crate) format: Format,
    /// Where objects and refs are; shared by all worktrees.
    pub(crate) common: PathBuf,
    pub(crate) bounds: Bounds,
}

impl Repository {
    /// Finds the repository that a path is in: a worktree or a directory in it, a linked worktree, or a bare one.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_within(path, Bounds::default())
    }

    pub fn open_within(path: &Path, bounds: Bounds) -> Result<Self, Error> {
        program()?;
        let found = discover(path)?;
        let (path, format) = (path.to_owned(), Format::Sha1);
        let common = found.place.git_dir.clone();
        let mut repository = Self { path, place: found.place, owner: found.owner, format, common, bounds };
        if found.may_be_bare {
            let bare = repository.read(["config", "--type=bool", "--default=false", "--get", "core.bare"])?;
            if bare.succeeded() && bare.text() == "true" {
                repository.place.work_tree = None;
            }
        }
        repository.common = repository.common_dir()?;
        let named = repository.read(["rev-parse", "--show-object-format"])?.checked()?.text();
        let detail = || format!("its objects are named by {named}");
        repository.format = Format::named(&named)
            .ok_or_else(|| Error::NotARepository { path: repository.path.clone(), detail: detail() })?;
        repository.has_commits()?;
        Ok(repository)
    }

    /// The directory that the user works in; none of a bare repository.
    pub fn work_tree(&self) -> Option<&Path> {
        self.place.work_tree.as_deref()
    }

    /// The directory of the repository itself, the same for all its worktrees.
    pub fn git_dir(&self) -> &Path {
        &self.common
    }

    pub fn head(&self) -> Result<Head, Error> {
        let branch = self.read(["symbolic-ref", "--quiet", "HEAD"])?;
        let branch = branch.succeeded().then(|| branch.text());
        let branch = branch.map(|name| name.strip_prefix("refs/heads/").map_or(name.clone(), str::to_owned));
        match self.commit_of("HEAD")? {
            Some(commit) => Ok(Head { commit, branch }),
            None => {
                Err(Error::HeadUnborn { path: self.path.clone(), branch: branch.unwrap_or_else(|| "HEAD".to_owned()) })
            }
        }
    }

    /// The commit that a branch, a tag or (the beginning of) a commit's name stands for; a branch wins over a tag.
    pub fn resolve(&self, base: &str) -> Result<String, Error> {
        if base == "HEAD" {
            return self.head().map(|head| head.commit);
        }
        if !is_name(base) {
            return Err(Error::BaseRefused { base: base.chars().take(100).collect() });
        }
        for prefix in ["refs/heads/", "refs/tags/", "refs/remotes/"] {
            if let Some(commit) = self.commit_of(&format!("{prefix}{base}"))? {
                return Ok(commit);
            }
        }
        let is_id = base.len() >= 4 && base.bytes().all(|byte| byte.is_ascii_hexdigit());
        let exact = if is_id || base.starts_with("refs/") { self.commit_of(base)? } else { None };
        exact.ok_or_else(|| Error::BaseMissing { path: self.path.clone(), base: base.to_owned() })
    }

    /// How many files have changes that are not in HEAD: untracked ones count, ignored ones do not.
    pub fn uncommitted(&self) -> Result<u64, Error> {
        if self.place.work_tree.is_none() {
            return Ok(0);
        }
        let mut status = self.run("looking for uncommitted changes", self.bounds.slow)?.args([
            "status",
            "--porcelain=v1",
            "-z",
            "--untracked-files=all",
            "--no-renames",
            // Asking a submodule for its changes would be git in another repository, with its configuration.
            "--ignore-submodules=dirty",
        ]);
        for (name, value) in filters::off(&self.read(filters::LIST)?.stdout) {
            status = status.env(name, value);
        }
        let (count, answer) = status.count(u64::MAX)?;
        answer.checked()?;
        Ok(count)
    }

    /// The commits whose parents are not here, in a shallow repository.
    pub(crate) fn shallow(&self) -> Result<Vec<String>, Error> {
        let failed = |source| Error::Io { what: "reading where the shallow repository ends", source };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(self.common.join("shallow"), flags, Mode::empty()) {
            Ok(descriptor) => File::from(descriptor),
            Err(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error.into())),
        };
        let is_file = file.metadata().map_err(failed)?.is_file();
        let bytes = if is_file { bounded(file, self.bounds.listing_bytes).map_err(failed)? } else { None };
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| "-".to_owned());
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.iter().all(|line| self.format.names(line)) {
            Ok(lines)
        } else {
            Err(failed(io::Error::new(io::ErrorKind::InvalidData, "the file `shallow` is damaged")))
        }
    }

    /// The commit that an exact revision stands for.
    pub(crate) fn commit_of(&self, revision: &str) -> Result<Option<String>, Error> {
        let peeled = format!("{revision}^{{commit}}");
        let answer = self.read(["rev-parse", "--verify", "--quiet", "--end-of-options", &peeled])?;
        Ok(answer.succeeded().then(|| answer.text()).filter(|commit| self.format.names(commit)))
    }

    fn common_dir(&self) -> Result<PathBuf, Error> {
        let answer = self.read(["rev-parse", "--path-format=absolute", "--git-common-dir"])?;
        if answer.succeeded() {
            let mut path = answer.stdout;
            path.pop();
            return Ok(OsString::from_vec(path).into());
        }
        let (path, detail) = (self.path.clone(), answer.detail());
        if detail.contains("Permission denied") {
            Err(Error::NotAllowed { path, uid: self.owner.uid, detail })
        } else {
            Err(Error::NotARepository { path, detail })
        }
    }

    fn has_commits(&self) -> Result<(), Error> {
        if self.commit_of("HEAD")?.is_some() {
            return Ok(());
        }
        let any = self.read(["for-each-ref", "--count=1", "--format=%(refname)"])?.checked()?;
        if any.stdout.is_empty() { Err(Error::NoCommits { path: self.path.clone() }) } else { Ok(()) }
    }

    pub(crate) fn run(&self, what: &'static str, time: Duration) -> Result<Run, Error> {
        Run::new(self.owner, Some(&self.place), what, time)
    }

    /// A command that only looks something up.
    pub(crate) fn read<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<Answer, Error> {
        let run = self.run("reading the repository", self.bounds.quick)?;
        run.args(arguments).capture(self.bounds.listing_bytes)
    }
}

/// Reads all of a small stream, at most `bound` bytes of it.
fn bounded(from: impl Read, bound: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    from.take(bound + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= bound).then_some(bytes))
}
