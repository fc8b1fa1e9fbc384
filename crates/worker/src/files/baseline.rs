//! What is there when a watch begins. Large trees are not read: git has the old content of most files, and only the few that it
//! does not have, the latest first, are read and remembered.

use super::git::Tracked;
use super::ignored::Rules;
use super::known::{Content, Files, Known};
use super::look::{self, Entry, Seen};
use super::memory::Memory;
use super::notify::{Exhausted, Notify};
use super::path::Relative;
use super::tree::{Limits, Visitor};
use std::cmp::Reverse;
use std::path::Path;
use std::time::Duration;

const MOST_FILES_READ: usize = 200;
const MOST_BYTES_READ: u64 = 4 * 1024 * 1024;
/// How much is asked of git at once.
const MOST_BLOBS: usize = 500;
const MOST_BLOB_BYTES: u64 = 8 * 1024 * 1024;
/// Longer than a step of the clock that stamps files.
const CLOCK_REST: Duration = Duration::from_millis(12);

pub struct Baseline {
    pub rules: Rules,
    pub tracked: Tracked,
    pub known: Files,
    pub notify: Option<Notify>,
}

pub fn take(root: &Path, mut notify: Option<Notify>, memory: &mut Memory, largest_text: u64) -> Baseline {
    let (mut tracked, dirty) = Tracked::read(root);
    let mut rules = Rules::default();
    rules.read_exclude(root);
    let mut first = First { root, known: Files::new(), notify: notify.as_mut(), exhausted: false };
    Limits { root, rules: &mut rules, tracked: &tracked }.walk(b"", &mut first);
    let First { mut known, exhausted, .. } = first;
    if exhausted {
        notify = None;
    }
    tracked.settle(dirty);
    if notify.is_none() {
        rest(root, &mut known);
    }
    read_rest(root, &tracked, &mut known, memory, largest_text);
    Baseline { rules, tracked, known, notify }
}

struct First<'a> {
    root: &'a Path,
    known: Files,
    notify: Option<&'a mut Notify>,
    exhausted: bool,
}

impl Visitor for First<'_> {
    fn enter(&mut self, directory: &[u8]) {
        if let Some(notify) = &mut self.notify {
            match notify.add(self.root, directory, 0) {
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
        self.known.insert(path, Known::unread(seen, 0));
    }
}

/// Where changes are found by stamps alone, stamps that may hide a later write are taken once more after a moment:
/// else the next scan would have to read all files of a fresh checkout.
fn rest(root: &Path, known: &mut Files) {
    if !known.values().any(|known| known.fresh) {
        return;
    }
    std::thread::sleep(CLOCK_REST);
    for (path, known) in known.iter_mut().filter(|(_, known)| known.fresh) {
        if let Entry::Seen(seen) = look::entry_at(root, path) {
            *known = Known::unread(seen, 0);
        }
    }
}

fn read_rest(root: &Path, tracked: &Tracked, known: &mut Files, memory: &mut Memory, largest_text: u64) {
    let mut wanted: Vec<(Relative, Seen)> = known
        .iter()
        .filter(|(path, known)| known.stamp.size <= largest_text && tracked.clean(path).is_none())
        .map(|(path, known)| (path.clone(), known.seen()))
        .collect();
    wanted.sort_by_key(|(_, seen)| Reverse(seen.stamp.modified));
    let mut left = MOST_BYTES_READ;
    for (path, seen) in wanted.into_iter().take(MOST_FILES_READ) {
        let Some(rest) = left.checked_sub(seen.stamp.size) else { continue };
        if let Some(mut reading) = look::read(root, &path, seen, largest_text) {
            left = rest;
            known.insert(path, Known::read(&reading, 0));
            if let (Some(digest), Some(text)) = (reading.digest, reading.text.take()) {
                memory.keep(digest, text);
            }
        }
    }
}

/// Gets the content that files had at the beginning from git, before it is compared with what they hold now.
pub fn recall(paths: &[Relative], tracked: &Tracked, known: &mut Files, memory: &mut Memory, largest_text: u64) {
    let mut asked = Vec::new();
    let mut bytes = 0;
    for path in paths {
        let Some(file) = known.get(path) else { continue };
        let size = file.stamp.size;
        if !matches!(file.content, Content::Unread) || size > largest_text {
            continue;
        }
        let Some(id) = tracked.clean(path) else { continue };
        if asked.len() >= MOST_BLOBS || bytes + size > MOST_BLOB_BYTES {
            take_in(&std::mem::take(&mut asked), tracked, known, memory);
            bytes = 0;
        }
        bytes += size;
        asked.push((path, id));
    }
    if !asked.is_empty() {
        take_in(&asked, tracked, known, memory);
    }
}

fn take_in(asked: &[(&Relative, super::git::ObjectId)], tracked: &Tracked, known: &mut Files, memory: &mut Memory) {
    let ids: Vec<_> = asked.iter().map(|(_, id)| *id).collect();
    for ((path, _), content) in asked.iter().zip(tracked.contents(&ids)) {
        let Some(file) = known.get_mut(*path) else { continue };
        // A blob of another size is not what the file held: a filter stood between (line ends, large file storage).
        let content = content.filter(|bytes| u64::try_from(bytes.len()) == Ok(file.stamp.size));
        let Some(bytes) = content else {
            file.content = Content::Unknown;
            continue;
        };
        let digest = look::digest(&bytes);
        file.binary = look::is_binary(&bytes);
        file.content = Content::Read(Box::new(digest));
        if !file.binary
            && let Ok(text) = String::from_utf8(bytes)
        {
            memory.keep(digest, text);
        }
    }
}
