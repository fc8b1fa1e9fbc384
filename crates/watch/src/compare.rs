//! Compares touched paths with their records. A notice only names a path; the report is the difference between the
//! last report and the file system.

use crate::Watcher;
use crate::baseline;
use crate::change::{Change, ChangeType};
use crate::entry::{self, Digest, EntryState, FileEntry};
use crate::file_records::{Content, FileRecord};
use crate::relative_path::{self, RelativePath};
use crate::report::ChangeReporter;
use crate::walk;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

/// A path with its current file or link, if any.
struct InspectedPath {
    path: RelativePath,
    file_entry: Option<FileEntry>,
}

/// The changes of one batch.
#[derive(Default)]
struct ChangeBatch {
    modified: Vec<(RelativePath, FileRecord)>,
    deleted: BTreeMap<RelativePath, FileRecord>,
    created: Vec<(RelativePath, FileRecord)>,
}

impl Watcher {
    pub(super) fn compare_paths(&mut self, paths: Vec<RelativePath>) -> Vec<Change> {
        if paths.is_empty() {
            return Vec::new();
        }
        let found = self.inspect_paths(paths);
        let changed: Vec<RelativePath> = found
            .iter()
            .filter(|found| {
                self.files.get(&found.path).is_some_and(|known| !is_unchanged(known, found.file_entry.as_ref()))
            })
            .map(|found| found.path.clone())
            .collect();
        baseline::load_from_git(&changed, &self.tracked, &mut self.files, &mut self.texts, self.options.max_text_bytes);
        let mut batch = ChangeBatch::default();
        for found in found {
            self.classify_path(found, &mut batch);
        }
        let changes = self.report_batch(batch);
        self.pending.forget_moves();
        changes
    }

    fn inspect_paths(&self, paths: Vec<RelativePath>) -> Vec<InspectedPath> {
        let mut directories = DirectoryCache { root: &self.root, known: HashMap::new() };
        let mut found: Vec<InspectedPath> =
            paths.into_iter().map(|path| InspectedPath { file_entry: directories.inspect_path(&path), path }).collect();
        // A write to a hard link causes a notice for only one of the names.
        let written: HashSet<u64> = found
            .iter()
            .flat_map(|found| [found.file_entry, self.files.get(&found.path).map(FileRecord::entry)])
            .flatten()
            .filter(|file_entry| file_entry.has_hard_links)
            .map(|file_entry| file_entry.stamp.inode)
            .collect();
        if !written.is_empty() {
            let looked_at: BTreeSet<RelativePath> = found.iter().map(|found| found.path.clone()).collect();
            for (path, known) in &self.files {
                if written.contains(&known.stamp.inode) && !looked_at.contains(path) {
                    found.push(InspectedPath { path: path.clone(), file_entry: directories.inspect_path(path) });
                }
            }
        }
        found
    }

    fn classify_path(&mut self, found: InspectedPath, batch: &mut ChangeBatch) {
        let InspectedPath { path, file_entry } = found;
        let Some(file_entry) = file_entry else { return self.classify_missing(path, batch) };
        if !walk::is_visible(&self.rules, &self.tracked, &path, false) {
            // New rules hide the file: forget it.
            self.forget_file(&path);
            return;
        }
        if self.files.get(&path).is_some_and(|known| known.is_unchanged(&file_entry)) {
            return;
        }
        let Some(mut reading) = entry::read_entry(&self.root, &path, file_entry, self.options.max_text_bytes) else {
            return self.classify_missing(path, batch);
        };
        let now = FileRecord::read(&reading, self.walk_number);
        self.has_hard_links |= now.has_hard_links;
        match self.files.get_mut(&path) {
            Some(known) if has_same_content(known, &now) => {
                known.stamp = now.stamp;
                known.is_fresh = now.is_fresh;
                known.has_hard_links = now.has_hard_links;
            }
            Some(_) => batch.modified.push((path, self.retain_text(now, reading.text.take()))),
            None => batch.created.push((path, self.retain_text(now, reading.text.take()))),
        }
    }

    fn classify_missing(&mut self, path: RelativePath, batch: &mut ChangeBatch) {
        if let Some(known) = self.files.remove(&path) {
            batch.deleted.insert(path, known);
        }
    }

    fn report_batch(&mut self, mut batch: ChangeBatch) -> Vec<Change> {
        let moved = self.pair_renames(&mut batch);
        let mut teller = ChangeReporter::new(&self.options, &self.texts);
        let mut changes = Vec::new();
        for (path, known) in &batch.deleted {
            changes.push(teller.report_change(ChangeType::Deleted, Some((path, known)), None));
        }
        for (old_path, old, path, new) in &moved {
            changes.push(teller.report_change(ChangeType::Renamed, Some((old_path, old)), Some((path, new))));
        }
        for (path, new) in &batch.created {
            changes.push(teller.report_change(ChangeType::Created, None, Some((path, new))));
        }
        for (path, new) in &batch.modified {
            let old = self.files.get(path).map(|old| (&**path, old));
            changes.push(teller.report_change(ChangeType::Modified, old, Some((path, new))));
        }
        self.update_records(batch, moved);
        changes
    }

