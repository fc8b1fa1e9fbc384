//! Converts system errors into file errors.

use super::TransferError;
use atoll_core::provider::files::{FileError, FileErrorCode};
use rustix::io::Errno;
use std::io;

pub(super) fn of(path: &str, error: impl Into<io::Error>) -> FileError {
    let error = error.into();
    let known = Errno::from_io_error(&error);
    let (fault, detail) = match known {
        Some(Errno::NOENT) => (FileErrorCode::NotFound, format!("`{path}` does not exist")),
        Some(Errno::NOTDIR) => {
            (FileErrorCode::NotADirectory, format!("`{path}` or a part of its path is not a directory"))
        }
        Some(Errno::ISDIR) => (FileErrorCode::IsDirectory, format!("`{path}` is a directory")),
        Some(Errno::ACCESS | Errno::PERM) => {
            (FileErrorCode::Denied, format!("permission denied for the agent's user: `{path}`"))
        }
        Some(Errno::ROFS) => (FileErrorCode::Denied, format!("`{path}` is on a read-only file system")),
        Some(Errno::BUSY) => (FileErrorCode::Denied, format!("`{path}` is in use by the sandbox")),
        Some(Errno::EXIST) => (FileErrorCode::Exists, format!("`{path}` already exists")),
        Some(Errno::NOTEMPTY) => (FileErrorCode::NotEmpty, format!("the directory `{path}` is not empty")),
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
            (FileErrorCode::NoSpace, format!("not enough disk space in the sandbox for `{path}`"))
        }
        Some(Errno::NAMETOOLONG) => (FileErrorCode::TooLong, "the path or a name in it is too long".to_owned()),
        Some(Errno::LOOP) => {
            (FileErrorCode::UnsupportedKind, format!("`{path}` is a symbolic link or leads through a loop of links"))
        }
        Some(Errno::NXIO | Errno::NODEV) => (FileErrorCode::UnsupportedKind, format!("`{path}` is not a file")),
        Some(Errno::XDEV) => {
            let detail = format!("`{path}` is on another file system: copy it and delete the original");
            (FileErrorCode::UnsupportedKind, detail)
        }
        _ => (FileErrorCode::Failed, format!("`{path}`: {error}")),
    };
    FileError::new(fault, detail)
}

/// Converts an error of packing or unpacking a tree.
pub(super) fn of_tree(error: atoll_trees::Error) -> TransferError {
    use atoll_trees::Error as E;
    match error {
        E::File { path, source } => of(&path, source).into(),
        E::Malformed(_) | E::Unsupported(_) => FileError::new(FileErrorCode::BadContent, error.to_string()).into(),
        E::Stream(_) => TransferError::Lost,
    }
}

/// The error for an entry that is neither a file nor a directory.
pub(super) fn unsupported(path: &str, what: &str) -> FileError {
    FileError::new(FileErrorCode::UnsupportedKind, format!("`{path}` is {what}, which has no content to transfer"))
}
