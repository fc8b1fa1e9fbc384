//! What the kernel says, as a fault with a sentence.

use super::Stop;
use atoll_core::provider::files::{FileError, FileFault};
use rustix::io::Errno;
use std::io;

pub(super) fn of(path: &str, error: impl Into<io::Error>) -> FileError {
    let error = error.into();
    let known = Errno::from_io_error(&error);
    let (fault, detail) = match known {
        Some(Errno::NOENT) => (FileFault::NotFound, format!("there is no `{path}`")),
        Some(Errno::NOTDIR) => (FileFault::NotADirectory, format!("`{path}`, or a part of its path, is no directory")),
        Some(Errno::ISDIR) => (FileFault::IsDirectory, format!("`{path}` is a directory")),
        Some(Errno::ACCESS | Errno::PERM) => (FileFault::Denied, format!("the agent's user may not do that: `{path}`")),
        Some(Errno::ROFS) => (FileFault::Denied, format!("`{path}` is on a file system that is read-only")),
        Some(Errno::BUSY) => (FileFault::Denied, format!("`{path}` is a place that the sandbox needs")),
        Some(Errno::EXIST) => (FileFault::Exists, format!("there is something at `{path}` already")),
        Some(Errno::NOTEMPTY) => (FileFault::NotEmpty, format!("the directory `{path}` is not empty")),
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
            (FileFault::NoSpace, format!("the sandbox has no room for `{path}`"))
        }
        Some(Errno::NAMETOOLONG) => (FileFault::TooLong, "the path, or a name in it, is too long".to_owned()),
        Some(Errno::LOOP) => {
            (FileFault::UnsupportedKind, format!("`{path}` is a symbolic link, or leads through a loop of them"))
        }
        Some(Errno::NXIO | Errno::NODEV) => (FileFault::UnsupportedKind, format!("`{path}` is no file")),
        Some(Errno::XDEV) => {
            let detail = format!("`{path}` is on another file system: copy it there and delete it here");
            (FileFault::UnsupportedKind, detail)
        }
        _ => (FileFault::Failed, format!("`{path}`: {error}")),
    };
    FileError::new(fault, detail)
}

/// A tree that could not be packed or unpacked.
pub(super) fn of_tree(error: atoll_trees::Error) -> Stop {
    use atoll_trees::Error as E;
    match error {
        E::File { path, source } => of(&path, source).into(),
        E::Malformed(_) | E::Unsupported(_) => FileError::new(FileFault::BadContent, error.to_string()).into(),
        E::Stream(_) => Stop::Lost,
    }
}

/// Something that is no file and no directory.
pub(super) fn unsupported(path: &str, what: &str) -> FileError {
    FileError::new(FileFault::UnsupportedKind, format!("`{path}` is {what}, which has no content to move"))
}
