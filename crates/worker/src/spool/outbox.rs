//! The end of the spool that reads back, in batches, what the server does not have yet.

use super::segment::{self, Segment};
use super::{Context, Error, Stream, record};
use atoll_core::event::{Source, kind};
use atoll_core::json::raw;
use atoll_core::time::{Clock, SystemClock};
use serde_json::json;
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};

/// How much is read at once. One event always fits.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub events: usize,
    pub bytes: usize,
}

/// Events of one stream, keys `first` to `last` without a gap.
#[derive(Debug)]
pub struct Taken {
    pub stream: Stream,
    pub first: i64,
    pub last: i64,
    pub events: Vec<Box<RawValue>>,
}

/// What the server has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last key of the own stream.
    pub acked: i64,
    /// How many events of earlier streams it does not have.
    pub older_left: i64,
}

#[derive(Debug)]
pub struct Outbox {
    dir: PathBuf,
    own: Track,
    /// What earlier workers left, the oldest first.
    older: VecDeque<Track>,
    clock: SystemClock,
}

/// How far one stream is.
#[derive(Debug)]
struct Track {
    stream: Stream,
    acked: i64,
    /// The last key that is on disk; of the own stream the caller knows it.
    last: i64,
    cursor: Option<Cursor>,
}

/// Where the record with the key `next` stands, if it is there.
#[derive(Debug)]
struct Cursor {
    segment: Segment,
    file: File,
    offset: u64,
    next: i64,
    /// Where the record before `next` stands.
    before: u64,
}

impl Outbox {
    pub(super) fn open(dir: &Path, own: Stream) -> Result<Self, Error> {
        let mut older = VecDeque::new();
        for stream in segment::streams(dir)? {
            let last = segment::last_key(dir, stream)?;
            // What is deleted was acknowledged, also if the position itself was lost.
            let deleted = segment::segments(dir, stream)?.first().map_or(0, |segment| segment.first - 1);
            let acked = segment::read_position(dir, stream).max(deleted).clamp(0, last);
            older.push_back(Track { stream, acked, last, cursor: None });
        }
        let own = Track { stream: own, acked: 0, last: 0, cursor: None };
        let mut outbox = Self { dir: dir.to_owned(), own, older, clock: SystemClock::start() };
        outbox.remove_finished()?;
        Ok(outbox)
    }

    pub const fn own_stream(&self) -> Stream {
        self.own.stream
    }

    /// What the server has.
    pub fn progress(&self) -> Progress {
        let older_left = self.older.iter().map(|track| track.last - track.acked).sum();
        Progress { acked: self.own.acked, older_left }
    }

    /// The next events to send: those of earlier streams first. `durable` is the last key of the
    /// own stream that is on disk.
    pub fn next_batch(&mut self, durable: i64, limits: Limits) -> Result<Option<Taken>, Error> {
        let track = match self.older.front_mut() {
            Some(track) => track,
            None => {
                self.own.last = durable;
                &mut self.own
            }
        };
        let first = track.acked + 1;
        let (mut events, mut bytes, mut key) = (Vec::new(), 0, first);
        while key <= track.last && events.len() < limits.events {
            let event = match track.read(&self.dir, key)? {
                Some(event) => event,
                None => {
                    tracing::error!(stream = %track.stream, key, "the spool does not hold this event any more");
                    lost(track.stream, key, &self.clock)
                }
            };
            bytes += event.get().len() + 1;
            if !events.is_empty() && bytes > limits.bytes {
                track.unread(key);
                break;
            }
            events.push(event);
            key += 1;
        }
        Ok((!events.is_empty()).then_some(Taken { stream: track.stream, first, last: key - 1, events }))
    }

    /// The server has stored a stream up to `key`: goes on from there, and deletes what is not
    /// needed any more. A lower key than before means that the server wants to have some again.
    pub fn acknowledge(&mut self, stream: Stream, key: i64) -> Result<(), Error> {
        let tracks = std::iter::once(&mut self.own).chain(&mut self.older);
        let Some(track) = tracks.into_iter().find(|track| track.stream == stream) else { return Ok(()) };
        track.acked = key.clamp(0, track.last);
        if track.cursor.as_ref().is_some_and(|cursor| cursor.next != track.acked + 1) {
            track.cursor = None;
        }
        let acked = track.acked;
        // First what frees space: on a full disk the position can't be written, and need not be.
        self.remove_acknowledged(stream, acked)?;
        segment::write_position(&self.dir, stream, acked)?;
        self.remove_finished()
    }

