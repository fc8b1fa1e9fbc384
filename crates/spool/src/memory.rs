//! A queue of events in memory, for workers that the server does not outlive.

use crate::blob_file::SpooledBlob;
use crate::reader::{BatchLimits, EventQueue, SpoolProgress, SpooledBatch};
use crate::{Error, SpoolStream};
use atoll_protocol::{BatchEvent, EventBlob};
use serde_json::value::{RawValue, to_raw_value};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Events of one stream. Cheap to clone: the disk, the uplink and the owner share the events.
#[derive(Debug, Clone)]
pub struct MemoryQueue {
    stream: SpoolStream,
    unsent: Arc<Mutex<UnsentEvents>>,
}

#[derive(Debug, Default)]
struct UnsentEvents {
    acked: i64,
    /// The events after `acked`.
    events: VecDeque<(Box<RawValue>, Option<SpooledBlob>)>,
}

impl MemoryQueue {
    pub fn new(stream: SpoolStream) -> Self {
        Self { stream, unsent: Arc::default() }
    }

    /// Adds an event. Keys must be consecutive.
    pub fn push(&self, event: &BatchEvent, blob: Option<EventBlob>) {
        let blob = blob.map(SpooledBlob::in_memory);
        // Serialising an event cannot fail.
        self.unsent().events.extend(to_raw_value(event).map(|event| (event, blob)));
    }

    fn unsent(&self) -> MutexGuard<'_, UnsentEvents> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventQueue for MemoryQueue {
    fn progress(&self) -> SpoolProgress {
        SpoolProgress { acked: self.unsent().acked, older_unacked: 0 }
    }

    fn next_batch(&mut self, durable: i64, limits: BatchLimits) -> Result<Option<SpooledBatch>, Error> {
        let unsent = self.unsent();
        let durable = usize::try_from(durable - unsent.acked).unwrap_or(0);
        let mut bytes = 0;
        let fitting =
            unsent.events.iter().take(durable.min(limits.max_events)).enumerate().take_while(|(index, (event, _))| {
                bytes += event.get().len() + 1;
                *index == 0 || bytes <= limits.max_bytes
            });
        let (events, blobs): (Vec<_>, Vec<_>) = fitting.map(|(_, event)| event.clone()).unzip();
        let (first, count) = (unsent.acked + 1, i64::try_from(events.len()).unwrap_or(0));
        let (last, blobs) = (unsent.acked + count, blobs.into_iter().flatten().collect());
        Ok((count > 0).then_some(SpooledBatch { stream: self.stream, first, last, events, blobs }))
    }

    fn acknowledge(&mut self, _: SpoolStream, key: i64) -> Result<(), Error> {
        let mut unsent = self.unsent();
        let count = usize::try_from(key - unsent.acked).unwrap_or(0).min(unsent.events.len());
        unsent.events.drain(..count);
        unsent.acked += i64::try_from(count).unwrap_or(0);
        Ok(())
    }
}
