//! Walks the visible part of the tree.

use crate::entry::{self, EntryState, FileEntry};
use crate::ignore_rules::{CACHEDIR_TAG, GITIGNORE, IgnoreRules, Visibility};
use crate::relative_path::{self, RelativePath};
use crate::tracked::TrackedFiles;
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir};
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

pub trait Visitor {
    /// Called before the directory is read, so that the visitor can watch it first.
    fn enter_directory(&mut self, directory: &[u8]);
    /// Called if an entered directory turns out to be invisible.
    fn leave_directory(&mut self, directory: &[u8]);
    fn visit_file(&mut self, path: RelativePath, file_entry: FileEntry);
}

/// The visible part of the tree.
pub struct VisibleTree<'a> {
    pub root: &'a Path,
    pub rules: &'a mut IgnoreRules,
    pub tracked: &'a TrackedFiles,
}

/// True if a path is visible, or a directory contains visible files.
pub fn is_visible(rules: &IgnoreRules, tracked: &TrackedFiles, path: &[u8], is_directory: bool) -> bool {
    match rules.visibility(path, is_directory) {
        Visibility::Visible => true,
        Visibility::Ignored => is_tracked_path(tracked, path, is_directory),
        Visibility::GitInternal => false,
    }
}

/// Rules do not hide tracked files, as in git.
fn is_tracked_path(tracked: &TrackedFiles, path: &[u8], is_directory: bool) -> bool {
    if is_directory { tracked.contains_under(path) } else { tracked.contains(path) }
}

impl VisibleTree<'_> {
    /// Visits a directory, which must be visible, and everything visible below it.
    pub fn walk_from(&mut self, from: &[u8], visitor: &mut impl Visitor) {
        let ignored = !from.is_empty() && self.rules.visibility(from, true) != Visibility::Visible;
        let mut waiting: Vec<(RelativePath, bool)> = vec![(from.into(), ignored)];
        while let Some((directory, ignored)) = waiting.pop() {
            self.visit_directory(&directory, ignored, visitor, &mut waiting);
        }
    }

    fn visit_directory(
        &mut self,
        directory: &[u8],
        mut ignored: bool,
        visitor: &mut impl Visitor,
        waiting: &mut Vec<(RelativePath, bool)>,
    ) {
        visitor.enter_directory(directory);
        let Some((open, names)) = list_directory(self.root, directory) else {
            self.rules.forget_directory(directory);
            visitor.leave_directory(directory);
            return;
        };
        let has = |searched: &[u8]| names.iter().any(|(name, _)| name.as_bytes() == searched);
        self.rules.load_directory(self.root, directory, has(GITIGNORE), has(CACHEDIR_TAG));
        if self.rules.is_cache(directory) {
            if !self.tracked.contains_under(directory) {
                visitor.leave_directory(directory);
                return;
            }
            ignored = true;
        }
        for (name, kind) in names {
            let path = relative_path::join_path(directory, name.as_bytes());
            if kind == FileType::Directory {
                if let Some(ignored) = self.entry_visibility(&path, true, ignored) {
                    waiting.push((path, ignored));
                }
            } else if self.entry_visibility(&path, false, ignored).is_some() {
                match entry::stat_entry(&open, &name) {
                    EntryState::File(file_entry) => visitor.visit_file(path, file_entry),
                    // Some file systems do not report the type of an entry.
                    EntryState::Directory => {
                        if let Some(ignored) = self.entry_visibility(&path, true, ignored) {
                            waiting.push((path, ignored));
                        }
                    }
                    EntryState::Absent => {}
                }
            }
        }
    }

    /// Visibility of an entry: `Some(true)` if it is visible only because git tracks it.
    fn entry_visibility(&self, path: &[u8], is_directory: bool, ignored: bool) -> Option<bool> {
        let verdict = match self.rules.visibility_in_visible_parent(path, is_directory) {
            Visibility::Visible if ignored => Visibility::Ignored,
            verdict => verdict,
        };
        match verdict {
            Visibility::Visible => Some(false),
            Visibility::Ignored => is_tracked_path(self.tracked, path, is_directory).then_some(true),
            Visibility::GitInternal => None,
        }
    }
}

/// Lists the files, links and directories of a directory.
fn list_directory(root: &Path, directory: &[u8]) -> Option<(OwnedFd, Vec<(CString, FileType)>)> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = rustix::fs::openat(CWD, relative_path::to_absolute(root, directory), how, Mode::empty()).ok()?;
    let mut buffer = [MaybeUninit::uninit(); 32 * 1024];
    let mut entries = RawDir::new(&open, &mut buffer);
    let mut names = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        let kind = entry.file_type();
        let matters =
            matches!(kind, FileType::Directory | FileType::RegularFile | FileType::Symlink | FileType::Unknown);
        if matters && !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push((entry.file_name().to_owned(), kind));
        }
    }
    Some((open, names))
}
