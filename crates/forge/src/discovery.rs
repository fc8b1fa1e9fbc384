//! Finds the repository of a path without running git: the owner must be known first.

use crate::error::Error;
use crate::git_command::{Owner, RepositoryDirs};
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct DiscoveredRepository {
    pub dirs: RepositoryDirs,
    pub owner: Owner,
    /// `.git` is a directory, so its configuration may still say that it is bare.
    pub may_be_bare: bool,
}

/// Searches the path and its parents, like git.
pub(crate) fn discover_repository(path: &Path) -> Result<DiscoveredRepository, Error> {
    let refused = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => Error::PathNotFound { path: path.to_owned() },
        ErrorKind::NotADirectory => Error::NotADirectory { path: path.to_owned() },
        _ => permission_error(path, &error),
    };
    let start = fs::canonicalize(path).map_err(refused)?;
    if !fs::metadata(&start).map_err(refused)?.is_dir() {
        return Err(Error::NotADirectory { path: path.to_owned() });
    }
    for directory in start.ancestors() {
        if let Some(found) = inspect_directory(directory).map_err(|error| permission_error(directory, &error))? {
            return check_owner(found);
        }
    }
    Err(Error::NotARepository { path: path.to_owned(), detail: String::new() })
}

fn check_owner(found: DiscoveredRepository) -> Result<DiscoveredRepository, Error> {
    if found.owner.is_current_user() || rustix::process::geteuid().is_root() {
        Ok(found)
    } else {
        Err(Error::WrongOwner { path: found.dirs.git_dir, owner: found.owner.uid })
    }
}

fn permission_error(path: &Path, error: &io::Error) -> Error {
    let uid = rustix::process::geteuid().as_raw();
    Error::NotAllowed { path: path.to_owned(), uid, detail: error.to_string() }
}

/// Checks whether a directory is the top of a worktree or a repository.
fn inspect_directory(directory: &Path) -> io::Result<Option<DiscoveredRepository>> {
    let inner = directory.join(".git");
    if let Some(entry) = none_if_missing(fs::symlink_metadata(&inner))? {
        let is_file = fs::metadata(&inner).is_ok_and(|target| target.is_file());
        if is_file || is_git_dir(&inner)? {
            // The owner of a symbolic link chose its target, so git runs as that user.
            return Ok(Some(describe_repository(inner, Some(directory.to_owned()), &entry, !is_file)));
        }
    }
    if !is_git_dir(directory)? {
        return Ok(None);
    }
    let entry = fs::symlink_metadata(directory)?;
    let around = directory.parent().filter(|_| directory.file_name().is_some_and(|name| name == ".git"));
    Ok(Some(describe_repository(directory.to_owned(), around.map(Path::to_owned), &entry, true)))
}

fn describe_repository(
    git_dir: PathBuf,
    work_tree: Option<PathBuf>,
    entry: &Metadata,
    may_be_bare: bool,
) -> DiscoveredRepository {
    DiscoveredRepository {
        dirs: RepositoryDirs { git_dir, work_tree },
        owner: Owner { uid: entry.uid(), gid: entry.gid() },
        may_be_bare,
    }
}

/// Git's rule: a HEAD, and either objects and refs or a commondir file.
fn is_git_dir(path: &Path) -> io::Result<bool> {
    let has = |name: &str| none_if_missing(fs::symlink_metadata(path.join(name))).map(|entry| entry.is_some());
    Ok(has("HEAD")? && (has("commondir")? || has("objects")? && has("refs")?))
}

fn none_if_missing(entry: io::Result<Metadata>) -> io::Result<Option<Metadata>> {
    match entry {
        Ok(entry) => Ok(Some(entry)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}
