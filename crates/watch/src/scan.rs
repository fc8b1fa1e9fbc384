//! Scans a directory for files that differ from their records: after a directory appears, moves or vanishes, after rules
//! change, after lost notices, and always without inotify.

use crate::Watcher;
use crate::entry::{self, EntryState, FileEntry};
use crate::file_records::{FileRecord, FileRecords};
use crate::ignore_rules::{IgnoreRules, Visibility};
use crate::inotify::{Inotify, WatchLimitReached};
use crate::pending::PendingPaths;
use crate::relative_path::{self, PathsUnder, RelativePath};
use crate::walk::{self, VisibleTree, Visitor};
use std::path::Path;
use std::time::Instant;

impl Watcher {
    /// Marks every new, missing or changed file below the directory as pending, and watches exactly the visible
    /// directories.
    pub(super) fn rescan(&mut self, directory: &[u8], now: Instant) {
        self.walk_number = self.walk_number.wrapping_add(1);
        let before = self.rules.clone();
        self.rules.forget_caches(directory);
        if directory.is_empty() {
            self.rules.load_exclude(&self.root);
        }
        let mut scan = ScanVisitor {
            root: &self.root,
            known: &mut self.files,
            has_linked: &mut self.has_hard_links,
            pending: &mut self.pending,
            notify: self.notify.as_mut(),
            exhausted: false,
            old_rules: &before,
            began: self.started_at,
            pass: self.walk_number,
            now,
        };
        if is_directory(&self.root, directory) && walk::is_visible(&self.rules, &self.tracked, directory, true) {
            VisibleTree { root: &self.root, rules: &mut self.rules, tracked: &self.tracked }
                .walk_from(directory, &mut scan);
        } else {
            self.rules.forget_directory(directory);
        }
        if scan.exhausted {
            self.notify = None;
        }
        if let Some(notify) = &mut self.notify {
            notify.remove_unvisited(directory, self.walk_number);
        }
        for (path, known) in self.files.range::<[u8], _>(PathsUnder::new(directory).key_range()) {
            if known.walk_number != self.walk_number {
                self.pending.touch(path.clone(), now);
            }
        }
        // A directory replaced a file, or the reverse.
        if self.files.contains_key(directory) {
            self.pending.touch(directory.into(), now);
        }
    }
}

/// True for a directory that is reachable without following links.
fn is_directory(root: &Path, directory: &[u8]) -> bool {
    let is_real = |path| matches!(entry::stat_path(root, path), EntryState::Directory);
    directory.is_empty() || (relative_path::ancestors(directory).all(is_real) && is_real(directory))
}

struct ScanVisitor<'a> {
    root: &'a Path,
    known: &'a mut FileRecords,
    has_linked: &'a mut bool,
    pending: &'a mut PendingPaths,
    notify: Option<&'a mut Inotify>,
    exhausted: bool,
    old_rules: &'a IgnoreRules,
    began: i64,
    pass: u32,
    now: Instant,
}

impl Visitor for ScanVisitor<'_> {
    fn enter_directory(&mut self, directory: &[u8]) {
        if let Some(notify) = &mut self.notify {
            match notify.add_watch(self.root, directory, self.pass) {
                Ok(()) => {}
                Err(WatchLimitReached) => {
                    self.notify = None;
                    self.exhausted = true;
                }
            }
        }
    }

    fn leave_directory(&mut self, directory: &[u8]) {
        if let Some(notify) = &mut self.notify {
            notify.remove_watch(directory);
        }
    }

    fn visit_file(&mut self, path: RelativePath, file_entry: FileEntry) {
        match self.known.get_mut(&path) {
            Some(known) => {
                known.walk_number = self.pass;
                if !known.is_unchanged(&file_entry) {
                    self.pending.touch(path, self.now);
                }
            }
            // The file is old and only the rules hid it: it has not changed.
            None if file_entry.stamp.changed < self.began
                && self.old_rules.visibility(&path, false) != Visibility::Visible =>
            {
                *self.has_linked |= file_entry.has_hard_links;
                self.known.insert(path, FileRecord::unread(file_entry, self.pass));
            }
            None => self.pending.touch(path, self.now),
        }
    }
}
