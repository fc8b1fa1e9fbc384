//! From paths that something happened to, to what is told about them. Notices only say where to look; what is told is
//! the difference between what was last told and what is there now.

use super::Watch;
use super::baseline;
use super::change::{Change, ChangeType};
use super::known::{Content, Known};
use super::look::{self, Digest, Entry, Seen};
use super::path::{self, Relative};
use super::tell::Teller;
use super::tree;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

/// A path, and the file or link that is there now, if any.
struct Found {
    path: Relative,
    seen: Option<Seen>,
}

/// What the batch comes to, before it is told.
#[derive(Default)]
struct Batch {
    altered: Vec<(Relative, Known)>,
    gone: BTreeMap<Relative, Known>,
    appeared: Vec<(Relative, Known)>,
}

impl Watch {
    pub(super) fn settle(&mut self, paths: Vec<Relative>) -> Vec<Change> {
        if paths.is_empty() {
            return Vec::new();
        }
        let found = self.look_at(paths);
        let changed: Vec<Relative> = found
            .iter()
            .filter(|found| self.known.get(&found.path).is_some_and(|known| !is_still(known, found.seen.as_ref())))
            .map(|found| found.path.clone())
            .collect();
        baseline::recall(&changed, &self.tracked, &mut self.known, &mut self.memory, self.options.largest_text);
        let mut batch = Batch::default();
        for found in found {
            self.sort(found, &mut batch);
        }
        let changes = self.tell(batch);
        self.pending.forget_moves();
        changes
    }

    fn look_at(&self, paths: Vec<Relative>) -> Vec<Found> {
        let mut directories = Directories { root: &self.root, known: HashMap::new() };
        let mut found: Vec<Found> =
            paths.into_iter().map(|path| Found { seen: directories.look(&path), path }).collect();
        // A file with several names is written through one of them, and no notice names the others.
        let written: HashSet<u64> = found
            .iter()
            .flat_map(|found| [found.seen, self.known.get(&found.path).map(Known::seen)])
            .flatten()
            .filter(|seen| seen.linked)
            .map(|seen| seen.stamp.inode)
            .collect();
        if !written.is_empty() {
            let looked_at: BTreeSet<Relative> = found.iter().map(|found| found.path.clone()).collect();
            for (path, known) in &self.known {
                if written.contains(&known.stamp.inode) && !looked_at.contains(path) {
                    found.push(Found { path: path.clone(), seen: directories.look(path) });
                }
            }
        }
        found
    }

    fn sort(&mut self, found: Found, batch: &mut Batch) {
        let Found { path, seen } = found;
        let Some(seen) = seen else { return self.sort_missing(path, batch) };
        if !tree::is_shown(&self.rules, &self.tracked, &path, false) {
            // It is there, and from now on nobody looks at it.
            self.forget(&path);
            return;
        }
        if self.known.get(&path).is_some_and(|known| known.is_still(&seen)) {
            return;
        }
        let Some(mut reading) = look::read(&self.root, &path, seen, self.options.largest_text) else {
            return self.sort_missing(path, batch);
        };
        let now = Known::read(&reading, self.pass);
        self.has_linked |= now.linked;
        match self.known.get_mut(&path) {
            Some(known) if is_same(known, &now) => {
                known.stamp = now.stamp;
                known.fresh = now.fresh;
                known.linked = now.linked;
            }
            Some(_) => batch.altered.push((path, self.keep(now, reading.text.take()))),
            None => batch.appeared.push((path, self.keep(now, reading.text.take()))),
        }
    }

    fn sort_missing(&mut self, path: Relative, batch: &mut Batch) {
        if let Some(known) = self.known.remove(&path) {
            batch.gone.insert(path, known);
        }
    }

    fn tell(&mut self, mut batch: Batch) -> Vec<Change> {
        let moved = self.pair(&mut batch);
        let mut teller = Teller::new(&self.options, &self.memory);
        let mut changes = Vec::new();
        for (path, known) in &batch.gone {
            changes.push(teller.tell(ChangeType::Deleted, Some((path, known)), None));
        }
        for (old_path, old, path, new) in &moved {
            changes.push(teller.tell(ChangeType::Renamed, Some((old_path, old)), Some((path, new))));
        }
        for (path, new) in &batch.appeared {
            changes.push(teller.tell(ChangeType::Created, None, Some((path, new))));
        }
        for (path, new) in &batch.altered {
            let old = self.known.get(path).map(|old| (&**path, old));
            changes.push(teller.tell(ChangeType::Modified, old, Some((path, new))));
        }
        self.remember(batch, moved);
        changes
    }

