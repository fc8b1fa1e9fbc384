//! The reading end of the spool: batches of events that the server has not acknowledged.

use crate::blob_file::{self, SpooledBlob};
use crate::segment::{self, Segment};
use crate::{Context, Error, SpoolStream, record};
use atoll_core::event::{EventSource, kind};
use atoll_core::json::to_raw_json;
use atoll_core::time::{Clock, SystemClock};
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Extension of the next position while it is written.
const NEW_POSITION: &str = "ack-new";

/// Limits of one batch. A batch always has room for one event.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    pub max_events: usize,
    pub max_bytes: usize,
}

/// Events of one stream, keys `first` to `last` without a gap.
#[derive(Debug)]
pub struct SpooledBatch {
    pub stream: SpoolStream,
    pub first: i64,
    pub last: i64,
    pub events: Vec<Box<RawValue>>,
    /// The blobs that the events name.
    pub blobs: Vec<SpooledBlob>,
}

/// How much the server has acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpoolProgress {
    /// Last acknowledged key of the own stream.
    pub acked: i64,
    /// Number of unacknowledged events of earlier streams.
    pub older_unacked: i64,
}

#[derive(Debug)]
pub struct SpoolReader {
    dir: PathBuf,
    own: StreamProgress,
    /// Streams of earlier workers, oldest first.
    older: VecDeque<StreamProgress>,
    clock: SystemClock,
}

#[derive(Debug)]
struct StreamProgress {
    stream: SpoolStream,
    acked: i64,
    /// Last key on disk. For the own stream, the caller provides it.
    last: i64,
    cursor: Option<Cursor>,
}

/// Position of the record with the key `next`, if it exists.
#[derive(Debug)]
struct Cursor {
    segment: Segment,
    file: File,
    offset: u64,
    next: i64,
    /// Offset of the record before `next`.
    previous_offset: u64,
}

/// Events that the server has not acknowledged, as the uplink sends them.
pub trait EventQueue: Send {
    fn progress(&self) -> SpoolProgress;
    /// Reads the next events to send, earlier streams first. `durable` is the last key of the own stream on disk.
    fn next_batch(&mut self, durable: i64, limits: BatchLimits) -> Result<Option<SpooledBatch>, Error>;
    /// Records that the server has stored a stream up to `key`, and deletes those events.
    ///
    /// A lower key than before makes the queue send the later events again.
    fn acknowledge(&mut self, stream: SpoolStream, key: i64) -> Result<(), Error>;
    /// Deletes acknowledged segments of the own stream.
    ///
    /// A segment can be deleted only when there is a later one; the writer begins one when the disk is full.
    fn remove_sent_segments(&self) -> Result<(), Error> {
        Ok(())
    }
}

impl SpoolReader {
    pub(super) fn open(dir: &Path, own: SpoolStream) -> Result<Self, Error> {
        let mut older = VecDeque::new();
        for stream in segment::list_streams(dir)? {
            let last = segment::last_key(dir, stream)?;
            // Deleted events were acknowledged, even if the position file was lost.
            let deleted = segment::list_segments(dir, stream)?.first().map_or(0, |segment| segment.first - 1);
            let acked = read_position(dir, stream).max(deleted).clamp(0, last);
            older.push_back(StreamProgress { stream, acked, last, cursor: None });
        }
        let own = StreamProgress { stream: own, acked: 0, last: 0, cursor: None };
        let mut reader = Self { dir: dir.to_owned(), own, older, clock: SystemClock::start() };
        reader.remove_finished()?;
        Ok(reader)
    }

    pub const fn own_stream(&self) -> SpoolStream {
        self.own.stream
    }

    fn remove_acknowledged(&self, stream: SpoolStream, acked: i64) -> Result<(), Error> {
        blob_file::remove_blobs(&self.dir, stream, acked)?;
        for pair in segment::list_segments(&self.dir, stream)?.windows(2) {
            if pair[1].first <= acked + 1 {
                segment::remove_if_present(&pair[0].path)?;
            }
        }
        Ok(())
    }

    /// Removes the files of earlier streams that the server has completely.
    fn remove_finished(&mut self) -> Result<(), Error> {
        for track in self.older.iter().filter(|track| track.acked >= track.last) {
            for segment in segment::list_segments(&self.dir, track.stream)? {
                segment::remove_if_present(&segment.path)?;
            }
            // Also those whose events a killed worker did not write.
            blob_file::remove_blobs(&self.dir, track.stream, i64::MAX)?;
            remove_position(&self.dir, track.stream)?;
        }
        self.older.retain(|track| track.acked < track.last);
        Ok(())
    }
}

impl EventQueue for SpoolReader {
    fn progress(&self) -> SpoolProgress {
        let older_unacked = self.older.iter().map(|track| track.last - track.acked).sum();
        SpoolProgress { acked: self.own.acked, older_unacked }
    }

