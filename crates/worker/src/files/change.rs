//! What is told about one file.

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ChangeType {
    Created,
    Modified,
    Deleted,
    Renamed,
}

/// One file, as it differs from what was last told about it (or, the first time, from the beginning of the watch).
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Change {
    /// Relative to the watched root. Bytes that are not UTF-8 are written as `\xNN`.
    pub file_path: String,
    pub change_type: ChangeType,
    /// Where the file was before, when `change_type` is `renamed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_path: Option<String>,
    pub lines_added: u64,
    pub lines_removed: u64,
    /// The beginning of the diff.
    pub diff_preview: String,
    /// Absent when there is no text to compare: binary and huge files, and files whose old content nobody has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_diff: Option<String>,
    /// `full_diff` ends before the diff does.
    #[serde(default, skip_serializing_if = "is_false")]
    pub full_diff_truncated: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub binary: bool,
    /// Size and hash stand in where `full_diff` does not say what the file holds now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !value
}
