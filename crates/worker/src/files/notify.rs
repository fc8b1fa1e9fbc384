//! The kernel's notices (inotify): one watch on every directory that is looked at.

use super::path::{self, Relative, Under};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// How much is taken at most before the caller sees to it: whoever writes without end must not keep us reading.
pub const MOST_NOTICES: usize = 100_000;
const BUFFER: usize = 64 * 1024;

pub struct Notify {
    descriptor: OwnedFd,
    by_watch: HashMap<i32, Relative>,
    by_path: BTreeMap<Relative, Watched>,
    buffer: Vec<MaybeUninit<u8>>,
}

struct Watched {
    watch: i32,
    /// The last walk that came by.
    pass: u32,
}

#[derive(Debug, PartialEq)]
pub enum Notice {
    /// The kernel dropped notices: anything may have happened.
    Lost,
    /// A file was written, created, deleted or replaced.
    File(Relative),
    /// Only mode or owner changed, or times.
    Attributes {
        path: Relative,
        is_directory: bool,
    },
    DirectoryAppeared(Relative),
    DirectoryGone(Relative),
    /// The first half of a rename.
    Left {
        path: Relative,
        is_directory: bool,
        cookie: u32,
    },
    /// The second half.
    Arrived {
        path: Relative,
        is_directory: bool,
        cookie: u32,
    },
}

/// No further watch is to be had.
pub struct Exhausted;

impl Notify {
    pub fn new() -> std::io::Result<Self> {
        let descriptor = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self {
            descriptor,
            by_watch: HashMap::new(),
            by_path: BTreeMap::new(),
            buffer: vec![MaybeUninit::uninit(); BUFFER],
        })
    }

    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    pub fn watches(&self, directory: &[u8]) -> bool {
        self.by_path.contains_key(directory)
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        assert_eq!(self.by_path.len(), self.by_watch.len());
        self.by_path.len()
    }

    /// A directory that is gone or not ours to read gets no watch, which is no failure: there is nothing to see in it.
    pub fn add(&mut self, root: &Path, directory: &[u8], pass: u32) -> Result<(), Exhausted> {
        let wanted = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW
            | WatchFlags::EXCL_UNLINK;
        let watch = match inotify::add_watch(&self.descriptor, path::absolute(root, directory), wanted) {
            Ok(watch) => watch,
            Err(Errno::NOSPC | Errno::NOMEM) => return Err(Exhausted),
            Err(_) => return Ok(()),
        };
        // A directory that was moved keeps its watch, which must then answer to its new path only.
        if let Some(before) = self.by_watch.insert(watch, directory.into())
            && *before != *directory
            && self.by_path.get(&before).is_some_and(|watched| watched.watch == watch)
        {
            self.by_path.remove(&before);
        }
        if let Some(before) = self.by_path.insert(directory.into(), Watched { watch, pass })
            && before.watch != watch
        {
            self.drop_watch(before.watch);
        }
        Ok(())
    }

    pub fn remove(&mut self, directory: &[u8]) {
        if let Some(watched) = self.by_path.remove(directory) {
            self.drop_watch(watched.watch);
        }
    }

    /// Ends the watches at and under a directory that the walk of this number did not come by.
    pub fn remove_unvisited(&mut self, directory: &[u8], pass: u32) {
        let under = Under::new(directory);
        let here = self.by_path.get_key_value(directory).filter(|_| !directory.is_empty());
        let unvisited: Vec<Relative> = here
            .into_iter()
            .chain(self.by_path.range::<[u8], _>(under.range()))
            .filter(|(_, watched)| watched.pass != pass)
            .map(|(path, _)| path.clone())
            .collect();
        for directory in unvisited {
            self.remove(&directory);
        }
    }

    /// What has happened until now. So many that they fill the bound: there may be more.
    pub fn read(&mut self) -> Vec<Notice> {
        let mut notices = Vec::new();
        let mut ended = Vec::new();
        let mut reader = inotify::Reader::new(&self.descriptor, &mut self.buffer);
        while notices.len() < MOST_NOTICES || !reader.is_buffer_empty() {
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
                    Some(name) => notices.push(notice(path::join(directory, name), events, event.cookie())),
                    // The parent's watch says the same of every directory but the root.
                    None if directory.is_empty() && events.contains(ReadFlags::DELETE_SELF) => {
                        notices.push(Notice::Lost);
                    }
                    None => {}
                }
            }
        }
        for watch in ended {
            self.forget(watch);
        }
        notices
    }

    fn drop_watch(&mut self, watch: i32) {
        self.by_watch.remove(&watch);
        let _ = inotify::remove_watch(&self.descriptor, watch);
    }

    fn forget(&mut self, watch: i32) {
        if let Some(directory) = self.by_watch.remove(&watch)
            && self.by_path.get(&directory).is_some_and(|watched| watched.watch == watch)
        {
            self.by_path.remove(&directory);
        }
    }
}

fn notice(path: Relative, events: ReadFlags, cookie: u32) -> Notice {
    let is_directory = events.contains(ReadFlags::ISDIR);
    if events.contains(ReadFlags::MOVED_FROM) {
        Notice::Left { path, is_directory, cookie }
    } else if events.contains(ReadFlags::MOVED_TO) {
        Notice::Arrived { path, is_directory, cookie }
    } else if events.contains(ReadFlags::ATTRIB) {
        Notice::Attributes { path, is_directory }
    } else if !is_directory {
        Notice::File(path)
    } else if events.contains(ReadFlags::CREATE) {
        Notice::DirectoryAppeared(path)
    } else {
        Notice::DirectoryGone(path)
    }
}