    fn next_batch(&mut self, durable: i64, limits: BatchLimits) -> Result<Option<SpooledBatch>, Error> {
        let track = match self.older.front_mut() {
            Some(track) => track,
            None => {
                self.own.last = durable;
                &mut self.own
            }
        };
        let first = track.acked + 1;
        let (mut events, mut bytes, mut key) = (Vec::new(), 0, first);
        while key <= track.last && events.len() < limits.max_events {
            let event = match track.read_event(&self.dir, key)? {
                Some(event) => event,
                None => {
                    tracing::error!(stream = %track.stream, key, "the spool has lost this event");
                    lost_event(track.stream, key, &self.clock)
                }
            };
            bytes += event.get().len() + 1;
            if !events.is_empty() && bytes > limits.max_bytes {
                track.unread_event(key);
                break;
            }
            events.push(event);
            key += 1;
        }
        if events.is_empty() {
            return Ok(None);
        }
        let (stream, last) = (track.stream, key - 1);
        let blobs = blob_file::list_blobs(&self.dir, stream)?.into_iter();
        let blobs = blobs.filter(|(key, _)| (first..=last).contains(key)).map(|(_, blob)| blob).collect();
        Ok(Some(SpooledBatch { stream, first, last, events, blobs }))
    }

    fn acknowledge(&mut self, stream: SpoolStream, key: i64) -> Result<(), Error> {
        let tracks = std::iter::once(&mut self.own).chain(&mut self.older);
        let Some(track) = tracks.into_iter().find(|track| track.stream == stream) else { return Ok(()) };
        track.acked = key.clamp(0, track.last);
        if track.cursor.as_ref().is_some_and(|cursor| cursor.next != track.acked + 1) {
            track.cursor = None;
        }
        let acked = track.acked;
        // Free space first: on a full disk, writing the position fails, which does no harm.
        self.remove_acknowledged(stream, acked)?;
        write_position(&self.dir, stream, acked)?;
        self.remove_finished()
    }

    fn remove_sent_segments(&self) -> Result<(), Error> {
        self.remove_acknowledged(self.own.stream, self.own.acked)
    }
}

impl StreamProgress {
    /// Reads the event with the given key, if the spool still has it.
    fn read_event(&mut self, dir: &Path, key: i64) -> Result<Option<Box<RawValue>>, Error> {
        let mut cursor = match self.cursor.take().filter(|cursor| cursor.next == key) {
            Some(cursor) => cursor,
            None => match Cursor::find_key(dir, self.stream, key)? {
                Some(cursor) => cursor,
                None => return Ok(None),
            },
        };
        let found = loop {
            cursor.previous_offset = cursor.offset;
            match record::read_record(&cursor.file, cursor.offset).context("read", &cursor.segment.path)? {
                Some(record) if record.key < key => cursor.offset += record.stored_bytes(),
                Some(record) if record.key == key => {
                    cursor.offset += record.stored_bytes();
                    break String::from_utf8(record.json).ok().and_then(|json| RawValue::from_string(json).ok());
                }
                Some(_) => break None,
                // End of the segment: rotation or a torn write.
                None => match cursor.next_segment(dir, self.stream)? {
                    Some(following) if following.segment.first <= key => cursor = following,
                    Some(_) | None => break None,
                },
            }
        };
        cursor.next = key + 1;
        self.cursor = Some(cursor);
        Ok(found)
    }

    /// Undoes the last `read_event`.
    fn unread_event(&mut self, key: i64) {
        if let Some(cursor) = &mut self.cursor {
            cursor.offset = cursor.previous_offset;
            cursor.next = key;
        }
    }
}

impl Cursor {
    fn open_segment(segment: Segment, next: i64) -> Result<Self, Error> {
        let file = File::open(&segment.path).context("open", &segment.path)?;
        Ok(Self { segment, file, offset: 0, next, previous_offset: 0 })
    }

    fn find_key(dir: &Path, stream: SpoolStream, key: i64) -> Result<Option<Self>, Error> {
        let segments = segment::list_segments(dir, stream)?;
        let segment = segments.into_iter().rfind(|segment| segment.first <= key);
        segment.map(|segment| Self::open_segment(segment, key)).transpose()
    }

    fn next_segment(&self, dir: &Path, stream: SpoolStream) -> Result<Option<Self>, Error> {
        let segments = segment::list_segments(dir, stream)?;
        let segment = segments.into_iter().find(|segment| segment.first > self.segment.first);
        segment.map(|segment| Self::open_segment(segment, self.next)).transpose()
    }
}

/// Replaces an event that the disk lost, so that the stream has no gap and the log shows the loss.
fn lost_event(stream: SpoolStream, key: i64, clock: &SystemClock) -> Box<RawValue> {
    to_raw_json(&json!({
        "key": key,
        "type": kind::WORKER_LOST,
        "source": EventSource::Worker,
        "at": clock.now(),
        "data": {"stream": stream.id, "key": key},
    }))
}

fn position_path(dir: &Path, stream: SpoolStream) -> PathBuf {
    dir.join(format!("{stream}.ack"))
}

/// Reads the last key that the server has stored; 0 if the file is missing or damaged.
fn read_position(dir: &Path, stream: SpoolStream) -> i64 {
    fs::read_to_string(position_path(dir, stream)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Writes the last stored key without a sync: an older position only causes duplicates, which the server ignores.
fn write_position(dir: &Path, stream: SpoolStream, key: i64) -> Result<(), Error> {
    let path = position_path(dir, stream);
    let new = path.with_extension(NEW_POSITION);
    fs::write(&new, format!("{key}\n")).context("write", &new)?;
    fs::rename(&new, &path).context("rename", &new)
}

fn remove_position(dir: &Path, stream: SpoolStream) -> Result<(), Error> {
    let path = position_path(dir, stream);
    segment::remove_if_present(&path.with_extension(NEW_POSITION))?;
    segment::remove_if_present(&path)
}