    /// What disappeared and what appeared, and is one file: by the kernel's word, or by the same content.
    fn pair(&self, batch: &mut Batch) -> Vec<(Relative, Known, Relative, Known)> {
        let mut moved = Vec::new();
        let mut alone = Vec::new();
        for (path, new) in std::mem::take(&mut batch.appeared) {
            let origin = self.pending.origin(&path, |old| batch.gone.contains_key(old));
            match origin.and_then(|old| batch.gone.remove_entry(&old)) {
                Some((old_path, old)) => moved.push((old_path, old, path, new)),
                None => alone.push((path, new)),
            }
        }
        let mut by_content: HashMap<Digest, Vec<Relative>> = HashMap::new();
        for (path, old) in &batch.gone {
            if let Some(digest) = old.digest().filter(|_| old.stamp.size > 0) {
                by_content.entry(*digest).or_default().push(path.clone());
            }
        }
        for (path, new) in alone {
            let same = new.digest().and_then(|digest| by_content.get_mut(digest));
            match same.and_then(|paths| take_likeliest(paths, &path)).and_then(|old| batch.gone.remove_entry(&old)) {
                Some((old_path, old)) => moved.push((old_path, old, path, new)),
                None => batch.appeared.push((path, new)),
            }
        }
        moved.sort_by(|left, right| left.2.cmp(&right.2));
        moved
    }

    /// From now on what was told is what is known.
    fn remember(&mut self, batch: Batch, moved: Vec<(Relative, Known, Relative, Known)>) {
        let mut past: Vec<Known> = batch.gone.into_values().collect();
        let mut present: Vec<(Relative, Known)> = batch.appeared;
        present.extend(batch.altered);
        for (_, old, path, new) in moved {
            past.push(old);
            present.push((path, new));
        }
        for (path, new) in present {
            past.extend(self.known.insert(path, new));
        }
        for old in past {
            self.release(&old);
        }
    }

    fn keep(&mut self, known: Known, text: Option<String>) -> Known {
        if let (Some(digest), Some(text)) = (known.digest(), text) {
            self.memory.keep(*digest, text);
        }
        known
    }

    fn forget(&mut self, path: &[u8]) {
        if let Some(known) = self.known.remove(path) {
            self.release(&known);
        }
    }

    fn release(&mut self, known: &Known) {
        if let Some(digest) = known.digest().filter(|_| !known.binary) {
            self.memory.release(digest);
        }
    }
}

fn is_still(known: &Known, seen: Option<&Seen>) -> bool {
    seen.is_some_and(|seen| known.is_still(seen))
}

/// Whether a file that was written holds what it held. Where nobody has the old content, its stamp must do.
fn is_same(old: &Known, new: &Known) -> bool {
    if old.kind != new.kind {
        return false;
    }
    match (&old.content, &new.content) {
        (Content::Read(old), Content::Read(new)) => old == new,
        (Content::Unread | Content::Unknown, _) | (_, Content::Unread | Content::Unknown) => old.stamp == new.stamp,
    }
}

/// Of several files with the same content, the one that also has the same name.
fn take_likeliest(paths: &mut Vec<Relative>, new: &[u8]) -> Option<Relative> {
    let same_name = paths.iter().position(|old| path::name(old) == path::name(new));
    if paths.is_empty() { None } else { Some(paths.remove(same_name.unwrap_or(0))) }
}

/// Looks at paths without following a link anywhere on the way; which directories are real is found out once a batch.
struct Directories<'a> {
    root: &'a Path,
    known: HashMap<Relative, bool>,
}

impl Directories<'_> {
    fn look(&mut self, path: &[u8]) -> Option<Seen> {
        for directory in path::above(path) {
            let is_real = match self.known.get(directory) {
                Some(is_real) => *is_real,
                None => {
                    let is_real = matches!(look::entry_at(self.root, directory), Entry::Directory);
                    self.known.insert(directory.into(), is_real);
                    is_real
                }
            };
            if !is_real {
                return None;
            }
        }
        match look::entry_at(self.root, path) {
            Entry::Seen(seen) => Some(seen),
            Entry::Directory | Entry::Nothing => None,
        }
    }
}
