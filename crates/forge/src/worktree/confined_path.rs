//! File operations below one directory. Every path component is opened from its parent and must be a directory, so that
//! no symbolic link is followed.

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[derive(Debug)]
pub(super) struct ConfinedDir {
    root: OwnedFd,
}

/// Identifies the content of a file as far as its file system shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileStamp {
    inode: u64,
    size: i64,
    modified: (i64, i64),
    pub mode: u32,
}

impl FileStamp {
    fn new(found: &Stat) -> Self {
        let modified = (found.st_mtime, i64::try_from(found.st_mtime_nsec).unwrap_or(0));
        Self { inode: found.st_ino, size: found.st_size, modified, mode: found.st_mode }
    }

    pub const fn is_directory(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }
}

impl ConfinedDir {
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::open(path, flags, Mode::empty())? })
    }

    /// Opens the parent of a path; creates missing directories and reports them if `made` is given.
    fn open_parent<'p>(&self, path: &'p [u8], mut made: Option<&mut Vec<Vec<u8>>>) -> io::Result<(OwnedFd, &'p OsStr)> {
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], path),
        };
        let mut directory = self.root.try_clone()?;
        let mut length = 0;
        for part in parent.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            length += part.len() + usize::from(length > 0);
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let part = OsStr::from_bytes(part);
            let opened = rustix::fs::openat(&directory, part, flags, Mode::empty());
            directory = match (opened, made.as_deref_mut()) {
                (Err(Errno::NOENT), Some(made)) => {
                    rustix::fs::mkdirat(&directory, part, Mode::from_raw_mode(0o777))?;
                    made.push(parent[..length].to_vec());
                    rustix::fs::openat(&directory, part, flags, Mode::empty())?
                }
                (opened, _) => opened?,
            };
        }
        Ok((directory, OsStr::from_bytes(name)))
    }

    /// The entry itself, without following a link; `None` if it does not exist.
    pub fn stamp(&self, path: &[u8]) -> io::Result<Option<FileStamp>> {
        let parent = match self.open_parent(path, None) {
            Err(error) if is_absent(&error) => return Ok(None),
            other => other?,
        };
        match rustix::fs::statat(&parent.0, parent.1, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(FileStamp::new(&found))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the missing parents of a path.
    pub fn make_parents(&self, path: &[u8], made: &mut Vec<Vec<u8>>) -> io::Result<()> {
        self.open_parent(path, Some(made)).map(drop)
    }

    pub fn make_directory(&self, path: &[u8]) -> io::Result<()> {
        let (parent, name) = self.open_parent(path, None)?;
        Ok(rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o777))?)
    }

    /// Removes a directory; false if it is not empty, gone or no directory.
    pub fn remove_directory(&self, path: &[u8]) -> io::Result<bool> {
        let Ok((parent, name)) = self.open_parent(path, None) else { return Ok(false) };
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::BUSY) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub fn exchange(&self, path: &[u8], other: &Self, other_path: &[u8]) -> io::Result<()> {
        self.rename(path, other, other_path, RenameFlags::EXCHANGE)
    }

    /// Moves an entry; fails if the target exists.
    pub fn move_to(&self, path: &[u8], other: &Self, other_path: &[u8]) -> io::Result<()> {
        self.rename(path, other, other_path, RenameFlags::NOREPLACE)
    }

    fn rename(&self, path: &[u8], other: &Self, other_path: &[u8], flags: RenameFlags) -> io::Result<()> {
        let (from, name) = self.open_parent(path, None)?;
        let (to, other_name) = other.open_parent(other_path, None)?;
        Ok(rustix::fs::renameat_with(from.as_fd(), name, to.as_fd(), other_name, flags)?)
    }

    /// Sets the permissions of a regular file.
    pub fn set_permissions(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let (parent, name) = self.open_parent(path, None)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(parent, name, flags, Mode::empty())?;
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}
