//! Replaces the checkout in the files of a set-up layer, and keeps what set-up left.
//!
//! The layer's repository is hostile: only its index is read, by the new repository's git. Paths are resolved without
//! following symbolic links.

use super::command::Git;
use super::error::Error;
use super::index::{copy_index, split_records};
use super::repository::read_regular_file;
use atoll_forge::plumbing::bundle::ObjectFormat;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tempfile::TempDir;

const WHAT: &str = "replacing the checkout of the set-up layer";
const MAX_INDEX_BYTES: u64 = 1 << 30;
const SHA256_BYTES: usize = 32;

/// The index of a layer's repository, which is removed.
pub(super) struct OldIndex {
    directory: TempDir,
    format: ObjectFormat,
}

/// Takes the index of the layer's repository and removes the repository.
pub(super) fn take_index(git: &Git) -> Result<OldIndex, Error> {
    let failed = |source| Error::Io { what: WHAT, source };
    let root = &git.workspace.root;
    let repository = root.join(".git");
    if !fs::symlink_metadata(&repository).is_ok_and(|found| found.is_dir()) {
        return Err(Error::NoRepository { root: root.clone() });
    }
    let directory = tempfile::tempdir_in(&git.workspace.temporary).map_err(failed)?;
    let copy = directory.path().join("index");
    copy_index(&repository.join("index"), &copy).map_err(failed)?;
    let format = index_format(&read_regular_file(&copy, MAX_INDEX_BYTES).map_err(failed)?.0);
    fs::remove_dir_all(&repository).map_err(failed)?;
    Ok(OldIndex { directory, format })
}

/// The format of the object ids in an index, by its checksum.
fn index_format(bytes: &[u8]) -> ObjectFormat {
    let is_sha256 = bytes.len().checked_sub(SHA256_BYTES).is_some_and(|length| {
        let (content, checksum) = bytes.split_at(length);
        Sha256::digest(content)[..] == *checksum
    });
    if is_sha256 { ObjectFormat::Sha256 } else { ObjectFormat::Sha1 }
}

impl OldIndex {
    /// Removes the files of the old checkout. Runs in the new repository, whose configuration is not the layer's.
    pub fn remove_files(self, git: &Git, format: ObjectFormat) -> Result<(), Error> {
        if format != self.format {
            let detail = "its object format differs".to_owned();
            return Err(Error::BrokenRepository { root: git.workspace.root.clone(), detail });
        }
        let listing = git.command(WHAT).env("GIT_INDEX_FILE", self.directory.path().join("index"));
        let listed = listing.args(["ls-files", "--cached", "-z"]).run_slow()?.require_success()?;
        remove_listed(&git.workspace.root, &listed.stdout).map_err(|source| Error::Io { what: WHAT, source })
    }
}

/// Removes the listed files and the directories that are empty without them.
///
/// A directory that git then creates again is no directory of a lower layer, so it can be renamed.
fn remove_listed(root: &Path, listed: &[u8]) -> io::Result<()> {
    let root = open_dir(CWD, root.as_os_str().as_bytes())?;
    let mut parents: BTreeSet<&[u8]> = BTreeSet::new();
    let mut last: Option<(&[u8], OwnedFd)> = None;
    for name in split_records(listed).filter(|name| is_plain(name)) {
        let (parent, file) = split_parent(name);
        if last.as_ref().is_none_or(|(path, _)| *path != parent) {
            last = open_below(&root, parent)?.map(|directory| (parent, directory));
        }
        let Some((_, directory)) = &last else { continue };
        match rustix::fs::unlinkat(directory, OsStr::from_bytes(file), AtFlags::empty()) {
            // A submodule, or a directory that replaces the file.
            Ok(()) | Err(Errno::NOENT | Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        let mut above = parent;
        while !above.is_empty() && parents.insert(above) {
            above = split_parent(above).0;
        }
    }
    // In reverse order, a directory comes after its contents.
    for path in parents.into_iter().rev() {
        let (parent, name) = split_parent(path);
        if let Some(directory) = open_below(&root, parent)? {
            // Others still hold files.
            let _ = rustix::fs::unlinkat(&directory, OsStr::from_bytes(name), AtFlags::REMOVEDIR);
        }
    }
    Ok(())
}

/// True if a name of an index stays below the workspace.
pub(super) fn is_plain(name: &[u8]) -> bool {
    name.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b".." | b".git"))
}

/// Splits a path into its parent, which is empty for the root, and its last component.
fn split_parent(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

/// Opens a directory below the root; `None` if a component is gone or no directory.
fn open_below(root: &OwnedFd, path: &[u8]) -> io::Result<Option<OwnedFd>> {
    let mut directory = root.try_clone()?;
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        directory = match open_dir(&directory, part) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
    }
    Ok(Some(directory))
}

fn open_dir(parent: impl AsFd, name: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, OsStr::from_bytes(name), flags, Mode::empty())
}
