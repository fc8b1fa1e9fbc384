//! The interface to git that both sides of a sync implement: each with its own user, settings and limits.

use crate::plumbing::{GitFailure, GitOutput};
use std::path::Path;

pub trait RunGit: Sync {
    type Error: From<GitFailure> + Send;

    /// Runs git over the files and the own index of one side. `what` describes the action in errors.
    fn run_git(&self, what: &'static str, arguments: &[&str], input: Option<&[u8]>) -> Result<GitOutput, Self::Error>;

    /// Runs git in a repository that is nested in the files.
    fn run_nested(&self, directory: &Path, what: &'static str, arguments: &[&str]) -> Result<GitOutput, Self::Error>;

    /// The paths of submodules, whose files do not belong to the worktree.
    fn list_submodules(&self) -> Result<Vec<Vec<u8>>, Self::Error>;
}

/// Splits NUL-terminated output.
pub fn split_records(listed: &[u8]) -> impl Iterator<Item = &[u8]> {
    listed.split(|byte| *byte == 0).filter(|record| !record.is_empty())
}
