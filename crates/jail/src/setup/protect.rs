//! Paths of the workspace that nothing inside may change: each is mounted over itself, read-only.
//!
//! A mount point can be neither renamed nor removed, but the directory that it is in can: whoever moves that away is free
//! to put another in its place. So every directory above a protected path is mounted over itself too, writable as it was.
//!
//! What is protected is named by whoever made the sandbox, but what lies there is the agent's: no link is followed.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

use crate::error::{AtStep, Failure, Step};
use crate::kernel::{self, NO_DEVICES, NO_SUID, READ_ONLY};

/// Protects what is there below `workspace`, which hangs where it shall stay; returns what is not there. One can't mount
/// over nothing, and to make it would change the workspace.
pub(crate) fn protect(workspace: &Path, protected: &[String]) -> Result<Vec<String>, Failure> {
    if protected.is_empty() {
        return Ok(Vec::new());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::openat(CWD, workspace, flags, Mode::empty()).at_with(Step::Protect, workspace.display())?;
    let missing = missing(top.as_fd(), protected)?;
    let there: BTreeSet<&str> = protected.iter().map(String::as_str).filter(|path| !has(&missing, path)).collect();
    // A directory comes before what is in it.
    for directory in above(&there) {
        cover(top.as_fd(), directory, 0)?;
    }
    for path in outermost(&there) {
        cover(top.as_fd(), path, READ_ONLY | NO_SUID | NO_DEVICES)?;
    }
    Ok(missing)
}

/// Which of these are not there. Fails where something is that can't be protected.
pub(crate) fn missing(workspace: BorrowedFd<'_>, protected: &[String]) -> Result<Vec<String>, Failure> {
    let mut missing = Vec::new();
    for path in protected {
        match find(workspace, path) {
            Ok(_) => {}
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => missing.push(path.clone()),
            Err(error) => return Err(error).at_with(Step::Protect, path),
        }
    }
    Ok(missing)
}

/// The directories above protected paths that are mounts of their own in a living sandbox, as far as they are there.
pub(crate) fn covered(workspace: &Path, protected: &[String]) -> Result<Vec<OwnedFd>, Failure> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::openat(CWD, workspace, flags, Mode::empty()).at_with(Step::Protect, workspace.display())?;
    let all = protected.iter().map(String::as_str).collect();
    Ok(above(&all).into_iter().filter_map(|directory| find(top.as_fd(), directory).ok()).collect())
}

fn has(paths: &[String], wanted: &str) -> bool {
    paths.iter().any(|path| path == wanted)
}

fn find(workspace: BorrowedFd<'_>, path: &str) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(workspace, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Hangs what is at a path over itself, with attributes besides those that it has.
fn cover(workspace: BorrowedFd<'_>, path: &str, attributes: u64) -> Result<(), Failure> {
    let covered = find(workspace, path).at_with(Step::Protect, path)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(&covered, c"", flags).at_with(Step::Protect, path)?;
    kernel::set_attributes_of_one(tree.as_fd(), attributes).at_with(Step::Protect, path)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(&tree, c"", &covered, c"", flags).at_with(Step::Protect, path)
}

/// Those that lie in no other.
fn outermost<'a>(paths: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let inside = |path: &str, other: &str| path.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'));
    paths.iter().filter(|path| !paths.iter().any(|other| inside(path, other))).copied().collect()
}

/// All directories on the way to the outermost of these.
fn above<'a>(paths: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    let ends = |path: &'a str| path.match_indices('/').map(move |(end, _)| path.get(..end).unwrap_or_default());
    outermost(paths).into_iter().flat_map(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_is_known_and_what_is_inside_another_is_left_out() {
        let paths = BTreeSet::from(["infra/prod", "infra/prod/keys", "infra-2", "a/b/c", "Cargo.lock"]);
        assert_eq!(outermost(&paths), ["Cargo.lock", "a/b/c", "infra-2", "infra/prod"]);
        assert_eq!(above(&paths), BTreeSet::from(["a", "a/b", "infra"]));
    }

    #[test]
    fn a_link_is_not_followed_and_what_is_missing_is_said() {
        let directory = std::env::temp_dir().join(format!("atoll-protect-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("a")).unwrap();
        std::fs::write(directory.join("a/file"), "").unwrap();
        std::os::unix::fs::symlink("/etc", directory.join("link")).unwrap();
        let top = std::fs::File::open(&directory).unwrap();
        let look = |path: &str| missing(top.as_fd(), &[path.to_owned()]);
        assert_eq!(look("a/file").unwrap(), Vec::<String>::new());
        assert_eq!(look("a/none").unwrap(), ["a/none"]);
        assert_eq!(look("a/file/x").unwrap(), ["a/file/x"]);
        for path in ["link", "link/passwd", "../x"] {
            assert!(look(path).is_err(), "{path}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
