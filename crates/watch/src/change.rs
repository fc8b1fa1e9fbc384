//! The report of one changed file.

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ChangeType {
    Created,
    Modified,
    Deleted,
    Renamed,
}

/// The difference of one file from its last report or, the first time, from the start of the watcher.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Change {
    /// Path relative to the root. Bytes that are not UTF-8 appear as `\xNN`.
    pub file_path: String,
    pub change_type: ChangeType,
    /// The previous path, if `change_type` is `renamed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_path: Option<String>,
    pub lines_added: u64,
    pub lines_removed: u64,
    /// The start of the diff.
    pub diff_preview: String,
    /// Absent for binary and huge files, and if the old content is unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_diff: Option<String>,
    /// `full_diff` is truncated.
    #[serde(default, skip_serializing_if = "is_false")]
    pub full_diff_truncated: bool,
    /// Size of the whole diff, if `full_diff` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_diff_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub binary: bool,
    /// Size and hash of the file, if `full_diff` is absent or truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !value
}
