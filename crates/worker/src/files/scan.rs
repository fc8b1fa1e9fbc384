//! Finding out by looking: which files under a directory are not as they are known. For directories that appear, move
//! or vanish, for rules that change, when the kernel lost notices, and always where there are no notices.

use super::Watch;
use super::ignored::{Rules, Verdict};
use super::known::{Files, Known};
use super::look::{self, Entry, Seen};
use super::notify::{Exhausted, Notify};
use super::path::{self, Relative, Under};
use super::pending::Pending;
use super::tree::{self, Limits, Visitor};
use std::path::Path;
use std::time::Instant;

impl Watch {
    /// Afterwards every file under the directory that is new, gone or different is pending, and watched is what is
    /// shown and nothing else.
    pub(super) fn rescan(&mut self, directory: &[u8], now: Instant) {
        self.pass = self.pass.wrapping_add(1);
        let before = self.rules.clone();
        self.rules.forget_caches(directory);
        if directory.is_empty() {
            self.rules.read_exclude(&self.root);
        }
        let mut scan = Scan {
            root: &self.root,
            known: &mut self.known,
            has_linked: &mut self.has_linked,
            pending: &mut self.pending,
            notify: self.notify.as_mut(),
            exhausted: false,
            before: &before,
            began: self.began,
            pass: self.pass,
            now,
        };
        if is_directory(&self.root, directory) && tree::is_shown(&self.rules, &self.tracked, directory, true) {
            Limits { root: &self.root, rules: &mut self.rules, tracked: &self.tracked }.walk(directory, &mut scan);
        } else {
            self.rules.leave(directory);
        }
        if scan.exhausted {
            self.notify = None;
        }
        if let Some(notify) = &mut self.notify {
            notify.remove_unvisited(directory, self.pass);
        }
        for (path, known) in self.known.range::<[u8], _>(Under::new(directory).range()) {
            if known.pass != self.pass {
                self.pending.touch(path.clone(), now);
            }
        }
        // A file whose place a directory took, or the other way round.
        if self.known.contains_key(directory) {
            self.pending.touch(directory.into(), now);
        }
    }
}

/// A directory that is reached without following a link.
fn is_directory(root: &Path, directory: &[u8]) -> bool {
    let is_real = |path| matches!(look::entry_at(root, path), Entry::Directory);
    directory.is_empty() || (path::above(directory).all(is_real) && is_real(directory))
}

struct Scan<'a> {
    root: &'a Path,
    known: &'a mut Files,
    has_linked: &'a mut bool,
    pending: &'a mut Pending,
    notify: Option<&'a mut Notify>,
    exhausted: bool,
    before: &'a Rules,
    began: i64,
    pass: u32,
    now: Instant,
}

impl Visitor for Scan<'_> {
    fn enter(&mut self, directory: &[u8]) {
        if let Some(notify) = &mut self.notify {
            match notify.add(self.root, directory, self.pass) {
                Ok(()) => {}
                Err(Exhausted) => {
                    self.notify = None;
                    self.exhausted = true;
                }
            }
        }
    }

    fn turn_back(&mut self, directory: &[u8]) {
        if let Some(notify) = &mut self.notify {
            notify.remove(directory);
        }
    }

    fn file(&mut self, path: Relative, seen: Seen) {
        match self.known.get_mut(&path) {
            Some(known) => {
                known.pass = self.pass;
                if !known.is_still(&seen) {
                    self.pending.touch(path, self.now);
                }
            }
            // It was there all the time and only the rules hid it: nothing happened to it.
            None if seen.stamp.changed < self.began && self.before.verdict(&path, false) != Verdict::Shown => {
                *self.has_linked |= seen.linked;
                self.known.insert(path, Known::unread(seen, self.pass));
            }
            None => self.pending.touch(path, self.now),
        }
    }
}
