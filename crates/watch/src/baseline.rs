//! The state of the workspace when the watcher starts. It does not read large trees: git has the old content of most
//! files, and the watcher reads only the newest of the others.

use crate::entry::{self, EntryState, FileEntry};
use crate::file_records::{Content, FileRecord, FileRecords};
use crate::ignore_rules::IgnoreRules;
use crate::inotify::{Inotify, WatchLimitReached};
use crate::relative_path::RelativePath;
use crate::text_store::TextStore;
use crate::tracked::TrackedFiles;
use crate::walk::{VisibleTree, Visitor};
use std::cmp::Reverse;
use std::path::Path;
use std::time::Duration;

const MAX_FILES_READ: usize = 200;
const MAX_BYTES_READ: u64 = 4 * 1024 * 1024;
/// Size limits of one query to git.
const MAX_BLOBS_PER_QUERY: usize = 500;
const MAX_BLOB_BYTES_PER_QUERY: u64 = 8 * 1024 * 1024;
/// Longer than a tick of the file system's clock.
const CLOCK_TICK_PAUSE: Duration = Duration::from_millis(12);

pub struct Baseline {
    pub rules: IgnoreRules,
    pub tracked: TrackedFiles,
    pub known: FileRecords,
    pub notify: Option<Inotify>,
}

pub fn take_baseline(root: &Path, mut notify: Option<Inotify>, memory: &mut TextStore, largest_text: u64) -> Baseline {
    let (mut tracked, dirty) = TrackedFiles::read_index(root);
    let mut rules = IgnoreRules::default();
    rules.load_exclude(root);
    let mut first = BaselineVisitor { root, known: FileRecords::new(), notify: notify.as_mut(), exhausted: false };
    VisibleTree { root, rules: &mut rules, tracked: &tracked }.walk_from(b"", &mut first);
    let BaselineVisitor { mut known, exhausted, .. } = first;
    if exhausted {
        notify = None;
    }
    tracked.apply_dirty(dirty);
    if notify.is_none() {
        restamp_fresh_files(root, &mut known);
    }
    read_unknown_files(root, &tracked, &mut known, memory, largest_text);
    Baseline { rules, tracked, known, notify }
}

struct BaselineVisitor<'a> {
    root: &'a Path,
    known: FileRecords,
    notify: Option<&'a mut Inotify>,
    exhausted: bool,
}

impl Visitor for BaselineVisitor<'_> {
    fn enter_directory(&mut self, directory: &[u8]) {
        if let Some(notify) = &mut self.notify {
            match notify.add_watch(self.root, directory, 0) {
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
        self.known.insert(path, FileRecord::unread(file_entry, 0));
    }
}

/// Stats fresh files again after a clock tick. Without inotify, a fresh stamp may hide a later write, and the next scan
/// would have to read all files of a new checkout.
fn restamp_fresh_files(root: &Path, known: &mut FileRecords) {
    if !known.values().any(|known| known.is_fresh) {
        return;
    }
    std::thread::sleep(CLOCK_TICK_PAUSE);
    for (path, known) in known.iter_mut().filter(|(_, known)| known.is_fresh) {
        if let EntryState::File(file_entry) = entry::stat_path(root, path) {
            *known = FileRecord::unread(file_entry, 0);
        }
    }
}

fn read_unknown_files(
    root: &Path,
    tracked: &TrackedFiles,
    known: &mut FileRecords,
    memory: &mut TextStore,
    largest_text: u64,
) {
    let mut unknown: Vec<(RelativePath, FileEntry)> = known
        .iter()
        .filter(|(path, known)| known.stamp.size <= largest_text && tracked.clean_blob(path).is_none())
        .map(|(path, known)| (path.clone(), known.entry()))
        .collect();
    unknown.sort_by_key(|(_, file_entry)| Reverse(file_entry.stamp.modified));
    let mut left = MAX_BYTES_READ;
    for (path, file_entry) in unknown.into_iter().take(MAX_FILES_READ) {
        let Some(rest) = left.checked_sub(file_entry.stamp.size) else { continue };
        if let Some(mut reading) = entry::read_entry(root, &path, file_entry, largest_text) {
            left = rest;
            known.insert(path, FileRecord::read(&reading, 0));
            if let (Some(digest), Some(text)) = (reading.digest, reading.text.take()) {
                memory.retain(digest, text);
            }
        }
    }
}

/// Loads the old content of changed files from git.
pub fn load_from_git(
    paths: &[RelativePath],
    tracked: &TrackedFiles,
    known: &mut FileRecords,
    memory: &mut TextStore,
    largest_text: u64,
) {
    let mut query = Vec::new();
    let mut bytes = 0;
    for path in paths {
        let Some(file) = known.get(path) else { continue };
        let size = file.stamp.size;
        if !matches!(file.content, Content::Unread) || size > largest_text {
            continue;
        }
        let Some(id) = tracked.clean_blob(path) else { continue };
        if query.len() >= MAX_BLOBS_PER_QUERY || bytes + size > MAX_BLOB_BYTES_PER_QUERY {
            store_blobs(&std::mem::take(&mut query), tracked, known, memory);
            bytes = 0;
        }
        bytes += size;
        query.push((path, id));
    }
    if !query.is_empty() {
        store_blobs(&query, tracked, known, memory);
    }
}

fn store_blobs(
    query: &[(&RelativePath, crate::tracked::ObjectId)],
    tracked: &TrackedFiles,
    known: &mut FileRecords,
    memory: &mut TextStore,
) {
    let ids: Vec<_> = query.iter().map(|(_, id)| *id).collect();
    for ((path, _), content) in query.iter().zip(tracked.read_blobs(&ids)) {
        let Some(file) = known.get_mut(*path) else { continue };
        // A different size means that a git filter changed the content (line endings, large-file storage).
        let content = content.filter(|bytes| u64::try_from(bytes.len()) == Ok(file.stamp.size));
        let Some(bytes) = content else {
            file.content = Content::Unavailable;
            continue;
        };
        let digest = entry::hash_bytes(&bytes);
        file.is_binary = entry::is_binary(&bytes);
        file.content = Content::Read(Box::new(digest));
        if !file.is_binary
            && let Ok(text) = String::from_utf8(bytes)
        {
            memory.retain(digest, text);
        }
    }
}