    /// Pairs deleted and created files into renames: by inotify's move cookies, or by equal content.
    fn pair_renames(&self, batch: &mut ChangeBatch) -> Vec<(RelativePath, FileRecord, RelativePath, FileRecord)> {
        let mut moved = Vec::new();
        let mut alone = Vec::new();
        for (path, new) in std::mem::take(&mut batch.created) {
            let origin = self.pending.find_origin(&path, |old| batch.deleted.contains_key(old));
            match origin.and_then(|old| batch.deleted.remove_entry(&old)) {
                Some((old_path, old)) => moved.push((old_path, old, path, new)),
                None => alone.push((path, new)),
            }
        }
        let mut by_content: HashMap<Digest, Vec<RelativePath>> = HashMap::new();
        for (path, old) in &batch.deleted {
            if let Some(digest) = old.digest().filter(|_| old.stamp.size > 0) {
                by_content.entry(*digest).or_default().push(path.clone());
            }
        }
        for (path, new) in alone {
            let same = new.digest().and_then(|digest| by_content.get_mut(digest));
            match same.and_then(|paths| take_best_match(paths, &path)).and_then(|old| batch.deleted.remove_entry(&old))
            {
                Some((old_path, old)) => moved.push((old_path, old, path, new)),
                None => batch.created.push((path, new)),
            }
        }
        moved.sort_by(|left, right| left.2.cmp(&right.2));
        moved
    }

    /// Updates the records to the reported state.
    fn update_records(&mut self, batch: ChangeBatch, moved: Vec<(RelativePath, FileRecord, RelativePath, FileRecord)>) {
        let mut past: Vec<FileRecord> = batch.deleted.into_values().collect();
        let mut present: Vec<(RelativePath, FileRecord)> = batch.created;
        present.extend(batch.modified);
        for (_, old, path, new) in moved {
            past.push(old);
            present.push((path, new));
        }
        for (path, new) in present {
            past.extend(self.files.insert(path, new));
        }
        for old in past {
            self.release_text(&old);
        }
    }

    fn retain_text(&mut self, known: FileRecord, text: Option<String>) -> FileRecord {
        if let (Some(digest), Some(text)) = (known.digest(), text) {
            self.texts.retain(*digest, text);
        }
        known
    }

    fn forget_file(&mut self, path: &[u8]) {
        if let Some(known) = self.files.remove(path) {
            self.release_text(&known);
        }
    }

    fn release_text(&mut self, known: &FileRecord) {
        if let Some(digest) = known.digest().filter(|_| !known.is_binary) {
            self.texts.release(digest);
        }
    }
}

fn is_unchanged(known: &FileRecord, file_entry: Option<&FileEntry>) -> bool {
    file_entry.is_some_and(|file_entry| known.is_unchanged(file_entry))
}

/// True if a written file has its old content. If that is unavailable, compares the stamps.
fn has_same_content(old: &FileRecord, new: &FileRecord) -> bool {
    if old.kind != new.kind {
        return false;
    }
    match (&old.content, &new.content) {
        (Content::Read(old), Content::Read(new)) => old == new,
        (Content::Unread | Content::Unavailable, _) | (_, Content::Unread | Content::Unavailable) => {
            old.stamp == new.stamp
        }
    }
}

/// Takes the file with the same name, or the first one.
fn take_best_match(paths: &mut Vec<RelativePath>, new: &[u8]) -> Option<RelativePath> {
    let same_name = paths.iter().position(|old| relative_path::file_name(old) == relative_path::file_name(new));
    if paths.is_empty() { None } else { Some(paths.remove(same_name.unwrap_or(0))) }
}

/// Stats paths without following links in any directory; caches directories for one batch.
struct DirectoryCache<'a> {
    root: &'a Path,
    known: HashMap<RelativePath, bool>,
}

impl DirectoryCache<'_> {
    fn inspect_path(&mut self, path: &[u8]) -> Option<FileEntry> {
        for directory in relative_path::ancestors(path) {
            let is_real = match self.known.get(directory) {
                Some(is_real) => *is_real,
                None => {
                    let is_real = matches!(entry::stat_path(self.root, directory), EntryState::Directory);
                    self.known.insert(directory.into(), is_real);
                    is_real
                }
            };
            if !is_real {
                return None;
            }
        }
        match entry::stat_path(self.root, path) {
            EntryState::File(file_entry) => Some(file_entry),
            EntryState::Directory | EntryState::Absent => None,
        }
    }
}
