//! Read-only access to a user's repository.

use crate::branch::is_valid_ref_name;
use crate::discovery::discover_repository;
use crate::error::Error;
use crate::git_command::{HostGitCommand, Owner, RepositoryDirs, require_git};
use crate::plumbing::bundle::ObjectFormat;
use crate::plumbing::{GitOutput, filters};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limits of git runs. The defaults far exceed the needs of a healthy repository.
#[derive(Debug, Clone)]
pub struct GitLimits {
    /// Time limit of lookups.
    pub lookup_timeout: Duration,
    /// Time limit of commands that pack, unpack or compare all files.
    pub bulk_timeout: Duration,
    /// Size of a packed repository.
    pub source_bytes: u64,
    /// Size of a packed result.
    pub result_bytes: u64,
    /// Size of an unpacked result.
    pub unpacked_bytes: u64,
    /// Number of files in a result's tree.
    pub max_files: u64,
    /// Memory limit of git while it reads a result.
    pub memory_bytes: u64,
    /// Size of a list of files or refs.
    pub listing_bytes: u64,
}

impl Default for GitLimits {
    fn default() -> Self {
        Self {
            lookup_timeout: Duration::from_secs(60),
            bulk_timeout: Duration::from_secs(30 * 60),
            source_bytes: 32 << 30,
            result_bytes: 2 << 30,
            unpacked_bytes: 8 << 30,
            max_files: 4_000_000,
            memory_bytes: 4 << 30,
            listing_bytes: 64 << 20,
        }
    }
}

/// The checked-out commit and branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub commit: String,
    /// `None` if HEAD is detached.
    pub branch: Option<String>,
}

#[derive(Debug, Clone)]
pub struct HostRepository {
    pub(crate) path: PathBuf,
    pub(crate) dirs: RepositoryDirs,
    pub(crate) owner: Owner,
    pub(crate) format: ObjectFormat,
    /// The directory of objects and refs, shared by all worktrees.
    pub(crate) common_dir: PathBuf,
    pub(crate) limits: GitLimits,
    /// True for a mirror, in which the remote's branches are names that a new branch cannot have.
    pub(crate) is_mirror: bool,
}

impl HostRepository {
    /// Opens a mirror of a remote repository.
    pub(crate) fn open_mirror(directory: &Path, limits: GitLimits) -> Result<Self, Error> {
        Ok(Self { is_mirror: true, ..Self::open_with_limits(directory, limits)? })
    }

