//! Looking at files, moving and deleting them. A directory is there as long as a file is in it.

use super::tree::{ROOT, Tree, TreeError, within};
use atoll_core::provider::{FileDone, FileEntry, FileError, FileFault, FileJob, FileKind, Worked};
use std::collections::BTreeMap;

pub(super) fn fault(error: TreeError) -> FileError {
    let fault = match &error {
        TreeError::Full => FileFault::NoSpace,
        TreeError::Outside(_) => FileFault::Denied,
        TreeError::NoSuchFile(_) => FileFault::NotFound,
    };
    FileError::new(fault, error.to_string())
}

fn entry(name: &str, kind: FileKind, size: u64, mode: u32) -> FileEntry {
    FileEntry { name: name.to_owned(), name_hex: None, kind, size, mode, modified: 0, target: None, inode: 0 }
}

pub(super) fn file_entry(name: &str, size: u64) -> FileEntry {
    entry(name, FileKind::File, size, 0o644)
}

fn missing(path: &str) -> FileError {
    FileError::new(FileFault::NotFound, format!("there is no `{path}`"))
}

/// A place of the tree by its name: the root itself has none.
fn named(path: &str) -> Worked<String> {
    match path.trim_end_matches('/') {
        "." | ROOT => Ok(String::new()),
        path => within(path).map_err(fault),
    }
}

/// What stands directly in a directory.
fn children(tree: &Tree, directory: &str) -> BTreeMap<String, FileEntry> {
    let found = tree.below(directory).map(|(path, data)| match path.split_once('/') {
        Some((name, _)) => (name.to_owned(), entry(name, FileKind::Directory, 0, 0o755)),
        None => (path.to_owned(), file_entry(path, data.len() as u64)),
    });
    found.collect()
}

fn look(tree: &Tree, path: &str) -> Worked<FileEntry> {
    let name = named(path)?;
    let (directory, last) = name.rsplit_once('/').unwrap_or(("", &name));
    if name.is_empty() {
        return Ok(entry("workspace", FileKind::Directory, 0, 0o755));
    }
    children(tree, directory).remove(last).ok_or_else(|| missing(path))
}

/// The names of a file, or of all files in a directory.
fn names(tree: &Tree, name: &str) -> Vec<String> {
    match tree.read(name) {
        Ok(_) => vec![name.to_owned()],
        Err(_) => tree.below(name).map(|(path, _)| format!("{name}/{path}")).collect(),
    }
}

pub(super) fn run(tree: &mut Tree, job: &FileJob) -> Worked<FileDone> {
    match job {
        FileJob::List { path, after, limit } => {
            if look(tree, path)?.kind != FileKind::Directory {
                return Err(FileError::new(FileFault::NotADirectory, format!("`{path}` is no directory")));
            }
            let all = children(tree, &named(path)?);
            let after = |name: &String| after.as_ref().is_none_or(|after| name > after);
            let limit = usize::try_from(*limit).unwrap_or(usize::MAX).max(1);
            let mut entries: Vec<_> = all.into_iter().filter(|(name, _)| after(name)).map(|(_, entry)| entry).collect();
            let more = entries.len() > limit;
            entries.truncate(limit);
            let next = entries.last().filter(|_| more).map(|entry| entry.name.clone());
            Ok(FileDone::Listed { entries, next })
        }
        FileJob::Stat { path } => Ok(FileDone::Seen(look(tree, path)?)),
        FileJob::MakeDirectory { .. } => {
            Err(FileError::new(FileFault::UnsupportedKind, "a fake sandbox has no empty directories"))
        }
        FileJob::Move { from, to, replace } => {
            look(tree, from)?;
            if !replace && look(tree, to).is_ok() {
                return Err(FileError::new(FileFault::Exists, format!("there is something at `{to}` already")));
            }
            let (from, to) = (named(from)?, within(to).map_err(fault)?);
            for old in names(tree, &from) {
                let new = format!("{to}{}", old.strip_prefix(&from).unwrap_or_default());
                if let Some(data) = tree.remove(&old) {
                    tree.write(&new, data).map_err(fault)?;
                }
            }
            Ok(FileDone::Done)
        }
        FileJob::Delete { path, recursive } => {
            let found = look(tree, path)?;
            if found.kind == FileKind::Directory && !recursive {
                return Err(FileError::new(FileFault::NotEmpty, format!("the directory `{path}` is not empty")));
            }
            for name in names(tree, &within(path).map_err(fault)?) {
                tree.remove(&name);
            }
            Ok(FileDone::Done)
        }
    }
}
