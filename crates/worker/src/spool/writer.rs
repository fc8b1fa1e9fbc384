//! The end of the spool that appends.

use super::{Context, Error, Stream, record, segment, sync_parent};
use crate::input::Event;
use atoll_protocol::BatchEvent;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// A buffer that grew beyond this is given back.
const BUFFER: usize = 1024 * 1024;

#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    stream: Stream,
    segment_bytes: u64,
    /// What all segments may take before another one is begun.
    most: u64,
    open: Option<Open>,
    /// Records that are not on disk yet, where each of them ends, and the key of the first.
    pending: Vec<u8>,
    ends: VecDeque<usize>,
    first_pending: i64,
    /// How many records are written at once: few while the disk is nearly full.
    at_once: usize,
}

#[derive(Debug)]
struct Open {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Writer {
    pub(super) const fn new(dir: PathBuf, stream: Stream, segment_bytes: u64) -> Self {
        Self {
            dir,
            stream,
            segment_bytes,
            most: u64::MAX,
            open: None,
            pending: Vec::new(),
            ends: VecDeque::new(),
            first_pending: 0,
            at_once: usize::MAX,
        }
    }

    /// From now on no segment is begun when all of them take so much.
    pub const fn hold_at_most(&mut self, bytes: u64) {
        self.most = bytes;
    }

    /// Takes an event to be written by the next `commit`. Keys follow each other.
    pub fn push(&mut self, key: i64, event: Event) {
        let event = BatchEvent {
            key,
            event_type: event.event_type,
            source: event.source,
            at: event.at,
            turn: event.turn,
            data: event.data,
        };
        self.push_record(key, |buffer| {
            // Writing such a struct into memory can't fail.
            drop(serde_json::to_writer(buffer, &event));
        });
    }

    pub(super) fn push_record(&mut self, key: i64, write: impl FnOnce(&mut Vec<u8>)) {
        if self.pending.is_empty() {
            self.first_pending = key;
        }
        record::encode(&mut self.pending, key, write);
        self.ends.push_back(self.pending.len());
    }

    pub const fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// Brings what was pushed to disk, and returns the keys that are there now: all of them, or on
    /// a disk that is nearly full the first few. Nothing is left when it returns nothing.
    pub fn commit(&mut self) -> Result<Option<RangeInclusive<i64>>, Error> {
        loop {
            let count = self.ends.len().min(self.at_once);
            let Some(end) = count.checked_sub(1).and_then(|last| self.ends.get(last)).copied() else {
                return Ok(None);
            };
            match self.write(end) {
                Ok(()) => {
                    self.at_once = self.at_once.saturating_mul(2);
                    return Ok(Some(self.written(count, end)));
                }
                Err(Error::Io { source, .. }) if is_full(&source) && count > 1 => {
                    self.at_once = count / 2;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the first bytes of what is pending. After an error all of it is pending still, and goes
    /// into a new segment: after a failed sync nobody can say what the old one holds.
    fn write(&mut self, end: usize) -> Result<(), Error> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.begin_segment()?,
        };
        if let Err(error) = open.file.write_all(&self.pending[..end]).and_then(|()| open.file.sync_data()) {
            // Gives back what the failed write took of a full disk; a torn end is passed over anyway.
            drop(open.file.set_len(open.bytes));
            return Err(error).context("write", &open.path);
        }
        open.bytes += end as u64;
        self.open = Some(open).filter(|open| open.bytes < self.segment_bytes);
        Ok(())
    }

    fn written(&mut self, count: usize, end: usize) -> RangeInclusive<i64> {
        let first = self.first_pending;
        self.pending.drain(..end);
        self.pending.shrink_to(BUFFER);
        self.ends.drain(..count);
        self.ends.iter_mut().for_each(|later| *later -= end);
        self.first_pending += i64::try_from(count).unwrap_or(0);
        first..=self.first_pending - 1
    }

    fn begin_segment(&self) -> Result<Open, Error> {
        if self.most != u64::MAX && segment::bytes(&self.dir)? >= self.most {
            return Err(io::Error::from(io::ErrorKind::QuotaExceeded)).context("hold any more in", &self.dir);
        }
        let path = segment::segment_path(&self.dir, self.stream, self.first_pending);
        // One of that name can only be left from a commit that failed.
        let file = File::create(&path).context("make", &path)?;
        sync_parent(&path)?;
        Ok(Open { file, path, bytes: 0 })
    }

    #[cfg(test)]
    pub(super) fn fail_next_commit(&mut self) {
        let path = PathBuf::from("/dev/null");
        let unwritable = File::open(&path).unwrap();
        self.open = Some(Open { file: unwritable, path, bytes: 0 });
    }
}

/// The disk takes no more, or this worker may not have more of it.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
