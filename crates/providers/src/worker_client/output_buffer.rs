//! A command's buffered output, with a cursor per reader.

use atoll_core::provider::{CommandExit, ExecEvent, OutputStream};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Limit on buffered output per command.
pub(super) const MAX_BUFFERED_BYTES: usize = 4 << 20;
/// Small writes are joined up to this size.
const MAX_JOINED_BYTES: usize = 64 << 10;
/// Memory per chunk beside its bytes.
const CHUNK_OVERHEAD_BYTES: usize = 128;

#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    chunks: VecDeque<(u64, OutputStream, Vec<u8>)>,
    /// Memory of all chunks.
    bytes: usize,
    /// The position after the last byte.
    next: u64,
    ended: Option<CommandExit>,
    /// The cursor of each reader.
    readers: BTreeMap<u64, u64>,
    last_reader: u64,
    /// A terminal waits for no reader: a slow one gets a gap.
    is_terminal: bool,
}

impl OutputBuffer {
    pub(super) fn new(is_terminal: bool) -> Self {
        Self { is_terminal, ..Self::default() }
    }

    pub(super) fn push(&mut self, stream: OutputStream, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let cursor = self.next;
        self.next += data.len() as u64;
        if let Some((_, last, joined)) = self.chunks.back_mut() {
            if *last == stream && joined.len() + data.len() <= MAX_JOINED_BYTES {
                joined.extend_from_slice(data);
                self.bytes += data.len();
                return;
            }
            joined.shrink_to_fit();
        }
        self.bytes += data.len() + CHUNK_OVERHEAD_BYTES;
        self.chunks.push_back((cursor, stream, data.to_vec()));
    }

