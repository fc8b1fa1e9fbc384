//! Prepares files for a set-up layer: `cache-seal` removes what must not be shared, and `cache-downloads` removes all
//! but the package managers' downloads.

use super::command::{Git, GitWorkspace};
use super::error::Error;
use super::index::{split_records, to_path};
use super::large_file_filters::PointerUse;
use super::repository::{Repository, read_regular_file};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::{self, DirEntry, FileType, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

const SEALING: &str = "preparing the set-up layer";
const CLEARING: &str = "clearing the set-up layer";
/// Limits the time of the search for files that must not be shared.
const MAX_VISITED_ENTRIES: u64 = 4_000_000;
const MAX_PID_FILE_BYTES: u64 = 4096;

/// Removes sockets, pid files, Maven's records of failures and the caches of build tools in `node_modules`.
pub(super) fn remove_transient_files(workspace: &GitWorkspace) -> Result<Value, Error> {
    let tracked = list_tracked(workspace);
    let mut pending = vec![workspace.root.clone(), workspace.home.clone()];
    let (mut visited, mut removed) = (0, 0_u64);
    while let Some(directory) = pending.pop() {
        // Directories that cannot be read stay as they are.
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            visited += 1;
            if visited > MAX_VISITED_ENTRIES {
                let detail = format!("there are more than {MAX_VISITED_ENTRIES} files");
                return Err(Error::Git { what: SEALING, detail });
            }
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            if tracked.contains(&path) || path == workspace.root.join(".git") {
                continue;
            }
            if is_transient(&directory, &entry, kind) {
                remove_path(&path, kind).map_err(|source| Error::Io { what: SEALING, source })?;
                removed += 1;
            } else if kind.is_dir() {
                pending.push(path);
            }
        }
    }
    Ok(json!({ "removed": removed }))
}

/// The files of the checkout. Removing one would be a change of the result.
fn list_tracked(workspace: &GitWorkspace) -> BTreeSet<PathBuf> {
    let list = |git: &Git| git.command(SEALING).args(["ls-files", "--cached", "-z"]).run_slow();
    let listed = Repository::open(workspace, PointerUse::Compare).and_then(|repository| list(&repository.git));
    let stdout = listed.ok().filter(|listed| listed.is_success()).map(|listed| listed.stdout).unwrap_or_default();
    split_records(&stdout).map(|name| workspace.root.join(to_path(name))).collect()
}

fn is_transient(directory: &Path, entry: &DirEntry, kind: FileType) -> bool {
    let name = entry.file_name();
    let name = name.as_encoded_bytes();
    if kind.is_dir() {
        return matches!(name, b".vite" | b".cache")
            && directory.file_name().is_some_and(|above| above == "node_modules");
    }
    kind.is_socket()
        || kind.is_file() && (name.ends_with(b".lastUpdated") || name.ends_with(b".pid") && has_pid(&entry.path()))
}

/// True if a file begins with a line that is a process id.
fn has_pid(path: &Path) -> bool {
    let text = read_regular_file(path, MAX_PID_FILE_BYTES).map(|(text, _)| text).unwrap_or_default();
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    !line.is_empty() && line.iter().all(u8::is_ascii_digit)
}

/// Removes everything from workspace and home except the package managers' downloads.
pub(super) fn keep_downloads(workspace: &GitWorkspace) -> Result<Value, Error> {
    let cleared = remove_except(&workspace.root, None)
        .and_then(|()| remove_except(&workspace.home, Some(".cache")))
        .and_then(|()| remove_except(&workspace.home.join(".cache"), Some("packages")));
    cleared.map(|()| Value::Null).map_err(|source| Error::Io { what: CLEARING, source })
}

/// Removes the entries of a directory except one directory.
fn remove_except(directory: &Path, kept: Option<&str>) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if !(kind.is_dir() && kept.is_some_and(|kept| entry.file_name() == kept)) {
            remove_path(&entry.path(), kind)?;
        }
    }
    Ok(())
}

/// Removes a file or a tree. Some package managers write directories without write permission.
fn remove_path(path: &Path, kind: FileType) -> io::Result<()> {
    if !kind.is_dir() {
        return fs::remove_file(path);
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            make_writable(path)?;
            fs::remove_dir_all(path)
        }
        outcome => outcome,
    }
}

fn make_writable(root: &Path) -> io::Result<()> {
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        fs::set_permissions(&directory, Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    Ok(())
}
