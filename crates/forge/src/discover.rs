//! Which repository a path is in, found without running git: whose it is must be known first.

use crate::error::Error;
use crate::git::{Owner, Place};
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Found {
    pub place: Place,
    pub owner: Owner,
    /// Its `.git` is a directory, and so may still say that it is bare.
    pub may_be_bare: bool,
}

/// Looks at the path and upwards from it, as git does.
pub(crate) fn discover(path: &Path) -> Result<Found, Error> {
    let refused = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => Error::NotThere { path: path.to_owned() },
        ErrorKind::NotADirectory => Error::NotADirectory { path: path.to_owned() },
        _ => not_allowed(path, &error),
    };
    let start = fs::canonicalize(path).map_err(refused)?;
    if !fs::metadata(&start).map_err(refused)?.is_dir() {
        return Err(Error::NotADirectory { path: path.to_owned() });
    }
    for directory in start.ancestors() {
        if let Some(found) = look(directory).map_err(|error| not_allowed(directory, &error))? {
            return checked(found);
        }
    }
    Err(Error::NotARepository { path: path.to_owned(), detail: String::new() })
}

fn checked(found: Found) -> Result<Found, Error> {
    if found.owner.is_us() || rustix::process::geteuid().is_root() {
        Ok(found)
    } else {
        Err(Error::NotYours { path: found.place.git_dir, owner: found.owner.uid })
    }
}

fn not_allowed(path: &Path, error: &io::Error) -> Error {
    let uid = rustix::process::geteuid().as_raw();
    Error::NotAllowed { path: path.to_owned(), uid, detail: error.to_string() }
}

/// Whether this directory is the top of a worktree, or a repository itself.
fn look(directory: &Path) -> io::Result<Option<Found>> {
    let inner = directory.join(".git");
    if let Some(entry) = there(fs::symlink_metadata(&inner))? {
        let is_file = fs::metadata(&inner).is_ok_and(|target| target.is_file());
        if is_file || is_git_dir(&inner)? {
            // A link's owner is who chose its target, and so who git runs as.
            return Ok(Some(found(inner, Some(directory.to_owned()), &entry, !is_file)));
        }
    }
    if !is_git_dir(directory)? {
        return Ok(None);
    }
    let entry = fs::symlink_metadata(directory)?;
    let around = directory.parent().filter(|_| directory.file_name().is_some_and(|name| name == ".git"));
    Ok(Some(found(directory.to_owned(), around.map(Path::to_owned), &entry, true)))
}

fn found(git_dir: PathBuf, work_tree: Option<PathBuf>, entry: &Metadata, may_be_bare: bool) -> Found {
    Found { place: Place { git_dir, work_tree }, owner: Owner { uid: entry.uid(), gid: entry.gid() }, may_be_bare }
}

/// Git's own rule: a HEAD, and objects and refs, or a note where these are.
fn is_git_dir(path: &Path) -> io::Result<bool> {
    let has = |name: &str| there(fs::symlink_metadata(path.join(name))).map(|entry| entry.is_some());
    Ok(has("HEAD")? && (has("commondir")? || has("objects")? && has("refs")?))
}

fn there(entry: io::Result<Metadata>) -> io::Result<Option<Metadata>> {
    match entry {
        Ok(entry) => Ok(Some(entry)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}
