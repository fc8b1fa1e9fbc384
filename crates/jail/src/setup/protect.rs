//! Read-only workspace paths: each is bind-mounted over itself, read-only.
//!
//! A mount point cannot be renamed or removed, but its parent could be moved away and replaced. So every parent of a
//! protected path is bind-mounted over itself too, writable as before.
//!
//! The protected paths come from the sandbox's creator, but the agent controls the files: links are not followed.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

use crate::error::{AtStep, LaunchStep, StepFailure};
use crate::kernel::{self, NO_DEVICES, NO_SUID, READ_ONLY};

/// Protects the existing paths below the mounted `workspace`; returns the missing ones.
///
/// Missing ones cannot be mount points, and creating them would change the workspace.
pub(crate) fn protect_paths(workspace: &Path, protected: &[String]) -> Result<Vec<String>, StepFailure> {
    if protected.is_empty() {
        return Ok(Vec::new());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top =
        rustix::fs::openat(CWD, workspace, flags, Mode::empty()).at_with(LaunchStep::Protect, workspace.display())?;
    let missing = find_missing(top.as_fd(), protected)?;
    let there: BTreeSet<&str> =
        protected.iter().map(String::as_str).filter(|path| !contains_path(&missing, path)).collect();
    // Parents before children.
    for directory in parent_dirs(&there) {
        bind_over_itself(top.as_fd(), directory, 0)?;
    }
    for path in outermost_paths(&there) {
        bind_over_itself(top.as_fd(), path, READ_ONLY | NO_SUID | NO_DEVICES)?;
    }
    Ok(missing)
}

/// Lists the missing paths. Fails if a path cannot be protected.
pub(crate) fn find_missing(workspace: BorrowedFd<'_>, protected: &[String]) -> Result<Vec<String>, StepFailure> {
    let mut missing = Vec::new();
    for path in protected {
        match open_beneath(workspace, path) {
            Ok(_) => {}
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => missing.push(path.clone()),
            Err(error) => return Err(error).at_with(LaunchStep::Protect, path),
        }
    }
    Ok(missing)
}

/// Opens the existing parents of protected paths, which are mounts of their own.
pub(crate) fn open_covered_dirs(workspace: &Path, protected: &[String]) -> Result<Vec<OwnedFd>, StepFailure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top =
        rustix::fs::openat(CWD, workspace, flags, Mode::empty()).at_with(LaunchStep::Protect, workspace.display())?;
    let all = protected.iter().map(String::as_str).collect();
    Ok(parent_dirs(&all).into_iter().filter_map(|directory| open_beneath(top.as_fd(), directory).ok()).collect())
}

fn contains_path(paths: &[String], searched: &str) -> bool {
    paths.iter().any(|path| path == searched)
}

fn open_beneath(workspace: BorrowedFd<'_>, path: &str) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(workspace, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Bind-mounts a path over itself, with additional attributes.
fn bind_over_itself(workspace: BorrowedFd<'_>, path: &str, attributes: u64) -> Result<(), StepFailure> {
    let covered = open_beneath(workspace, path).at_with(LaunchStep::Protect, path)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(&covered, c"", flags).at_with(LaunchStep::Protect, path)?;
    kernel::set_one_mount_attributes(tree.as_fd(), attributes).at_with(LaunchStep::Protect, path)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(&tree, c"", &covered, c"", flags).at_with(LaunchStep::Protect, path)
}

/// The paths that are in no other path.
fn outermost_paths<'a>(paths: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let inside = |path: &str, other: &str| path.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'));
    paths.iter().filter(|path| !paths.iter().any(|other| inside(path, other))).copied().collect()
}

/// All parents of the outermost paths.
fn parent_dirs<'a>(paths: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    let ends = |path: &'a str| path.match_indices('/').map(move |(end, _)| path.get(..end).unwrap_or_default());
    outermost_paths(paths).into_iter().flat_map(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_parents_and_skips_nested_paths() {
        let paths = BTreeSet::from(["infra/prod", "infra/prod/keys", "infra-2", "a/b/c", "Cargo.lock"]);
        assert_eq!(outermost_paths(&paths), ["Cargo.lock", "a/b/c", "infra-2", "infra/prod"]);
        assert_eq!(parent_dirs(&paths), BTreeSet::from(["a", "a/b", "infra"]));
    }

    #[test]
    fn follows_no_links_and_reports_missing_paths() {
        let directory = std::env::temp_dir().join(format!("atoll-protect-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("a")).unwrap();
        std::fs::write(directory.join("a/file"), "").unwrap();
        std::os::unix::fs::symlink("/etc", directory.join("link")).unwrap();
        let top = std::fs::File::open(&directory).unwrap();
        let look = |path: &str| find_missing(top.as_fd(), &[path.to_owned()]);
        assert_eq!(look("a/file").unwrap(), Vec::<String>::new());
        assert_eq!(look("a/none").unwrap(), ["a/none"]);
        assert_eq!(look("a/file/x").unwrap(), ["a/file/x"]);
        for path in ["link", "link/passwd", "../x"] {
            assert!(look(path).is_err(), "{path}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
