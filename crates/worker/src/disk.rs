//! The one thread that writes to disk. Everything that waits is written together and synced once;
//! a disk that is full is tried again every second, for as long as it takes.

use crate::input::Event;
use crate::journal::{self, Answer, Record};
use crate::link::chain;
use crate::spool::{Error, Writer};
use atoll_protocol::LeasedMessage;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What is synced at once, at most and about.
const GROUP: usize = 2 * 1024 * 1024;
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub enum Job {
    /// Events with the keys from `first` on.
    Events { first: i64, events: Vec<Event> },
    /// A line of the journal, and what it allows once it is on disk.
    Journal { record: Record, then: Then },
}

/// What happens after a record is on disk.
#[derive(Debug)]
pub enum Then {
    HandOver(Box<LeasedMessage>),
    Answer(Answer),
    Nothing,
}

#[derive(Debug)]
pub enum Done {
    /// Events are on disk: those of several jobs at once or, while it is nearly full, part of one's.
    Events {
        first: i64,
        last: i64,
    },
    Journal(Then),
    /// Nothing was done: the disk takes nothing now, and is tried again.
    Full,
}

/// The disk as the dispatcher sees it.
#[derive(Debug)]
pub struct Disk {
    jobs: UnboundedSender<Job>,
    done: UnboundedReceiver<Done>,
    /// The last keys of events that are not done, job by job.
    events: VecDeque<i64>,
    /// How many records are not done.
    records: usize,
}

impl Disk {
    pub fn start(writer: Writer, journal: journal::File) -> std::io::Result<Self> {
        let (jobs, queue) = unbounded_channel();
        let (results, done) = unbounded_channel();
        let mut thread = Thread { writer, journal, queue, results };
        std::thread::Builder::new().name("disk".into()).spawn(move || thread.run())?;
        Ok(Self { jobs, done, events: VecDeque::new(), records: 0 })
    }

    pub fn give(&mut self, job: Job) {
        match &job {
            Job::Events { first, events } => {
                self.events.push_back(first + i64::try_from(events.len()).unwrap_or(i64::MAX - first) - 1);
            }
            Job::Journal { .. } => self.records += 1,
        }
        // The thread ends only when this end is dropped.
        drop(self.jobs.send(job));
    }

    /// How many jobs are not done.
    pub fn waiting(&self) -> usize {
        self.events.len() + self.records
    }

    /// What is done next. Events follow each other, and so do records.
    pub async fn done(&mut self) -> Done {
        let Some(done) = self.done.recv().await else { return std::future::pending().await };
        match &done {
            Done::Events { last, .. } => {
                while self.events.front().is_some_and(|job| job <= last) {
                    self.events.pop_front();
                }
            }
            Done::Journal(_) => self.records = self.records.saturating_sub(1),
            Done::Full => {}
        }
        done
    }
}

struct Thread {
    writer: Writer,
    journal: journal::File,
    queue: UnboundedReceiver<Job>,
    results: UnboundedSender<Done>,
}

impl Thread {
    fn run(&mut self) {
        while let Some(job) = self.queue.blocking_recv() {
            let mut then = Vec::new();
            self.take(job, &mut then);
            while self.writer.pending_bytes() < GROUP
                && let Ok(job) = self.queue.try_recv()
            {
                self.take(job, &mut then);
            }
            // If nobody listens any more, the worker is going, and what follows is of no use.
            while let Some(keys) = self.insist(|thread| thread.writer.commit()) {
                drop(self.results.send(Done::Events { first: *keys.start(), last: *keys.end() }));
            }
            self.insist(|thread| thread.journal.commit());
            for then in then {
                drop(self.results.send(Done::Journal(then)));
            }
        }
    }

    fn take(&mut self, job: Job, then_all: &mut Vec<Then>) {
        match job {
            Job::Events { first, events } => {
                for (key, event) in (first..).zip(events) {
                    self.writer.push(key, event);
                }
            }
            Job::Journal { record, then } => {
                self.journal.push(&record);
                then_all.push(then);
            }
        }
    }

    fn insist<T>(&mut self, mut commit: impl FnMut(&mut Self) -> Result<T, Error>) -> T {
        loop {
            match commit(self) {
                Ok(done) => return done,
                Err(error) => {
                    tracing::error!(error = chain(&error), "can't write to the spool; trying again every second");
                    drop(self.results.send(Done::Full));
                    std::thread::sleep(RETRY);
                }
            }
        }
    }
}
