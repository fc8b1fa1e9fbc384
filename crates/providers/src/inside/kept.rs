//! What a command has printed, kept for those who come later. Readers each have their own place in it.

use atoll_core::provider::{ExecEvent, Exit, OutputStream};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// How much output is kept for each command.
pub(super) const KEPT: usize = 4 << 20;
/// Small pieces are joined up to this: a program may write single bytes.
const JOINED: usize = 64 << 10;
/// What a piece takes beside its bytes, counted with them: what can't be joined is not free.
const OVERHEAD: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Kept {
    pieces: VecDeque<(u64, OutputStream, Vec<u8>)>,
    /// What all of them take.
    bytes: usize,
    /// Where the next piece begins.
    next: u64,
    ended: Option<Exit>,
    /// How far each reader is.
    readers: BTreeMap<u64, u64>,
    last_reader: u64,
    /// A terminal waits for no reader: one that is slow misses something, and is told.
    is_terminal: bool,
}

impl Kept {
    pub(super) fn new(is_terminal: bool) -> Self {
        Self { is_terminal, ..Self::default() }
    }

    pub(super) fn push(&mut self, stream: OutputStream, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let cursor = self.next;
        self.next += data.len() as u64;
        if let Some((_, last, joined)) = self.pieces.back_mut() {
            if *last == stream && joined.len() + data.len() <= JOINED {
                joined.extend_from_slice(data);
                self.bytes += data.len();
                return;
            }
            joined.shrink_to_fit();
        }
        self.bytes += data.len() + OVERHEAD;
        self.pieces.push_back((cursor, stream, data.to_vec()));
    }

    /// What is kept takes so much.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) const fn end(&mut self, exit: Exit) {
        self.ended = Some(exit);
    }

    pub(super) const fn ended(&self) -> Option<Exit> {
        self.ended
    }

    /// Where the output ends by now.
    pub(super) const fn cursor(&self) -> u64 {
        self.next
    }

    pub(super) fn reader_count(&self) -> usize {
        self.readers.len()
    }

    /// A new reader at this place; its number is its name.
    pub(super) fn enter(&mut self, cursor: u64) -> u64 {
        self.last_reader += 1;
        self.readers.insert(self.last_reader, cursor);
        self.last_reader
    }

    pub(super) fn move_on(&mut self, reader: u64, cursor: u64) {
        self.readers.insert(reader, cursor);
    }

    pub(super) fn leave(&mut self, reader: u64) {
        self.readers.remove(&reader);
    }

    /// Room for more, made by forgetting only what nobody is waiting for.
    pub(super) fn has_room(&mut self) -> bool {
        let slowest = self.readers.values().min().copied().filter(|_| !self.is_terminal).unwrap_or(u64::MAX);
        while self.bytes > KEPT {
            match self.pieces.front() {
                Some((cursor, _, data)) if cursor + data.len() as u64 <= slowest => {
                    self.bytes -= data.len() + OVERHEAD;
                    self.pieces.pop_front();
                }
                Some(_) => return false,
                None => break,
            }
        }
        true
    }

    /// What follows at `cursor`.
    pub(super) fn after(&self, cursor: u64) -> Option<ExecEvent> {
        let first = self.pieces.front().map_or(self.next, |(first, ..)| *first);
        if cursor < first {
            return Some(ExecEvent::Gap { cursor: first });
        }
        let at = self.pieces.partition_point(|(start, _, data)| start + data.len() as u64 <= cursor);
        if let Some((start, stream, data)) = self.pieces.get(at) {
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

    const PIECE: usize = (1 << 20) - OVERHEAD;

    fn push(kept: &mut Kept, count: usize) {
        for _ in 0..count {
            kept.push(OutputStream::Stdout, &vec![b'x'; PIECE]);
        }
    }

    /// Reads to the end of what is there: how much, and after which gap.
    fn read(kept: &Kept, mut cursor: u64) -> (usize, Option<u64>) {
        let (mut length, mut gap) = (0, None);
        loop {
            match kept.after(cursor) {
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
    fn single_bytes_take_little_more_than_themselves() {
        let mut kept = Kept::new(false);
        for _ in 0..200_000 {
            kept.push(OutputStream::Stdout, b"x");
        }
        assert!(kept.pieces.len() <= 4 && kept.bytes() < 201_000, "{} pieces", kept.pieces.len());
        assert_eq!(read(&kept, 0), (200_000, None));
        assert_eq!(read(&kept, 70_001), (129_999, None), "from any place");
        // Both outputs in turns can't be joined, and count as what they take.
        for _ in 0..100_000 {
            kept.push(OutputStream::Stdout, b"x");
            kept.push(OutputStream::Stderr, b"y");
            assert!(kept.has_room());
        }
        assert!(kept.pieces.len() <= KEPT / OVERHEAD, "{} pieces", kept.pieces.len());
        let (length, gap) = read(&kept, 0);
        assert_eq!(length as u64 + gap.unwrap(), kept.cursor());
    }

    #[test]
    fn a_command_waits_for_its_slowest_reader() {
        let mut kept = Kept::new(false);
        let (slow, fast) = (kept.enter(0), kept.enter(0));
        push(&mut kept, 5);
        kept.move_on(fast, kept.cursor());
        assert!(!kept.has_room());
        assert_eq!(read(&kept, 0), (5 * PIECE, None), "nothing is forgotten that somebody waits for");
        kept.move_on(slow, PIECE as u64);
        assert!(kept.has_room());
        push(&mut kept, 1);
        assert!(!kept.has_room());
        kept.leave(slow);
        assert!(kept.has_room(), "who has gone is not waited for");
        assert_eq!(kept.reader_count(), 1);
        assert_eq!(read(&kept, 0), (4 * PIECE, Some(2 * PIECE as u64)));
    }

    #[test]
    fn a_terminal_waits_for_nobody_and_says_what_is_missed() {
        let mut kept = Kept::new(true);
        kept.enter(0);
        push(&mut kept, 9);
        assert!(kept.has_room());
        assert_eq!(read(&kept, 0), (4 * PIECE, Some(5 * PIECE as u64)));
        assert_eq!(read(&kept, 6 * PIECE as u64 + 7), (3 * PIECE - 7, None), "from the middle of a piece");
        assert!(kept.after(kept.cursor()).is_none(), "there is more to come");
        kept.end(Exit::Exited { code: 2 });
        assert!(matches!(kept.after(kept.cursor()), Some(ExecEvent::Ended(Exit::Exited { code: 2 }))));
    }
}
