//! The writing end of the spool: groups events and syncs them to disk.

use crate::blob_file::{self, MAX_BLOBS};
use crate::{Context, Error, SpoolStream, record, segment, sync_parent};
use atoll_protocol::{BatchEvent, EventBlob};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Buffer capacity that the writer keeps between commits.
const KEPT_BUFFER_BYTES: usize = 1024 * 1024;

#[derive(Debug)]
pub struct SpoolWriter {
    dir: PathBuf,
    stream: SpoolStream,
    segment_bytes: u64,
    /// Limit of all segments and blobs together; checked when a segment begins and before each blob.
    max_bytes: u64,
    open: Option<OpenSegment>,
    /// Records that are not on disk yet, the end of each, and the key of the first.
    pending: Vec<u8>,
    ends: VecDeque<usize>,
    first_pending: i64,
    /// Blobs that are not on disk yet, with the keys of their events.
    pending_blobs: VecDeque<(i64, EventBlob)>,
    /// Number of records per write. Small while the disk is nearly full.
    records_per_write: usize,
}

#[derive(Debug)]
struct OpenSegment {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl SpoolWriter {
    pub(super) const fn new(dir: PathBuf, stream: SpoolStream, segment_bytes: u64) -> Self {
        Self {
            dir,
            stream,
            segment_bytes,
            max_bytes: u64::MAX,
            open: None,
            pending: Vec::new(),
            ends: VecDeque::new(),
            first_pending: 0,
            pending_blobs: VecDeque::new(),
            records_per_write: usize::MAX,
        }
    }

    /// Limits the size of all segments and blobs together.
    pub const fn set_max_bytes(&mut self, bytes: u64) {
        self.max_bytes = bytes;
    }

    /// Adds an event for the next `commit`. Keys must be consecutive.
    pub fn push(&mut self, event: &BatchEvent) {
        self.push_record(event.key, |buffer| {
            // Serializing this struct into memory cannot fail.
            drop(serde_json::to_writer(buffer, event));
        });
    }

    /// Adds a blob that the event with this key names. `commit` syncs it before the event.
    pub fn push_blob(&mut self, key: i64, blob: EventBlob) {
        self.pending_blobs.push_back((key, blob));
    }

    pub(super) fn push_record(&mut self, key: i64, write: impl FnOnce(&mut Vec<u8>)) {
        if self.pending.is_empty() {
            self.first_pending = key;
        }
        record::append_record(&mut self.pending, key, write);
        self.ends.push_back(self.pending.len());
    }

    pub fn pending_bytes(&self) -> usize {
        self.pending.len() + self.pending_blobs.iter().map(|(_, blob)| blob.content.len()).sum::<usize>()
    }

    /// Syncs pending events to disk and returns their keys.
    ///
    /// On a nearly full disk it writes only the first few. `None` means that nothing is pending.
    pub fn commit(&mut self) -> Result<Option<RangeInclusive<i64>>, Error> {
        loop {
            let count = self.ends.len().min(self.records_per_write);
            let Some(end) = count.checked_sub(1).and_then(|last| self.ends.get(last)).copied() else {
                return Ok(None);
            };
            let last = self.first_pending + i64::try_from(count).unwrap_or(0) - 1;
            match self.write_blobs(last).and_then(|()| self.write(end)) {
                Ok(()) => {
                    self.records_per_write = self.records_per_write.saturating_mul(2);
                    return Ok(Some(self.remove_pending(count, end)));
                }
                Err(Error::Io { source, .. }) if is_full(&source) && count > 1 => {
                    self.records_per_write = count / 2;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the blobs of the pending events up to `last`.
    fn write_blobs(&mut self, last: i64) -> Result<(), Error> {
        while let Some((key, blob)) = self.pending_blobs.front().filter(|(key, _)| *key <= last) {
            let size = segment::measure_spool(&self.dir)?;
            if size.bytes >= self.max_bytes || size.blobs >= MAX_BLOBS {
                return Err(io::Error::from(io::ErrorKind::QuotaExceeded)).context("add to", &self.dir);
            }
            blob_file::write_blob(&self.dir, self.stream, *key, blob)?;
            self.pending_blobs.pop_front();
        }
        Ok(())
    }

    /// Writes the first `end` pending bytes.
    ///
    /// After an error everything stays pending and goes into a new segment: after a failed sync, the contents of the
    /// old one are unknown.
    fn write(&mut self, end: usize) -> Result<(), Error> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.begin_segment()?,
        };
        if let Err(error) = open.file.write_all(&self.pending[..end]).and_then(|()| open.file.sync_data()) {
            // Frees the space that the failed write used; a reader ignores a torn end anyway.
            drop(open.file.set_len(open.bytes));
            return Err(error).context("write", &open.path);
        }
        open.bytes += end as u64;
        self.open = Some(open).filter(|open| open.bytes < self.segment_bytes);
        Ok(())
    }

    fn remove_pending(&mut self, count: usize, end: usize) -> RangeInclusive<i64> {
        let first = self.first_pending;
        self.pending.drain(..end);
        self.pending.shrink_to(KEPT_BUFFER_BYTES);
        self.ends.drain(..count);
        self.ends.iter_mut().for_each(|later| *later -= end);
        self.first_pending += i64::try_from(count).unwrap_or(0);
        first..=self.first_pending - 1
    }

    fn begin_segment(&self) -> Result<OpenSegment, Error> {
        if self.max_bytes != u64::MAX && segment::measure_spool(&self.dir)?.bytes >= self.max_bytes {
            return Err(io::Error::from(io::ErrorKind::QuotaExceeded)).context("add to", &self.dir);
        }
        let path = segment::segment_path(&self.dir, self.stream, self.first_pending);
        // An existing file of that name is from a failed commit.
        let file = File::create(&path).context("create", &path)?;
        sync_parent(&path)?;
        Ok(OpenSegment { file, path, bytes: 0 })
    }

    #[cfg(test)]
    pub(super) fn fail_next_commit(&mut self) {
        let path = PathBuf::from("/dev/null");
        let unwritable = File::open(&path).unwrap();
        self.open = Some(OpenSegment { file: unwritable, path, bytes: 0 });
    }
}

/// The disk is full, or the spool is at its limit.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
