//! Sparse checkouts: the workspace has some directories, and git marks the other files of its index as skipped.

use super::command::Git;
use super::error::Error;
use super::index::{split_records, to_path};
use atoll_core::sparse_checkout::is_checked_out;
use std::fs;

const WHAT: &str = "choosing the directories of the checkout";

/// Configures a sparse checkout, before any file is written. Without directories, the checkout is complete.
pub(super) fn choose_directories(git: &Git, dirs: &[String]) -> Result<(), Error> {
    if dirs.is_empty() {
        return Ok(());
    }
    let lines: String = dirs.iter().map(|dir| format!("{dir}\n")).collect();
    let chosen = git.command(WHAT).args(["sparse-checkout", "set", "--cone", "--stdin"]).input(lines.as_bytes())?;
    chosen.run_quick()?.require_success()?;
    Ok(())
}

/// Marks the absent files outside of the directories as skipped in a new index, so that they do not count as deleted.
///
/// If the directories cannot be read, it marks all absent files: a result must not delete what it cannot know.
pub(super) fn skip_absent_files(git: &Git) -> Result<(), Error> {
    let listing = ["-c", "core.sparseCheckout=true", "-c", "core.quotePath=false", "sparse-checkout", "list"];
    let listed = git.query(listing)?;
    let dirs: Vec<String> =
        if listed.is_success() { listed.text().lines().map(str::to_owned).collect() } else { Vec::new() };
    let files = git.command(WHAT).args(["ls-files", "-z"]).run_slow()?.require_success()?.stdout;
    let is_outside = |name: &[u8]| dirs.is_empty() || !is_checked_out(&dirs, &String::from_utf8_lossy(name));
    let is_absent = |name: &[u8]| fs::symlink_metadata(git.workspace.root.join(to_path(name))).is_err();
    let skipped = split_records(&files).filter(|name| is_outside(name) && is_absent(name));
    let names: Vec<u8> = skipped.flat_map(|name| [name, b"\0"].concat()).collect();
    let marking = git.command(WHAT).args(["update-index", "--skip-worktree", "-z", "--stdin"]).input(&names)?;
    marking.run_slow()?.require_success()?;
    Ok(())
}
