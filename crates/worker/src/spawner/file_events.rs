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

/// Maximum length of a line.
pub const MAX_WATCH_LINE_BYTES: usize = 8 << 20;

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
                self.unsent = encode_line(event);
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

/// Encodes an event as a line. Truncates a diff that escaping makes too long.
fn encode_line(mut event: WatchEvent) -> Vec<u8> {
    loop {
        // Serializing this enum into memory cannot fail.
        let mut line = serde_json::to_vec(&event).unwrap_or_default();
        line.push(b'\n');
        match &mut event {
            WatchEvent::Change(change) if line.len() > MAX_WATCH_LINE_BYTES => {
                let Some(diff) = &mut change.full_diff else { return line };
                change.full_diff_bytes.get_or_insert(diff.len() as u64);
                change.full_diff_truncated = true;
                diff.truncate(diff.floor_char_boundary(diff.len() / 2));
            }
            _ => return line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_watch::ChangeType;

    #[test]
    fn truncates_a_diff_that_grows_by_escaping() {
        let change = Change {
            file_path: "a".to_owned(),
            change_type: ChangeType::Modified,
            old_path: None,
            lines_added: 1,
            lines_removed: 0,
            diff_preview: String::new(),
            full_diff: Some("\u{1}".repeat(2_000_000)),
            full_diff_truncated: false,
            full_diff_bytes: None,
            binary: false,
            size: None,
            sha256: None,
        };
        let line = encode_line(WatchEvent::Change(Box::new(change)));
        assert!(line.len() <= MAX_WATCH_LINE_BYTES);
        let WatchEvent::Change(change) = serde_json::from_slice(&line).unwrap() else { panic!() };
        assert_eq!((change.full_diff_truncated, change.full_diff_bytes), (true, Some(2_000_000)));
    }
}
