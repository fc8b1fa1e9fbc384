//! The watching of files on its way to the worker: lines of JSON in a pipe. Nothing new is looked at while the pipe is
//! full, so that a slow worker costs no memory here.

use crate::files::{Change, Options, Watch};
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
pub enum Seen {
    /// What changes from here on is seen.
    Watching,
    Change(Box<Change>),
    /// Everything that was to be seen when it was asked for has been told.
    Flushed(u64),
    /// It can't be done, and why.
    Failed(String),
}

pub(super) struct Watching {
    watch: Option<Watch>,
    pipe: OwnedFd,
    /// What is to be told, and the beginning of it as it is written down: the pipe has not taken that yet.
    waiting: VecDeque<Seen>,
    unsent: Vec<u8>,
    /// Nothing more is looked at; what is left is told.
    finished: bool,
    broken: bool,
}

impl Watching {
    pub(super) fn start(root: &Path, pipe: OwnedFd) -> Self {
        let mut watching =
            Self { watch: None, pipe, waiting: VecDeque::new(), unsent: Vec::new(), finished: false, broken: false };
        let made = rustix::io::ioctl_fionbio(&watching.pipe, true).map_err(io::Error::from);
        match made.and_then(|()| Watch::new(root, Options::default())) {
            Ok(watch) => {
                watching.watch = Some(watch);
                watching.say(Seen::Watching);
            }
            Err(error) => watching.say(Seen::Failed(format!("failed to watch {}: {error}", root.display()))),
        }
        watching
    }

    pub(super) fn flush(&mut self, number: u64) {
        if let Some(watch) = &mut self.watch {
            let changes = watch.flush();
            self.tell(changes);
        }
        self.say(Seen::Flushed(number));
    }

    /// What to wait for: room in the pipe, or something to see.
    pub(super) fn wanted(&self) -> Option<PollFd<'_>> {
        if !self.unsent.is_empty() {
            return Some(PollFd::new(&self.pipe, PollFlags::OUT));
        }
        let descriptor = self.watch.as_ref()?.descriptor()?;
        Some(PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
    }

    /// When there is something to see without that.
    pub(super) fn due(&self) -> Option<Instant> {
        self.watch.as_ref().filter(|_| self.unsent.is_empty())?.due()
    }

    /// Something of this has come.
    pub(super) fn go_on(&mut self) {
        self.write();
        if self.unsent.is_empty()
            && let Some(watch) = &mut self.watch
        {
            let changes = watch.changes();
            self.tell(changes);
        }
    }

    pub(super) fn finish(&mut self) {
        self.watch = None;
        self.finished = true;
    }

    pub(super) const fn is_finished(&self) -> bool {
        self.finished
    }

    /// There is nothing more to tell, or nobody reads any more.
    pub(super) const fn is_over(&self) -> bool {
        self.broken || (self.finished && self.unsent.is_empty())
    }

    fn tell(&mut self, changes: Vec<Change>) {
        self.waiting.extend(changes.into_iter().map(|change| Seen::Change(Box::new(change))));
        self.write();
    }

    fn say(&mut self, seen: Seen) {
        self.waiting.push_back(seen);
        self.write();
    }

    fn write(&mut self) {
        loop {
            if self.unsent.is_empty() {
                let Some(seen) = self.waiting.pop_front() else { return };
                // Writing such an enum into memory can't fail.
                drop(serde_json::to_writer(&mut self.unsent, &seen));
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