    /// Memory of the buffered output.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) const fn set_exit(&mut self, exit: CommandExit) {
        self.ended = Some(exit);
    }

    pub(super) const fn exit(&self) -> Option<CommandExit> {
        self.ended
    }

    pub(super) const fn end_cursor(&self) -> u64 {
        self.next
    }

    pub(super) fn reader_count(&self) -> usize {
        self.readers.len()
    }

    /// Adds a reader at `cursor` and returns its number.
    pub(super) fn add_reader(&mut self, cursor: u64) -> u64 {
        self.last_reader += 1;
        self.readers.insert(self.last_reader, cursor);
        self.last_reader
    }

    pub(super) fn advance_reader(&mut self, reader: u64, cursor: u64) {
        self.readers.insert(reader, cursor);
    }

    pub(super) fn remove_reader(&mut self, reader: u64) {
        self.readers.remove(&reader);
    }

    /// Drops output that no reader still needs. Returns false if the buffer stays full.
    pub(super) fn make_room(&mut self) -> bool {
        let slowest = self.readers.values().min().copied().filter(|_| !self.is_terminal).unwrap_or(u64::MAX);
        while self.bytes > MAX_BUFFERED_BYTES {
            match self.chunks.front() {
                Some((cursor, _, data)) if cursor + data.len() as u64 <= slowest => {
                    self.bytes -= data.len() + CHUNK_OVERHEAD_BYTES;
                    self.chunks.pop_front();
                }
                Some(_) => return false,
                None => break,
            }
        }
        true
    }

    /// Returns the event at `cursor`, if there is one yet.
    pub(super) fn event_after(&self, cursor: u64) -> Option<ExecEvent> {
        let first = self.chunks.front().map_or(self.next, |(first, ..)| *first);
        if cursor < first {
            return Some(ExecEvent::Gap { cursor: first });
        }
        let at = self.chunks.partition_point(|(start, _, data)| start + data.len() as u64 <= cursor);
        if let Some((start, stream, data)) = self.chunks.get(at) {
            let skip = usize::try_from(cursor.saturating_sub(*start)).unwrap_or(0);
            let data = Bytes::copy_from_slice(data.get(skip..).unwrap_or_default());
            let cursor = start + skip as u64 + data.len() as u64;
            return Some(ExecEvent::Output { stream: *stream, cursor, data });
        }
        self.ended.map(ExecEvent::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK_BYTES: usize = (1 << 20) - CHUNK_OVERHEAD_BYTES;

    fn push_chunks(buffer: &mut OutputBuffer, count: usize) {
        for _ in 0..count {
            buffer.push(OutputStream::Stdout, &vec![b'x'; CHUNK_BYTES]);
        }
    }

    /// Reads everything: the length, and the position after a gap.
    fn read_from(buffer: &OutputBuffer, mut cursor: u64) -> (usize, Option<u64>) {
        let (mut length, mut gap) = (0, None);
        loop {
            match buffer.event_after(cursor) {
                Some(ExecEvent::Output { data, cursor: next, .. }) => {
                    length += data.len();
                    cursor = next;
                }
                Some(ExecEvent::Gap { cursor: next }) => {
                    gap = Some(next);
                    cursor = next;
                }
                Some(ExecEvent::Ended(_)) | None => return (length, gap),
            }
        }
    }

    #[test]
    fn single_bytes_are_joined_into_chunks() {
        let mut buffer = OutputBuffer::new(false);
        for _ in 0..200_000 {
            buffer.push(OutputStream::Stdout, b"x");
        }
        assert!(buffer.chunks.len() <= 4 && buffer.bytes() < 201_000, "{} chunks", buffer.chunks.len());
        assert_eq!(read_from(&buffer, 0), (200_000, None));
        assert_eq!(read_from(&buffer, 70_001), (129_999, None), "from any cursor");
        // Alternating streams cannot be joined; each chunk's overhead counts.
        for _ in 0..100_000 {
            buffer.push(OutputStream::Stdout, b"x");
            buffer.push(OutputStream::Stderr, b"y");
            assert!(buffer.make_room());
        }
        assert!(buffer.chunks.len() <= MAX_BUFFERED_BYTES / CHUNK_OVERHEAD_BYTES, "{} chunks", buffer.chunks.len());
        let (length, gap) = read_from(&buffer, 0);
        assert_eq!(length as u64 + gap.unwrap(), buffer.end_cursor());
    }

    #[test]
    fn a_command_waits_for_its_slowest_reader() {
        let mut buffer = OutputBuffer::new(false);
        let (slow, fast) = (buffer.add_reader(0), buffer.add_reader(0));
        push_chunks(&mut buffer, 5);
        buffer.advance_reader(fast, buffer.end_cursor());
        assert!(!buffer.make_room());
        assert_eq!(read_from(&buffer, 0), (5 * CHUNK_BYTES, None), "keeps what a reader still needs");
        buffer.advance_reader(slow, CHUNK_BYTES as u64);
        assert!(buffer.make_room());
        push_chunks(&mut buffer, 1);
        assert!(!buffer.make_room());
        buffer.remove_reader(slow);
        assert!(buffer.make_room(), "does not wait for a removed reader");
        assert_eq!(buffer.reader_count(), 1);
        assert_eq!(read_from(&buffer, 0), (4 * CHUNK_BYTES, Some(2 * CHUNK_BYTES as u64)));
    }

    #[test]
    fn a_terminal_drops_output_and_reports_the_gap() {
        let mut buffer = OutputBuffer::new(true);
        buffer.add_reader(0);
        push_chunks(&mut buffer, 9);
        assert!(buffer.make_room());
        assert_eq!(read_from(&buffer, 0), (4 * CHUNK_BYTES, Some(5 * CHUNK_BYTES as u64)));
        assert_eq!(
            read_from(&buffer, 6 * CHUNK_BYTES as u64 + 7),
            (3 * CHUNK_BYTES - 7, None),
            "from the middle of a piece"
        );
        assert!(buffer.event_after(buffer.end_cursor()).is_none(), "not ended yet");
        buffer.set_exit(CommandExit::Exited { code: 2 });
        assert!(matches!(
            buffer.event_after(buffer.end_cursor()),
            Some(ExecEvent::Ended(CommandExit::Exited { code: 2 }))
        ));
    }
}