    /// Deletes what the server has and what could not be deleted before: a segment goes only when
    /// there is a later one, and the writer begins one when it finds the disk full.
    pub fn tidy(&self) -> Result<(), Error> {
        self.remove_acknowledged(self.own.stream, self.own.acked)
    }

    fn remove_acknowledged(&self, stream: Stream, acked: i64) -> Result<(), Error> {
        for pair in segment::segments(&self.dir, stream)?.windows(2) {
            if pair[1].first <= acked + 1 {
                segment::remove(&pair[0].path)?;
            }
        }
        Ok(())
    }

    /// Removes what is left of earlier streams that are stored to the end.
    fn remove_finished(&mut self) -> Result<(), Error> {
        for track in self.older.iter().filter(|track| track.acked >= track.last) {
            for segment in segment::segments(&self.dir, track.stream)? {
                segment::remove(&segment.path)?;
            }
            segment::remove_position(&self.dir, track.stream)?;
        }
        self.older.retain(|track| track.acked < track.last);
        Ok(())
    }
}

impl Track {
    /// The event with the given key, if the spool still holds it.
    fn read(&mut self, dir: &Path, key: i64) -> Result<Option<Box<RawValue>>, Error> {
        let mut cursor = match self.cursor.take().filter(|cursor| cursor.next == key) {
            Some(cursor) => cursor,
            None => match Cursor::find(dir, self.stream, key)? {
                Some(cursor) => cursor,
                None => return Ok(None),
            },
        };
        let found = loop {
            cursor.before = cursor.offset;
            match record::read_at(&cursor.file, cursor.offset).context("read", &cursor.segment.path)? {
                Some(record) if record.key < key => cursor.offset += record.stored_bytes(),
                Some(record) if record.key == key => {
                    cursor.offset += record.stored_bytes();
                    break String::from_utf8(record.json).ok().and_then(|json| RawValue::from_string(json).ok());
                }
                Some(_) => break None,
                // The segment ends here, by rotation or by a torn write.
                None => match cursor.following(dir, self.stream)? {
                    Some(following) if following.segment.first <= key => cursor = following,
                    Some(_) | None => break None,
                },
            }
        };
        cursor.next = key + 1;
        self.cursor = Some(cursor);
        Ok(found)
    }

    /// Takes back the last `read`: its event will be read again.
    fn unread(&mut self, key: i64) {
        if let Some(cursor) = &mut self.cursor {
            cursor.offset = cursor.before;
            cursor.next = key;
        }
    }
}

impl Cursor {
    fn at(segment: Segment, next: i64) -> Result<Self, Error> {
        let file = File::open(&segment.path).context("open", &segment.path)?;
        Ok(Self { segment, file, offset: 0, next, before: 0 })
    }

    fn find(dir: &Path, stream: Stream, key: i64) -> Result<Option<Self>, Error> {
        let segments = segment::segments(dir, stream)?;
        let segment = segments.into_iter().rfind(|segment| segment.first <= key);
        segment.map(|segment| Self::at(segment, key)).transpose()
    }

    fn following(&self, dir: &Path, stream: Stream) -> Result<Option<Self>, Error> {
        let segments = segment::segments(dir, stream)?;
        let segment = segments.into_iter().find(|segment| segment.first > self.segment.first);
        segment.map(|segment| Self::at(segment, self.next)).transpose()
    }
}

/// Stands in for an event that the disk has lost, so that the stream has no gap and the loss is seen.
fn lost(stream: Stream, key: i64, clock: &SystemClock) -> Box<RawValue> {
    raw(&json!({
        "key": key,
        "type": kind::WORKER_LOST,
        "source": Source::Worker,
        "at": clock.now(),
        "data": {"stream": stream.id, "key": key},
    }))
}
