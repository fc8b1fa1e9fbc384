//! Walking the part of the tree that is looked at.

use super::git::Tracked;
use super::ignored::{CACHE_MARK, RULES_FILE, Rules, Verdict};
use super::look::{self, Entry, Seen};
use super::path::{self, Relative};
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir};
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

pub trait Visitor {
    /// Called before the directory is read: what comes into it from then on is the visitor's to notice.
    fn enter(&mut self, directory: &[u8]);
    /// A directory that was entered turned out to be one that is not looked at.
    fn turn_back(&mut self, directory: &[u8]);
    fn file(&mut self, path: Relative, seen: Seen);
}

/// Where the parts of the tree are that nobody looks at.
pub struct Limits<'a> {
    pub root: &'a Path,
    pub rules: &'a mut Rules,
    pub tracked: &'a Tracked,
}

/// Whether a path is looked at; for a directory, whether it is walked.
pub fn is_shown(rules: &Rules, tracked: &Tracked, path: &[u8], is_directory: bool) -> bool {
    match rules.verdict(path, is_directory) {
        Verdict::Shown => true,
        Verdict::Ignored => is_tracked(tracked, path, is_directory),
        Verdict::Forbidden => false,
    }
}

/// As for git, a rule does not hide what is tracked.
fn is_tracked(tracked: &Tracked, path: &[u8], is_directory: bool) -> bool {
    if is_directory { tracked.has_under(path) } else { tracked.has(path) }
}

impl Limits<'_> {
    /// Visits a directory and all that is shown under it. It is the caller who knows that the directory itself is.
    pub fn walk(&mut self, from: &[u8], visitor: &mut impl Visitor) {
        let ignored = !from.is_empty() && self.rules.verdict(from, true) != Verdict::Shown;
        let mut waiting: Vec<(Relative, bool)> = vec![(from.into(), ignored)];
        while let Some((directory, ignored)) = waiting.pop() {
            self.visit(&directory, ignored, visitor, &mut waiting);
        }
    }

    fn visit(
        &mut self,
        directory: &[u8],
        mut ignored: bool,
        visitor: &mut impl Visitor,
        waiting: &mut Vec<(Relative, bool)>,
    ) {
        visitor.enter(directory);
        let Some((open, names)) = listed(self.root, directory) else {
            self.rules.leave(directory);
            visitor.turn_back(directory);
            return;
        };
        let has = |wanted: &[u8]| names.iter().any(|(name, _)| name.as_bytes() == wanted);
        self.rules.enter(self.root, directory, has(RULES_FILE), has(CACHE_MARK));
        if self.rules.is_cache(directory) {
            if !self.tracked.has_under(directory) {
                visitor.turn_back(directory);
                return;
            }
            ignored = true;
        }
        for (name, kind) in names {
            let path = path::join(directory, name.as_bytes());
            if kind == FileType::Directory {
                if let Some(ignored) = self.inside(&path, true, ignored) {
                    waiting.push((path, ignored));
                }
            } else if self.inside(&path, false, ignored).is_some() {
                match look::entry(&open, &name) {
                    Entry::Seen(seen) => visitor.file(path, seen),
                    // Some file systems don't say what an entry is until it is looked at.
                    Entry::Directory => {
                        if let Some(ignored) = self.inside(&path, true, ignored) {
                            waiting.push((path, ignored));
                        }
                    }
                    Entry::Nothing => {}
                }
            }
        }
    }

    /// Whether an entry of a directory is shown, and then whether only because something in it is tracked.
    fn inside(&self, path: &[u8], is_directory: bool, ignored: bool) -> Option<bool> {
        let verdict = match self.rules.own(path, is_directory) {
            Verdict::Shown if ignored => Verdict::Ignored,
            verdict => verdict,
        };
        match verdict {
            Verdict::Shown => Some(false),
            Verdict::Ignored => is_tracked(self.tracked, path, is_directory).then_some(true),
            Verdict::Forbidden => None,
        }
    }
}

/// The entries that can matter: files, links and directories.
fn listed(root: &Path, directory: &[u8]) -> Option<(OwnedFd, Vec<(CString, FileType)>)> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = rustix::fs::openat(CWD, path::absolute(root, directory), how, Mode::empty()).ok()?;
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
