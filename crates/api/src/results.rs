//! The work that a sandbox leaves: diffs and exported branches.

use crate::Sandbox;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct DiffQuery {
    /// Compare with this commit in place of the one that the work started at.
    pub base: Option<String>,
    /// Only this file or directory.
    pub path: Option<String>,
    /// Only the changes of this turn, from its `agent.file_edited` events. The line counts are sums over its edits.
    pub turn: Option<i64>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
    /// Files per page: 1 to 1000; 1000 by default.
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Diff {
    /// The commit that the work started at; absent without a repository.
    pub base: Option<String>,
    /// The changed files, sorted by path.
    pub files: Vec<DiffFile>,
    #[serde(default)]
    pub next_cursor: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiffFile {
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_path: Option<String>,
    /// `added`, `modified`, `deleted` or `renamed`.
    pub change: String,
    pub added: u64,
    pub removed: u64,
    #[serde(default)]
    pub binary: bool,
    /// The modes before and after, such as `100644` and `100755`, if the mode changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modes: Option<[String; 2]>,
    /// True for a submodule: its content is a commit of another repository.
    #[serde(default, skip_serializing_if = "crate::is_false")]
    pub submodule: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ExportedResults {
    /// The results that the server has exported so far.
    pub taken: Vec<ExportedResult>,
    pub sandbox: Sandbox,
}

/// One exported result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ExportedResult {
    Branch { branch: String, commit: String, repo: Option<String> },
}
