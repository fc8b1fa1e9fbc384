//! The disk thread: writes and syncs waiting jobs in groups, and retries a full disk every second without end. A worker
//! without a disk keeps its events in memory.

use crate::link::chain;
use crate::program::input::Event;
use atoll_protocol::LeasedMessage;
use atoll_spool::journal::{Acknowledgement, JournalFile, JournalRecord};
use atoll_spool::{Error, MemoryQueue, SpoolWriter};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Approximate size of a group that is synced at once.
const MAX_GROUP_BYTES: usize = 2 * 1024 * 1024;
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub enum DiskJob {
    /// Events with consecutive keys, starting at `first`.
    Events { first: i64, events: Vec<Event> },
    /// A record of the delivery journal, and its effect once it is on disk.
    Journal { record: JournalRecord, after: AfterRecord },
}

/// The effect of a journal record that is on disk.
#[derive(Debug)]
pub enum AfterRecord {
    HandOver(Box<LeasedMessage>),
    Send(Acknowledgement),
    Nothing,
}

#[derive(Debug)]
pub enum DiskResult {
    /// Events are on disk: those of several jobs or, on a nearly full disk, part of one job.
    Events {
        first: i64,
        last: i64,
    },
    Journal(AfterRecord),
    /// The disk is full; the thread retries.
    Full,
}

#[derive(Debug)]
enum Storage {
    Thread(UnboundedSender<DiskJob>),
    Memory(MemoryQueue, UnboundedSender<DiskResult>),
}

/// The dispatcher's handle of the disk.
#[derive(Debug)]
pub struct Disk {
    storage: Storage,
    results: UnboundedReceiver<DiskResult>,
    /// The last key of each waiting event job.
    events: VecDeque<i64>,
    /// Number of waiting records.
    records: usize,
}

impl Disk {
    pub fn start(writer: SpoolWriter, journal: JournalFile) -> std::io::Result<Self> {
        let (jobs, queue) = unbounded_channel();
        let (sender, results) = unbounded_channel();
        let mut thread = DiskThread { writer, journal, queue, results: sender };
        std::thread::Builder::new().name("disk".into()).spawn(move || thread.run())?;
        Ok(Self { storage: Storage::Thread(jobs), results, events: VecDeque::new(), records: 0 })
    }

    /// A disk without a thread: a job is done when it is submitted, and the journal is not stored.
    pub fn in_memory(queue: MemoryQueue) -> Self {
        let (sender, results) = unbounded_channel();
        Self { storage: Storage::Memory(queue, sender), results, events: VecDeque::new(), records: 0 }
    }

    pub fn submit(&mut self, job: DiskJob) {
        match &job {
            DiskJob::Events { first, events } => self.events.push_back(last_key(*first, events)),
            DiskJob::Journal { .. } => self.records += 1,
        }
        // Sending never fails: the thread ends only when this end is dropped.
        match (&self.storage, job) {
            (Storage::Thread(jobs), job) => drop(jobs.send(job)),
            (Storage::Memory(queue, results), DiskJob::Events { first, events }) => {
                let last = last_key(first, &events);
                for (key, event) in (first..).zip(events) {
                    let (event, blob) = event.into_batch_event(key);
                    queue.push(&event, blob);
                }
                drop(results.send(DiskResult::Events { first, last }));
            }
            (Storage::Memory(_, results), DiskJob::Journal { after, .. }) => {
                drop(results.send(DiskResult::Journal(after)));
            }
        }
    }

    /// Number of waiting jobs.
    pub fn waiting(&self) -> usize {
        self.events.len() + self.records
    }

    /// Returns the next result. Event results are in order, and so are record results.
    pub async fn next_result(&mut self) -> DiskResult {
        let Some(result) = self.results.recv().await else { return std::future::pending().await };
        match &result {
            DiskResult::Events { last, .. } => {
                while self.events.front().is_some_and(|job| job <= last) {
                    self.events.pop_front();
                }
            }
            DiskResult::Journal(_) => self.records = self.records.saturating_sub(1),
            DiskResult::Full => {}
        }
        result
    }
}

fn last_key(first: i64, events: &[Event]) -> i64 {
    first + i64::try_from(events.len()).unwrap_or(i64::MAX - first) - 1
}

struct DiskThread {
    writer: SpoolWriter,
    journal: JournalFile,
    queue: UnboundedReceiver<DiskJob>,
    results: UnboundedSender<DiskResult>,
}

impl DiskThread {
    fn run(&mut self) {
        while let Some(job) = self.queue.blocking_recv() {
            let mut effects = Vec::new();
            self.add_to_group(job, &mut effects);
            while self.writer.pending_bytes() < MAX_GROUP_BYTES
                && let Ok(job) = self.queue.try_recv()
            {
                self.add_to_group(job, &mut effects);
            }
            // Sending fails only while the worker exits; then results are useless.
            while let Some(keys) = self.retry_until_stored(|thread| thread.writer.commit()) {
                drop(self.results.send(DiskResult::Events { first: *keys.start(), last: *keys.end() }));
            }
            self.retry_until_stored(|thread| thread.journal.commit());
            for after in effects {
                drop(self.results.send(DiskResult::Journal(after)));
            }
        }
    }

    fn add_to_group(&mut self, job: DiskJob, effects: &mut Vec<AfterRecord>) {
        match job {
            DiskJob::Events { first, events } => {
                for (key, event) in (first..).zip(events) {
                    let (event, blob) = event.into_batch_event(key);
                    self.writer.push(&event);
                    if let Some(blob) = blob {
                        self.writer.push_blob(key, blob);
                    }
                }
            }
            DiskJob::Journal { record, after } => {
                self.journal.push(&record);
                effects.push(after);
            }
        }
    }

    fn retry_until_stored<T>(&mut self, mut commit: impl FnMut(&mut Self) -> Result<T, Error>) -> T {
        loop {
            match commit(self) {
                Ok(done) => return done,
                Err(error) => {
                    tracing::error!(error = chain(&error), "failed to write to the spool; retrying every second");
                    drop(self.results.send(DiskResult::Full));
                    std::thread::sleep(RETRY_INTERVAL);
                }
            }
        }
    }
}
