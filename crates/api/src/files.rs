//! Files of a sandbox.

use crate::is_false;
use atoll_core::provider::files::FileKind;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// One entry of a sandbox's file system.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxFile {
    /// Its name; bytes that are not UTF-8 are written as `\xNN`.
    pub name: String,
    /// The name's bytes in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_hex: Option<String>,
    pub kind: FileKind,
    pub size: u64,
    /// Permission bits, in octal.
    pub mode: String,
    pub modified_at: Timestamp,
    /// Target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct FilePathQuery {
    /// Absolute inside the sandbox, or relative to its workspace.
    pub path: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct FileListQuery {
    /// A directory; the workspace by default.
    pub path: Option<String>,
    /// Number of entries, 1 to 1000.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000))]
    pub limit: Option<i64>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct WriteFileQuery {
    /// Absolute inside the sandbox, or relative to its workspace.
    pub path: String,
    /// Permission bits in octal, such as `755`; by default those of the existing file, or 644.
    pub mode: Option<String>,
    /// Create missing parent directories.
    #[serde(default)]
    pub parents: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MoveFile {
    pub from: String,
    pub to: String,
    /// Replace the file at `to`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub replace: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewDirectory {
    pub path: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct DeleteFileQuery {
    /// Absolute inside the sandbox, or relative to its workspace.
    pub path: String,
    /// Delete a directory with its content.
    #[serde(default)]
    pub recursive: bool,
}

/// The response to the upload of a blob.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BlobReceipt {
    pub sha256: String,
    pub size: i64,
}
