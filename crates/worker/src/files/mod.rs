//! Every change in a workspace, whoever made it, with a unified diff.
//!
//! Synchronous and without threads: the caller polls a descriptor and a time, and asks. The way of a change:
//! `notify` (the kernel says where something happened) or `scan` (looking finds it) → `pending` (until it is quiet) →
//! `settle` (what is there now against what is `known`) → `tell` (`diff`, and bounds) → `change`.
//! The old side of a diff comes from `memory` (what was last told) or from `baseline` (what was there when the watch
//! began, mostly out of `git`). `tree` and `ignored` say which part of the workspace is looked at; `look` is the only
//! place that opens files of it.
//!
//! What is deliberately absent: nothing is believed of a notice but its path. What is told follows from the disk alone,
//! so that lost, late or doubled notices do no harm, and scanning without notices goes the same way. The one thing that
//! no notice tells is a write through a second name (hard link) that was made where nobody looks, or was gone before
//! anybody looked.

mod baseline;
mod change;
mod diff;
mod git;
mod ignored;
mod known;
mod look;
mod memory;
mod notify;
mod path;
mod pending;
mod scan;
mod settle;
mod tell;
mod tree;

pub use change::{Change, ChangeType};

use baseline::Baseline;
use git::Tracked;
use ignored::{CACHE_MARK, RULES_FILE, Rules};
use known::Files;
use memory::Memory;
use notify::{MOST_NOTICES, Notice, Notify};
use path::Relative;
use pending::Pending;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub struct Options {
    /// Diffs are cut after so many bytes.
    pub longest_diff: usize,
    /// So many bytes of a diff are its preview.
    pub preview: usize,
    /// Files above this size are told by size and hash.
    pub largest_text: u64,
    /// A file is told when nothing happened to it for so long.
    pub settle: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { longest_diff: 50_000, preview: 2_000, largest_text: 1_000_000, settle: Duration::from_millis(50) }
    }
}

pub struct Watch {
    root: PathBuf,
    options: Options,
    /// None: scanning.
    notify: Option<Notify>,
    rules: Rules,
    tracked: Tracked,
    known: Files,
    memory: Memory,
    pending: Pending,
    /// What a file's stamp is at least if it was written after the watch began.
    began: i64,
    /// There are, or were, files with several names.
    has_linked: bool,
    /// Counts walks through the tree, so that each can tell what it did not come by.
    pass: u32,
}

impl Watch {
    /// Begins: all that happens from now on is told, against what is there now.
    pub fn new(root: &Path, options: Options) -> io::Result<Self> {
        Self::begin(root, options, Notify::new().ok())
    }

    /// To be polled for reading, then call `changes`. None when the kernel has no (or no further) notices for us: then
    /// only `flush` finds changes. That can come about at any time, so ask before every poll.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.notify.as_ref().map(Notify::descriptor)
    }

    /// When `changes` is to be called even though the descriptor is not ready.
    pub fn due(&self) -> Option<Instant> {
        self.pending.due()
    }

    /// What has settled.
    pub fn changes(&mut self) -> Vec<Change> {
        self.take_notices();
        let now = Instant::now();
        if self.pending.due().is_none_or(|due| due > now) {
            return Vec::new();
        }
        let settled = self.pending.take_settled(now);
        self.follow_rules(ruled_directories(settled.iter()), now);
        self.settle(settled)
    }

    /// All that has happened until now, settled or not. Without notices this looks through the whole tree.
    pub fn flush(&mut self) -> Vec<Change> {
        self.take_notices();
        let now = Instant::now();
        if self.notify.is_none() {
            self.rescan(b"", now);
        } else {
            self.follow_rules(ruled_directories(self.pending.paths()), now);
            self.touch_linked(now);
        }
        let all = self.pending.take_all();
        self.settle(all)
    }

    fn begin(root: &Path, options: Options, notify: Option<Notify>) -> io::Result<Self> {
        let root = root.canonicalize()?;
        if !root.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, root.display().to_string()));
        }
        let began = look::now() - look::CLOCK_STEP;
        let mut memory = Memory::new(memory::BOUNDS);
        let Baseline { rules, tracked, known, notify } =
            baseline::take(&root, notify, &mut memory, options.largest_text);
        let pending = Pending::new(options.settle);
        let has_linked = known.values().any(|known| known.linked);
        Ok(Self { root, options, notify, rules, tracked, known, memory, pending, began, has_linked, pass: 0 })
    }

    fn take_notices(&mut self) {
        while let Some(notify) = &mut self.notify {
            let notices = notify.read();
            let more = notices.len() >= MOST_NOTICES;
            let now = Instant::now();
            for notice in notices {
                self.take(notice, now);
            }
            if !more {
                return;
            }
        }
    }

    fn take(&mut self, notice: Notice, now: Instant) {
        match notice {
            Notice::Lost => self.rescan(b"", now),
            Notice::File(path) => self.touch(path, now),
            // Only what could not be read before matters.
            Notice::Attributes { path, is_directory: true } => self.rescan_unwatched(&path, now),
            Notice::Attributes { path, is_directory: false } => {
                if !self.known.contains_key(&path) {
                    self.touch(path, now);
                }
            }
            Notice::DirectoryAppeared(path) => self.rescan_unwatched(&path, now),
            Notice::DirectoryGone(path) => self.rescan(&path, now),
            Notice::Left { path, is_directory, cookie } => {
                self.pending.left(cookie, path.clone());
                if is_directory { self.rescan(&path, now) } else { self.touch(path, now) }
            }
            Notice::Arrived { path, is_directory, cookie } => {
                self.pending.arrived(cookie, &path);
                if is_directory { self.rescan(&path, now) } else { self.touch(path, now) }
            }
        }
    }

    /// A directory that has its watch was read after that, and all that came later was noticed.
    fn rescan_unwatched(&mut self, directory: &[u8], now: Instant) {
        if !self.notify.as_ref().is_some_and(|notify| notify.watches(directory)) {
            self.rescan(directory, now);
        }
    }

    fn touch(&mut self, path: Relative, now: Instant) {
        if self.known.contains_key(&path) || is_rule(&path) || tree::is_shown(&self.rules, &self.tracked, &path, false)
        {
            self.pending.touch(path, now);
        }
    }

    /// A file with another name where nobody looks can be written through that without a notice.
    fn touch_linked(&mut self, now: Instant) {
        if self.has_linked {
            for (path, _) in self.known.iter().filter(|(_, known)| known.linked) {
                self.pending.touch(path.clone(), now);
            }
        }
    }

    /// Rules may have changed in these directories: what they hide and show is found out anew.
    fn follow_rules(&mut self, directories: BTreeSet<Relative>, now: Instant) {
        for directory in directories {
            self.rescan(&directory, now);
        }
    }
}

fn is_rule(path: &[u8]) -> bool {
    matches!(path::name(path), RULES_FILE | CACHE_MARK)
}

fn ruled_directories<'a>(paths: impl Iterator<Item = &'a Relative>) -> BTreeSet<Relative> {
    paths.filter(|path| is_rule(path)).map(|path| path::parent(path).into()).collect()
}

#[cfg(test)]
mod tests;