    /// Opens the repository of a path: a worktree or a directory in it, a linked worktree, or a bare repository.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_with_limits(path, GitLimits::default())
    }

    pub fn open_with_limits(path: &Path, bounds: GitLimits) -> Result<Self, Error> {
        let repository = Self::open_any(path, bounds)?;
        repository.check_has_commits()?;
        Ok(repository)
    }

    /// Opens a repository that may have no commits yet.
    pub(crate) fn open_without_commits(path: &Path) -> Result<Self, Error> {
        Self::open_any(path, GitLimits::default())
    }

    fn open_any(path: &Path, bounds: GitLimits) -> Result<Self, Error> {
        require_git()?;
        let found = discover_repository(path)?;
        let (path, format) = (path.to_owned(), ObjectFormat::Sha1);
        let common = found.dirs.git_dir.clone();
        let mut repository = Self {
            path,
            dirs: found.dirs,
            owner: found.owner,
            format,
            common_dir: common,
            limits: bounds,
            is_mirror: false,
        };
        if found.may_be_bare {
            let bare = repository.run_lookup(["config", "--type=bool", "--default=false", "--get", "core.bare"])?;
            if bare.is_success() && bare.text() == "true" {
                repository.dirs.work_tree = None;
            }
        }
        repository.common_dir = repository.query_common_dir()?;
        let named = repository.run_lookup(["rev-parse", "--show-object-format"])?.require_success()?.text();
        let detail = || format!("its object format is {named}");
        repository.format = ObjectFormat::from_name(&named)
            .ok_or_else(|| Error::NotARepository { path: repository.path.clone(), detail: detail() })?;
        Ok(repository)
    }

    /// The worktree; `None` for a bare repository.
    pub fn work_tree(&self) -> Option<&Path> {
        self.dirs.work_tree.as_deref()
    }

    /// The repository's directory, shared by all its worktrees.
    pub fn git_dir(&self) -> &Path {
        &self.common_dir
    }

    pub fn head(&self) -> Result<Head, Error> {
        let branch = self.run_lookup(["symbolic-ref", "--quiet", "HEAD"])?;
        let branch = branch.is_success().then(|| branch.text());
        let branch = branch.map(|name| name.strip_prefix("refs/heads/").map_or(name.clone(), str::to_owned));
        match self.commit_of("HEAD")? {
            Some(commit) => Ok(Head { commit, branch }),
            None => {
                Err(Error::HeadUnborn { path: self.path.clone(), branch: branch.unwrap_or_else(|| "HEAD".to_owned()) })
            }
        }
    }

    /// Resolves a branch, a tag or an abbreviated commit id; a branch wins over a tag.
    pub fn resolve_base(&self, base: &str) -> Result<String, Error> {
        if base == "HEAD" {
            return self.head().map(|head| head.commit);
        }
        if !is_valid_ref_name(base) {
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

    /// Fails if a commit lacks one of these directories.
    pub fn check_directories(&self, commit: &str, dirs: &[String]) -> Result<(), Error> {
        for dir in dirs {
            // A commit is an id, so it is no option.
            let kind = self.run_lookup(["cat-file", "-t", &format!("{commit}:{dir}")])?;
            if kind.text() != "tree" {
                return Err(Error::DirectoryMissing { dir: dir.clone(), commit: commit.to_owned() });
            }
        }
        Ok(())
    }

    /// Counts files with changes that are not in HEAD, including untracked but not ignored ones.
    pub fn count_uncommitted_files(&self) -> Result<u64, Error> {
        if self.dirs.work_tree.is_none() {
            return Ok(0);
        }
        let mut status = self.git_command("looking for uncommitted changes", self.limits.bulk_timeout)?.args([
            "status",
            "--porcelain=v1",
            "-z",
            "--untracked-files=all",
            "--no-renames",
            // A submodule's status would run git in another repository, with its configuration.
            "--ignore-submodules=dirty",
        ]);
        for (name, value) in filters::disabling_env(&self.run_lookup(filters::LIST_ARGUMENTS)?.stdout) {
            status = status.env(name, value);
        }
        let (count, answer) = status.count_names(u64::MAX)?;
        answer.require_success()?;
        Ok(count)
    }

    /// The commits of a shallow repository whose parents are missing.
    pub(crate) fn shallow_commits(&self) -> Result<Vec<String>, Error> {
        let failed = |source| Error::Io { what: "reading the file `shallow`", source };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(self.common_dir.join("shallow"), flags, Mode::empty()) {
            Ok(descriptor) => File::from(descriptor),
            Err(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error.into())),
        };
        let is_file = file.metadata().map_err(failed)?.is_file();
        let bytes = if is_file { read_bounded(file, self.limits.listing_bytes).map_err(failed)? } else { None };
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| "-".to_owned());
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.iter().all(|line| self.format.is_object_id(line)) {
            Ok(lines)
        } else {
            Err(failed(io::Error::new(io::ErrorKind::InvalidData, "the file `shallow` is damaged")))
        }
    }

    /// Resolves an exact revision to a commit.
    pub(crate) fn commit_of(&self, revision: &str) -> Result<Option<String>, Error> {
        let peeled = format!("{revision}^{{commit}}");
        let answer = self.run_lookup(["rev-parse", "--verify", "--quiet", "--end-of-options", &peeled])?;
        Ok(answer.is_success().then(|| answer.text()).filter(|commit| self.format.is_object_id(commit)))
    }

    fn query_common_dir(&self) -> Result<PathBuf, Error> {
        let answer = self.run_lookup(["rev-parse", "--path-format=absolute", "--git-common-dir"])?;
        if answer.is_success() {
            let mut path = answer.stdout;
            path.pop();
            return Ok(OsString::from_vec(path).into());
        }
        let (path, detail) = (self.path.clone(), answer.failure_detail());
        if detail.contains("Permission denied") {
            Err(Error::NotAllowed { path, uid: self.owner.uid, detail })
        } else {
            Err(Error::NotARepository { path, detail })
        }
    }

    fn check_has_commits(&self) -> Result<(), Error> {
        if self.commit_of("HEAD")?.is_some() {
            return Ok(());
        }
        let any = self.run_lookup(["for-each-ref", "--count=1", "--format=%(refname)"])?.require_success()?;
        if any.stdout.is_empty() { Err(Error::NoCommits { path: self.path.clone() }) } else { Ok(()) }
    }

    pub(crate) fn git_command(&self, what: &'static str, time: Duration) -> Result<HostGitCommand, Error> {
        HostGitCommand::new(self.owner, Some(&self.dirs), what, time)
    }

    /// Runs a lookup command.
    pub(crate) fn run_lookup<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<GitOutput, Error> {
        let run = self.git_command("reading the repository", self.limits.lookup_timeout)?;
        run.args(arguments).capture_output(self.limits.listing_bytes)
    }
}

/// Reads a whole stream; `None` if it exceeds `bound` bytes.
fn read_bounded(from: impl Read, bound: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    from.take(bound + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= bound).then_some(bytes))
}
