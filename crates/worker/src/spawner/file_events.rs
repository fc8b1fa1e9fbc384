//! Streams file changes to the worker as lines of JSON in a pipe. While the pipe is full it reads no new changes, so
//! that a slow worker costs no memory.

use atoll_watch::{Change, Options, Watcher};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// One line in the pipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchEvent {
    /// The first scan is done: later changes are reported.
    Watching,
    Change(Box<Change>),
    /// All changes up to the flush request are reported.
    Flushed(u64),
    /// Watching failed, and why.
    Failed(String),
}

pub(super) struct WatchStream {
    watch: Option<Watcher>,
    pipe: OwnedFd,
    /// Events that wait, and the serialized one that the pipe has not accepted yet.
    waiting: VecDeque<WatchEvent>,
    unsent: Vec<u8>,
    /// Watching has stopped; waiting events are still sent.
    finished: bool,
    broken: bool,
}

impl WatchStream {
    pub(super) fn start(root: &Path, pipe: OwnedFd) -> Self {
        let mut watching =
            Self { watch: None, pipe, waiting: VecDeque::new(), unsent: Vec::new(), finished: false, broken: false };
        let result = rustix::io::ioctl_fionbio(&watching.pipe, true).map_err(io::Error::from);
        match result.and_then(|()| Watcher::new(root, Options::default())) {
            Ok(watch) => {
                watching.watch = Some(watch);
                watching.queue_event(WatchEvent::Watching);
            }
            Err(error) => {
                watching.queue_event(WatchEvent::Failed(format!("failed to watch {}: {error}", root.display())))
            }
        }
        watching
    }

    pub(super) fn flush_changes(&mut self, number: u64) {
        if let Some(watch) = &mut self.watch {
            let changes = watch.take_all();
            self.queue_changes(changes);
        }
        self.queue_event(WatchEvent::Flushed(number));
    }

    /// Descriptor to poll: for room in the pipe, or for changes.
    pub(super) fn poll_fd(&self) -> Option<PollFd<'_>> {
        if !self.unsent.is_empty() {
            return Some(PollFd::new(&self.pipe, PollFlags::OUT));
        }
        let descriptor = self.watch.as_ref()?.inotify_fd()?;
        Some(PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
    }

    /// Time of the next settled change.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.watch.as_ref().filter(|_| self.unsent.is_empty())?.next_deadline()
    }

    /// Handles a ready descriptor or deadline.
    pub(super) fn advance(&mut self) {
        self.write_queued();
        if self.unsent.is_empty()
            && let Some(watch) = &mut self.watch
        {
            let changes = watch.take_settled();
            self.queue_changes(changes);
        }
    }

    pub(super) fn finish(&mut self) {
        self.watch = None;
        self.finished = true;
    }

    pub(super) const fn is_finished(&self) -> bool {
        self.finished
    }

    /// True if everything is sent or the reader is gone.
    pub(super) const fn is_done(&self) -> bool {
        self.broken || (self.finished && self.unsent.is_empty())
    }

    fn queue_changes(&mut self, changes: Vec<Change>) {
        self.waiting.extend(changes.into_iter().map(|change| WatchEvent::Change(Box::new(change))));
        self.write_queued();
    }

    fn queue_event(&mut self, event: WatchEvent) {
        self.waiting.push_back(event);
        self.write_queued();
    }

    fn write_queued(&mut self) {
        loop {
            if self.unsent.is_empty() {
                let Some(event) = self.waiting.pop_front() else { return };
                // Serializing this enum into memory cannot fail.
                drop(serde_json::to_writer(&mut self.unsent, &event));
                self.unsent.push(b'\n');
            }
            match rustix::io::write(&self.pipe, &self.unsent) {
                Ok(length) => drop(self.unsent.drain(..length)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.broken = true;
                    return;
                }
            }
        }
    }
}
