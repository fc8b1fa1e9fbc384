//! Inotify: one watch per visible directory.

use crate::relative_path::{self, PathsUnder, RelativePath};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Limit per read, so that an endless writer cannot block the watcher.
pub const MAX_NOTICES_PER_READ: usize = 100_000;
const BUFFER_BYTES: usize = 64 * 1024;

pub struct Inotify {
    descriptor: OwnedFd,
    by_watch: HashMap<i32, RelativePath>,
    by_path: BTreeMap<RelativePath, WatchedDirectory>,
    buffer: Vec<MaybeUninit<u8>>,
}

struct WatchedDirectory {
    watch: i32,
    /// Number of the last walk that visited it.
    walk_number: u32,
}

#[derive(Debug, PartialEq)]
pub enum Notice {
    /// The kernel dropped notices: anything may have happened.
    Lost,
    /// A file was written, created, deleted or replaced.
    FileTouched(RelativePath),
    /// Only mode, owner or times changed.
    Attributes {
        path: RelativePath,
        is_directory: bool,
    },
    DirectoryAppeared(RelativePath),
    DirectoryGone(RelativePath),
    /// The first half of a rename.
    MovedFrom {
        path: RelativePath,
        is_directory: bool,
        cookie: u32,
    },
    /// The second half.
    MovedTo {
        path: RelativePath,
        is_directory: bool,
        cookie: u32,
    },
}

/// The kernel's limit of watches is reached.
pub struct WatchLimitReached;

impl Inotify {
    pub fn new() -> std::io::Result<Self> {
        let descriptor = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self {
            descriptor,
            by_watch: HashMap::new(),
            by_path: BTreeMap::new(),
            buffer: vec![MaybeUninit::uninit(); BUFFER_BYTES],
        })
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    pub fn is_watched(&self, directory: &[u8]) -> bool {
        self.by_path.contains_key(directory)
    }

    #[cfg(test)]
    pub fn watch_count(&self) -> usize {
        assert_eq!(self.by_path.len(), self.by_watch.len());
        self.by_path.len()
    }

    /// Watches a directory. A missing or unreadable directory is no error: it has nothing to report.
    pub fn add_watch(&mut self, root: &Path, directory: &[u8], pass: u32) -> Result<(), WatchLimitReached> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW
            | WatchFlags::EXCL_UNLINK;
        let watch = match inotify::add_watch(&self.descriptor, relative_path::to_absolute(root, directory), flags) {
            Ok(watch) => watch,
            Err(Errno::NOSPC | Errno::NOMEM) => return Err(WatchLimitReached),
            Err(_) => return Ok(()),
        };
        // A moved directory keeps its watch, which now belongs to the new path.
        if let Some(before) = self.by_watch.insert(watch, directory.into())
            && *before != *directory
            && self.by_path.get(&before).is_some_and(|watched| watched.watch == watch)
        {
            self.by_path.remove(&before);
        }
        if let Some(before) = self.by_path.insert(directory.into(), WatchedDirectory { watch, walk_number: pass })
            && before.watch != watch
        {
            self.drop_watch(before.watch);
        }
        Ok(())
    }

    pub fn remove_watch(&mut self, directory: &[u8]) {
        if let Some(watched) = self.by_path.remove(directory) {
            self.drop_watch(watched.watch);
        }
    }

    /// Removes the watches below a directory that this walk did not visit.
    pub fn remove_unvisited(&mut self, directory: &[u8], pass: u32) {
        let under = PathsUnder::new(directory);
        let here = self.by_path.get_key_value(directory).filter(|_| !directory.is_empty());
        let unvisited: Vec<RelativePath> = here
            .into_iter()
            .chain(self.by_path.range::<[u8], _>(under.key_range()))
            .filter(|(_, watched)| watched.walk_number != pass)
            .map(|(path, _)| path.clone())
            .collect();
        for directory in unvisited {
            self.remove_watch(&directory);
        }
    }

    /// Reads waiting notices. A full batch means that there may be more.
    pub fn read_notices(&mut self) -> Vec<Notice> {
        let mut notices = Vec::new();
        let mut ended = Vec::new();
        let mut reader = inotify::Reader::new(&self.descriptor, &mut self.buffer);
        while notices.len() < MAX_NOTICES_PER_READ || !reader.is_buffer_empty() {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            let events = event.events();
            if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                notices.push(Notice::Lost);
            } else if events.contains(ReadFlags::IGNORED) {
                ended.push(event.wd());
            } else if let Some(directory) = self.by_watch.get(&event.wd()) {
                let name = event.file_name().map(|name| name.to_bytes()).filter(|name| !name.is_empty());
                match name {
                    Some(name) => {
                        notices.push(to_notice(relative_path::join_path(directory, name), events, event.cookie()))
                    }
                    // For other directories, the parent's watch reports the same.
                    None if directory.is_empty() && events.contains(ReadFlags::DELETE_SELF) => {
                        notices.push(Notice::Lost);
                    }
                    None => {}
                }
            }
        }
        for watch in ended {
            self.forget_watch(watch);
        }
        notices
    }

    fn drop_watch(&mut self, watch: i32) {
        self.by_watch.remove(&watch);
        let _ = inotify::remove_watch(&self.descriptor, watch);
    }

    fn forget_watch(&mut self, watch: i32) {
        if let Some(directory) = self.by_watch.remove(&watch)
            && self.by_path.get(&directory).is_some_and(|watched| watched.watch == watch)
        {
            self.by_path.remove(&directory);
        }
    }
}

fn to_notice(path: RelativePath, events: ReadFlags, cookie: u32) -> Notice {
    let is_directory = events.contains(ReadFlags::ISDIR);
    if events.contains(ReadFlags::MOVED_FROM) {
        Notice::MovedFrom { path, is_directory, cookie }
    } else if events.contains(ReadFlags::MOVED_TO) {
        Notice::MovedTo { path, is_directory, cookie }
    } else if events.contains(ReadFlags::ATTRIB) {
        Notice::Attributes { path, is_directory }
    } else if !is_directory {
        Notice::FileTouched(path)
    } else if events.contains(ReadFlags::CREATE) {
        Notice::DirectoryAppeared(path)
    } else {
        Notice::DirectoryGone(path)
    }
}
