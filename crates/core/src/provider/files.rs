//! Files in a sandbox, as the one who asks for them sees them. A fault of the work (no such file) is not a fault of
//! the provider: calls give an inner result.

use crate::words;
use serde::{Deserialize, Serialize};

/// The longest path that is taken, in bytes.
pub const LONGEST_PATH: usize = 4096;

words! {
    "kind of file"
    FileKind {
        File = "file",
        Directory = "directory",
        Link = "link",
        Fifo = "fifo",
        Socket = "socket",
        Device = "device",
    }
}

words! {
    "fault of files"
    FileFault {
        NotFound = "not_found",
        IsDirectory = "is_directory",
        NotADirectory = "not_a_directory",
        Denied = "denied",
        Exists = "exists",
        NotEmpty = "not_empty",
        NoSpace = "no_space",
        TooLong = "too_long",
        /// A fifo, a socket, a device, a link where none is followed: what can't be read or written here.
        UnsupportedKind = "unsupported_kind",
        /// It became another one while it was read or written.
        Changed = "changed",
        /// What was sent is not what it should be: half a tar, a range of another length.
        BadContent = "bad_content",
        /// None of the others: an error of the file system.
        Failed = "failed",
    }
}

/// Why something could not be done with files, in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{detail}")]
pub struct FileError {
    pub fault: FileFault,
    pub detail: String,
}

impl FileError {
    pub fn new(fault: FileFault, detail: impl Into<String>) -> Self {
        Self { fault, detail: detail.into() }
    }
}

/// What the work gave: the provider did its part either way.
pub type Worked<T> = Result<T, FileError>;

/// One entry of a file system. Names and targets are as people may see them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub name: String,
    /// The name's bytes in hexadecimal, where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    pub kind: FileKind,
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Nanoseconds since 1970.
    pub modified: i64,
    /// Of a link: what it points to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Tells one file from the next under the same name.
    #[serde(default)]
    pub inode: u64,
}

/// What is done with files without moving their content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileJob {
    /// Of a directory, sorted by name, those after `after`.
    List {
        path: String,
        after: Option<String>,
        limit: u32,
    },
    /// A link is not followed.
    Stat {
        path: String,
    },
    /// With those above it that are not there.
    MakeDirectory {
        path: String,
    },
    Move {
        from: String,
        to: String,
        replace: bool,
    },
    Delete {
        path: String,
        recursive: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileDone {
    /// `next` is where the rest begins.
    Listed {
        entries: Vec<FileEntry>,
        next: Option<String>,
    },
    Seen(FileEntry),
    Done,
}

/// How a file is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Permission bits; else those of the file that was there, or the usual ones.
    pub mode: Option<u32>,
    /// The directories above it must be there; else they are made.
    pub parents_exist: bool,
}

/// What came in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Uploaded {
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
    /// Entries of a tar that were not taken in: their number, and the first of them.
    pub skipped: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<SkippedEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SkippedEntry {
    pub path: String,
    pub why: String,
}

/// What goes out: what it is, and then its bytes.
pub struct Download {
    /// Of a file: with its whole size, also when a part of it was asked for.
    pub entry: FileEntry,
    pub data: super::ByteStream,
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download").field("entry", &self.entry).finish_non_exhaustive()
    }
}

/// Why a path can't be one.
pub fn bad_path(path: &str) -> Option<FileError> {
    if path.len() > LONGEST_PATH {
        return Some(FileError::new(FileFault::TooLong, format!("a path has at most {LONGEST_PATH} bytes")));
    }
    let wrong = |detail: &str| Some(FileError::new(FileFault::NotFound, detail));
    match path {
        "" => wrong("the path is empty; `.` is the workspace"),
        path if path.contains('\0') => wrong("a path can't hold NUL characters"),
        _ => None,
    }
}
