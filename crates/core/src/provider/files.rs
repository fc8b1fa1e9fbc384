//! File operations in a sandbox. A failure of the operation (no such file) is not a provider failure: calls return an
//! inner result.

use crate::string_enum;
use serde::{Deserialize, Serialize};

/// Maximum length of a path, in bytes.
pub const MAX_PATH_BYTES: usize = 4096;

string_enum! {
    "file kind"
    FileKind {
        File = "file",
        Directory = "directory",
        Link = "link",
        Fifo = "fifo",
        Socket = "socket",
        Device = "device",
    }
}

string_enum! {
    "file error code"
    FileErrorCode {
        NotFound = "not_found",
        IsDirectory = "is_directory",
        NotADirectory = "not_a_directory",
        Denied = "denied",
        Exists = "exists",
        NotEmpty = "not_empty",
        NoSpace = "no_space",
        TooLong = "too_long",
        /// A fifo, socket, device, or a link where links are not followed: not readable or writable here.
        UnsupportedKind = "unsupported_kind",
        /// The file was replaced during the operation.
        Changed = "changed",
        /// The path leads out of the workspace, and the request may read only there.
        OutsideWorkspace = "outside_workspace",
        /// The uploaded content is invalid: a truncated tar, a range of another length.
        BadContent = "bad_content",
        /// Any other file system error.
        Failed = "failed",
    }
}

/// Reason why a file operation failed, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{detail}")]
pub struct FileError {
    pub fault: FileErrorCode,
    pub detail: String,
}

impl FileError {
    pub fn new(fault: FileErrorCode, detail: impl Into<String>) -> Self {
        Self { fault, detail: detail.into() }
    }
}

/// Result of the operation itself; the provider has done its part either way.
pub type FileResult<T> = Result<T, FileError>;

/// One entry of a file system. Names and targets are sanitised for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    pub name: String,
    /// The name's bytes in hexadecimal, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    pub kind: FileKind,
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Nanoseconds since 1970.
    pub modified: i64,
    /// Target of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Distinguishes files that had the same name.
    #[serde(default)]
    pub inode: u64,
}

/// The part of a sandbox's file system that a request may read. Links count by their target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadScope {
    WholeSandbox,
    Workspace,
}

/// A file operation without a content transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOperation {
    /// Entries of a directory, sorted by name, from after `after`.
    List {
        path: String,
        after: Option<String>,
        limit: u32,
        scope: ReadScope,
    },
    /// Does not follow links.
    Stat {
        path: String,
        scope: ReadScope,
    },
    /// Creates missing parents, too.
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
pub enum FileOperationOutput {
    /// `next` is the start of the next page.
    Listed {
        entries: Vec<FileInfo>,
        next: Option<String>,
    },
    Info(FileInfo),
    Completed,
}

/// Options for writing a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Permission bits. Default: those of the existing file, or the usual ones.
    pub mode: Option<u32>,
    /// Fail if the parent directories are missing, instead of creating them.
    pub parents_exist: bool,
}

/// Result of an upload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UploadSummary {
    pub bytes: u64,
    /// Number of files, directories and links.
    pub entries: u64,
    /// Number of tar entries that were skipped, and the first of them.
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

/// A download: the entry, then its content.
pub struct Download {
    /// For a file: with its total size, also if only a range was requested.
    pub entry: FileInfo,
    pub data: super::ByteStream,
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download").field("entry", &self.entry).finish_non_exhaustive()
    }
}

/// The error of a path outside of the workspace.
pub fn outside_workspace_error(path: &str) -> FileError {
    let detail = format!("`{path}` is outside of the workspace: your role in this project can read only the workspace");
    FileError::new(FileErrorCode::OutsideWorkspace, detail)
}

/// Returns the error of an invalid path.
pub fn path_error(path: &str) -> Option<FileError> {
    if path.len() > MAX_PATH_BYTES {
        return Some(FileError::new(FileErrorCode::TooLong, format!("a path has at most {MAX_PATH_BYTES} bytes")));
    }
    let wrong = |detail: &str| Some(FileError::new(FileErrorCode::NotFound, detail));
    match path {
        "" => wrong("the path is empty; `.` is the workspace"),
        path if path.contains('\0') => wrong("a path cannot hold NUL characters"),
        _ => None,
    }
}
