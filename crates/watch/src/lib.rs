//! The watcher: reports every file change in a workspace, with a unified diff.
//!
//! It is synchronous and has no threads: the caller polls a descriptor and a deadline. The path of a change:
//! `inotify` (a notice) or `scan` (a walk) → `pending` (until the file settles) → `compare` (the file system against
//! `file_records`) → `report` (`diff`, within limits) → `change`.
//! The old side of a diff comes from `text_store` (the last report) or from `baseline` (the start, mostly from git:
//! `tracked`). `walk` and `ignore_rules` define the visible part of the workspace. Only `entry` opens its files.
//!
//! Invariant: the watcher trusts only the path of a notice. Reports follow from the file system alone, so that lost,
//! late or repeated notices do no harm, and scanning without inotify works the same way. It misses only writes through a
//! hard link outside the visible tree, or through one that is removed before the next look.

mod baseline;
mod change;
mod compare;
mod diff;
mod entry;
mod file_records;
mod ignore_rules;
mod inotify;
mod pending;
mod relative_path;
mod report;
mod scan;
mod text_store;
mod tracked;
mod walk;

pub use change::{Change, ChangeType};

use baseline::Baseline;
use file_records::FileRecords;
use ignore_rules::{CACHEDIR_TAG, GITIGNORE, IgnoreRules};
use inotify::{Inotify, MAX_NOTICES_PER_READ, Notice};
use pending::PendingPaths;
use relative_path::RelativePath;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use text_store::TextStore;
use tracked::TrackedFiles;

pub struct Options {
    /// Truncate diffs at this size.
    pub max_diff_bytes: usize,
    /// Size of a diff's preview.
    pub max_preview_bytes: usize,
    /// Report larger files by size and hash.
    pub max_text_bytes: u64,
    /// Report a file after it is unchanged for this long.
    pub settle_time: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_diff_bytes: 2_000_000,
            max_preview_bytes: 2_000,
            max_text_bytes: 1_000_000,
            settle_time: Duration::from_millis(50),
        }
    }
}

pub struct Watcher {
    root: PathBuf,
    options: Options,
    /// `None` means scanning.
    notify: Option<Inotify>,
    rules: IgnoreRules,
    tracked: TrackedFiles,
    files: FileRecords,
    texts: TextStore,
    pending: PendingPaths,
    /// Lower bound of the stamps of files that were written after the start.
    started_at: i64,
    /// There are, or were, hard links.
    has_hard_links: bool,
    /// Number of the current walk; files with an older number were not visited.
    walk_number: u32,
}

impl Watcher {
    /// Starts watching: reports all changes from now on.
    pub fn new(root: &Path, options: Options) -> io::Result<Self> {
        Self::start_with(root, options, Inotify::new().ok())
    }

