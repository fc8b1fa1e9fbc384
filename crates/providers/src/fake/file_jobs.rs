//! Lists, stats, moves and deletes files. A directory exists as long as a file is in it.

use super::tree::{ROOT, Tree, TreeError, relative_path};
use atoll_core::provider::{
    FileError, FileErrorCode, FileInfo, FileKind, FileOperation, FileOperationOutput, FileResult,
};
use std::collections::BTreeMap;

pub(super) fn file_error(error: TreeError) -> FileError {
    let fault = match &error {
        TreeError::Full => FileErrorCode::NoSpace,
        TreeError::Outside(_) => FileErrorCode::Denied,
        TreeError::NoSuchFile(_) => FileErrorCode::NotFound,
    };
    FileError::new(fault, error.to_string())
}

fn new_entry(name: &str, kind: FileKind, size: u64, mode: u32) -> FileInfo {
    FileInfo { name: name.to_owned(), name_hex: None, kind, size, mode, modified: 0, target: None, inode: 0 }
}

pub(super) fn file_entry(name: &str, size: u64) -> FileInfo {
    new_entry(name, FileKind::File, size, 0o644)
}

fn not_found(path: &str) -> FileError {
    FileError::new(FileErrorCode::NotFound, format!("there is no `{path}`"))
}

/// Normalizes a path; rejects the root.
fn entry_name(path: &str) -> FileResult<String> {
    match path.trim_end_matches('/') {
        "." | ROOT => Ok(String::new()),
        path => relative_path(path).map_err(file_error),
    }
}

/// The direct children of a directory.
fn list_children(tree: &Tree, directory: &str) -> BTreeMap<String, FileInfo> {
    let found = tree.files_below(directory).map(|(path, data)| match path.split_once('/') {
        Some((name, _)) => (name.to_owned(), new_entry(name, FileKind::Directory, 0, 0o755)),
        None => (path.to_owned(), file_entry(path, data.len() as u64)),
    });
    found.collect()
}

fn stat_entry(tree: &Tree, path: &str) -> FileResult<FileInfo> {
    let name = entry_name(path)?;
    let (directory, last) = name.rsplit_once('/').unwrap_or(("", &name));
    if name.is_empty() {
        return Ok(new_entry("workspace", FileKind::Directory, 0, 0o755));
    }
    list_children(tree, directory).remove(last).ok_or_else(|| not_found(path))
}

/// The names of a file, or of all files in a directory.
fn file_names(tree: &Tree, name: &str) -> Vec<String> {
    match tree.read(name) {
        Ok(_) => vec![name.to_owned()],
        Err(_) => tree.files_below(name).map(|(path, _)| format!("{name}/{path}")).collect(),
    }
}

pub(super) fn run_job(tree: &mut Tree, job: &FileOperation) -> FileResult<FileOperationOutput> {
    match job {
        FileOperation::List { path, after, limit, .. } => {
            if stat_entry(tree, path)?.kind != FileKind::Directory {
                return Err(FileError::new(FileErrorCode::NotADirectory, format!("`{path}` is no directory")));
            }
            let all = list_children(tree, &entry_name(path)?);
            let after = |name: &String| after.as_ref().is_none_or(|after| name > after);
            let limit = usize::try_from(*limit).unwrap_or(usize::MAX).max(1);
            let mut entries: Vec<_> = all.into_iter().filter(|(name, _)| after(name)).map(|(_, entry)| entry).collect();
            let more = entries.len() > limit;
            entries.truncate(limit);
            let next = entries.last().filter(|_| more).map(|entry| entry.name.clone());
            Ok(FileOperationOutput::Listed { entries, next })
        }
        FileOperation::Stat { path, .. } => Ok(FileOperationOutput::Info(stat_entry(tree, path)?)),
        FileOperation::MakeDirectory { .. } => {
            Err(FileError::new(FileErrorCode::UnsupportedKind, "a fake sandbox has no empty directories"))
        }
        FileOperation::Move { from, to, replace } => {
            stat_entry(tree, from)?;
            if !replace && stat_entry(tree, to).is_ok() {
                return Err(FileError::new(FileErrorCode::Exists, format!("there is something at `{to}` already")));
            }
            let (from, to) = (entry_name(from)?, relative_path(to).map_err(file_error)?);
            for old in file_names(tree, &from) {
                let new = format!("{to}{}", old.strip_prefix(&from).unwrap_or_default());
                if let Some(data) = tree.remove(&old) {
                    tree.write(&new, data).map_err(file_error)?;
                }
            }
            Ok(FileOperationOutput::Completed)
        }
        FileOperation::Delete { path, recursive } => {
            let found = stat_entry(tree, path)?;
            if found.kind == FileKind::Directory && !recursive {
                return Err(FileError::new(FileErrorCode::NotEmpty, format!("the directory `{path}` is not empty")));
            }
            for name in file_names(tree, &relative_path(path).map_err(file_error)?) {
                tree.remove(&name);
            }
            Ok(FileOperationOutput::Completed)
        }
    }
}
