//! Confines reads to the workspace.

use super::fault;
use atoll_core::provider::files::{FileError, FileErrorCode, FileResult, ReadScope, outside_workspace_error};
use rustix::fs::CWD;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// The error of a request that has no meaning inside `InWorkspace`.
pub(super) fn unconfined_request() -> FileError {
    FileError::new(FileErrorCode::Failed, "only reads can be confined to the workspace")
}

/// Rejects a path that leads out of the workspace by its words alone, so that a reader does not learn what exists there.
pub(super) fn check_words(path: &str, scope: ReadScope) -> FileResult<()> {
    match scope {
        ReadScope::WholeSandbox => Ok(()),
        ReadScope::Workspace => {
            let workspace = std::env::current_dir().map_err(|error| fault::of(".", error))?;
            let is_outside = !is_inside(&workspace, &join_words(&workspace, path));
            if is_outside { Err(outside_workspace_error(path)) } else { Ok(()) }
        }
    }
}

/// Joins paths and removes `.` and `..`, without a look at the files.
fn join_words(workspace: &Path, path: &str) -> PathBuf {
    let mut joined = PathBuf::new();
    for part in workspace.join(path).components() {
        match part {
            Component::ParentDir => drop(joined.pop()),
            Component::CurDir => {}
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => joined.push(part),
        }
    }
    joined
}

/// Checks an open file. The check uses the path that the kernel resolved, so links and `..` cannot evade it.
pub(super) fn check_scope(path: &str, file: impl AsFd, scope: ReadScope) -> FileResult<()> {
    match scope {
        ReadScope::WholeSandbox => Ok(()),
        ReadScope::Workspace => {
            let workspace = std::env::current_dir().map_err(|error| fault::of(".", error))?;
            let resolved = resolve_path(file).map_err(|error| fault::of(path, error))?;
            if is_inside(&workspace, &resolved) { Ok(()) } else { Err(outside_workspace_error(path)) }
        }
    }
}

fn resolve_path(file: impl AsFd) -> rustix::io::Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let target = rustix::fs::readlinkat(CWD, link, Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// True for the workspace and what is below it. A workspace at the root confines nothing, so nothing is inside.
fn is_inside(workspace: &Path, path: &Path) -> bool {
    workspace != Path::new("/") && path.starts_with(workspace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_workspace_and_its_content_are_inside() {
        let inside = |workspace: &str, path: &str| is_inside(Path::new(workspace), Path::new(path));
        assert!(inside("/workspace", "/workspace") && inside("/workspace", "/workspace/a/b (deleted)"));
        for outside in
            ["/", "/workspace2", "/home/agent/.codex/auth.json", "(unreachable)/workspace/a", "/proc/1/environ"]
        {
            assert!(!inside("/workspace", outside), "{outside}");
        }
        assert!(!inside("/", "/etc/passwd"));
    }

    #[test]
    fn words_lead_out_of_the_workspace() {
        let joined = |path: &str| join_words(Path::new("/workspace"), path);
        for (path, result) in [
            ("a/../b/./c", "/workspace/b/c"),
            (".", "/workspace"),
            ("..", "/"),
            ("a/../../home", "/home"),
            ("/workspace/../etc", "/etc"),
            ("/../workspace/a", "/workspace/a"),
            ("/proc/self/environ", "/proc/self/environ"),
        ] {
            assert_eq!(joined(path), Path::new(result), "{path}");
        }
    }
}