    /// Descriptor to poll for reading; then call `take_settled`. `None` without inotify: then only `take_all` finds
    /// changes. This can change at any time, so ask before each poll.
    pub fn inotify_fd(&self) -> Option<BorrowedFd<'_>> {
        self.notify.as_ref().map(Inotify::as_fd)
    }

    /// When to call `take_settled` even if the descriptor is not ready.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.pending.next_deadline()
    }

    /// Takes the changes of settled files.
    pub fn take_settled(&mut self) -> Vec<Change> {
        self.read_notices();
        let now = Instant::now();
        if self.pending.next_deadline().is_none_or(|due| due > now) {
            return Vec::new();
        }
        let settled = self.pending.take_settled(now);
        self.rescan_directories(directories_with_rules(settled.iter()), now);
        self.compare_paths(settled)
    }

    /// Takes all changes up to now, settled or not. Without inotify this scans the whole tree.
    pub fn take_all(&mut self) -> Vec<Change> {
        self.read_notices();
        let now = Instant::now();
        if self.notify.is_none() {
            self.rescan(b"", now);
        } else {
            self.rescan_directories(directories_with_rules(self.pending.touched_paths()), now);
            self.mark_hard_links(now);
        }
        let all = self.pending.take_all();
        self.compare_paths(all)
    }

    fn start_with(root: &Path, options: Options, notify: Option<Inotify>) -> io::Result<Self> {
        let root = root.canonicalize()?;
        if !root.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, root.display().to_string()));
        }
        let began = entry::unix_time_ns() - entry::MAX_CLOCK_STEP_NS;
        let mut memory = TextStore::new(text_store::DEFAULT_LIMITS);
        let Baseline { rules, tracked, known, notify } =
            baseline::take_baseline(&root, notify, &mut memory, options.max_text_bytes);
        let pending = PendingPaths::new(options.settle_time);
        let has_linked = known.values().any(|known| known.has_hard_links);
        Ok(Self {
            root,
            options,
            notify,
            rules,
            tracked,
            files: known,
            texts: memory,
            pending,
            started_at: began,
            has_hard_links: has_linked,
            walk_number: 0,
        })
    }

    fn read_notices(&mut self) {
        while let Some(notify) = &mut self.notify {
            let notices = notify.read_notices();
            let more = notices.len() >= MAX_NOTICES_PER_READ;
            let now = Instant::now();
            for notice in notices {
                self.handle_notice(notice, now);
            }
            if !more {
                return;
            }
        }
    }

    fn handle_notice(&mut self, notice: Notice, now: Instant) {
        match notice {
            Notice::Lost => self.rescan(b"", now),
            Notice::FileTouched(path) => self.mark_touched(path, now),
            // It matters only if the directory was unreadable before.
            Notice::Attributes { path, is_directory: true } => self.rescan_unwatched(&path, now),
            Notice::Attributes { path, is_directory: false } => {
                if !self.files.contains_key(&path) {
                    self.mark_touched(path, now);
                }
            }
            Notice::DirectoryAppeared(path) => self.rescan_unwatched(&path, now),
            Notice::DirectoryGone(path) => self.rescan(&path, now),
            Notice::MovedFrom { path, is_directory, cookie } => {
                self.pending.record_moved_from(cookie, path.clone());
                if is_directory { self.rescan(&path, now) } else { self.mark_touched(path, now) }
            }
            Notice::MovedTo { path, is_directory, cookie } => {
                self.pending.record_moved_to(cookie, &path);
                if is_directory { self.rescan(&path, now) } else { self.mark_touched(path, now) }
            }
        }
    }

    /// Scans a directory without a watch. A watched one was scanned after its watch began.
    fn rescan_unwatched(&mut self, directory: &[u8], now: Instant) {
        if !self.notify.as_ref().is_some_and(|notify| notify.is_watched(directory)) {
            self.rescan(directory, now);
        }
    }

    fn mark_touched(&mut self, path: RelativePath, now: Instant) {
        if self.files.contains_key(&path)
            || is_rule_file(&path)
            || walk::is_visible(&self.rules, &self.tracked, &path, false)
        {
            self.pending.touch(path, now);
        }
    }

    /// Marks hard links as touched: a write through another name may cause no notice.
    fn mark_hard_links(&mut self, now: Instant) {
        if self.has_hard_links {
            for (path, _) in self.files.iter().filter(|(_, known)| known.has_hard_links) {
                self.pending.touch(path.clone(), now);
            }
        }
    }

    /// Scans directories whose ignore rules may have changed.
    fn rescan_directories(&mut self, directories: BTreeSet<RelativePath>, now: Instant) {
        for directory in directories {
            self.rescan(&directory, now);
        }
    }
}

fn is_rule_file(path: &[u8]) -> bool {
    matches!(relative_path::file_name(path), GITIGNORE | CACHEDIR_TAG)
}

fn directories_with_rules<'a>(paths: impl Iterator<Item = &'a RelativePath>) -> BTreeSet<RelativePath> {
    paths.filter(|path| is_rule_file(path)).map(|path| relative_path::parent_path(path).into()).collect()
}

#[cfg(test)]
mod tests;
