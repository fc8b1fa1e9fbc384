//! Turns the output of a set-up into a bounded number of bounded events. Pure.

use atoll_api::events::SetupOutput;
use atoll_core::provider::OutputStream;

/// Maximum text of one event.
pub(super) const MAX_EVENT_BYTES: usize = 16 * 1024;
/// Output of one set-up that becomes events at once. Of everything after it, each step keeps the tail.
const MAX_STREAMED_BYTES: usize = 512 * 1024;
/// The end of a step's output, for the report of a failure.
const MAX_TAIL_BYTES: usize = 4 * 1024;

/// Output of one stream that is not an event yet.
struct Piece {
    stream: OutputStream,
    bytes: Vec<u8>,
}

/// The output of one set-up.
pub(super) struct OutputLog {
    /// Number of the current step, from 1.
    step: usize,
    pending: Vec<Piece>,
    pending_bytes: usize,
    streamed_bytes: usize,
    /// Bytes of the current step that were dropped before `pending`.
    omitted_bytes: u64,
    tail: Vec<u8>,
}

impl OutputLog {
    pub(super) const fn new() -> Self {
        Self { step: 0, pending: Vec::new(), pending_bytes: 0, streamed_bytes: 0, omitted_bytes: 0, tail: Vec::new() }
    }

    pub(super) fn begin_step(&mut self, step: usize) {
        self.step = step;
        self.tail.clear();
    }

    pub(super) fn push(&mut self, stream: OutputStream, data: &[u8]) {
        self.tail.extend_from_slice(data);
        if self.tail.len() > 4 * MAX_TAIL_BYTES {
            self.tail.drain(..self.tail.len() - MAX_TAIL_BYTES);
        }
        match self.pending.last_mut() {
            Some(last) if last.stream == stream => last.bytes.extend_from_slice(data),
            Some(_) | None => self.pending.push(Piece { stream, bytes: data.to_vec() }),
        }
        self.pending_bytes += data.len();
        if !self.is_streaming() {
            self.drop_oldest();
        }
    }

    const fn is_streaming(&self) -> bool {
        self.streamed_bytes < MAX_STREAMED_BYTES
    }

    /// Keeps only the newest bytes, up to one event.
    fn drop_oldest(&mut self) {
        while self.pending_bytes > MAX_EVENT_BYTES {
            let Some(first) = self.pending.first_mut() else { return };
            let excess = (self.pending_bytes - MAX_EVENT_BYTES).min(first.bytes.len());
            first.bytes.drain(..excess);
            self.omitted_bytes += excess as u64;
            self.pending_bytes -= excess;
            if first.bytes.is_empty() {
                self.pending.remove(0);
            }
        }
    }

    /// True if `take_events` should not wait any longer.
    pub(super) const fn is_full(&self) -> bool {
        self.is_streaming() && self.pending_bytes >= MAX_EVENT_BYTES
    }

    /// The events of the output so far. Beyond the limit there are none before the end of the step.
    pub(super) fn take_events(&mut self, at_step_end: bool) -> Vec<SetupOutput> {
        if !(at_step_end || self.is_streaming()) {
            return Vec::new();
        }
        let mut events = Vec::new();
        let last = self.pending.len().saturating_sub(1);
        let mut kept = None;
        for (index, mut piece) in std::mem::take(&mut self.pending).into_iter().enumerate() {
            if index == last && !at_step_end {
                // The rest of a character may follow.
                let rest = piece.bytes.split_off(complete_len(&piece.bytes));
                kept = Some(Piece { stream: piece.stream, bytes: rest }).filter(|rest| !rest.bytes.is_empty());
            }
            self.streamed_bytes += piece.bytes.len();
            for text in split_text(&piece.bytes) {
                let omitted_bytes = std::mem::take(&mut self.omitted_bytes);
                events.push(SetupOutput { step: self.step, stream: piece.stream, text, omitted_bytes });
            }
        }
        self.pending_bytes = kept.as_ref().map_or(0, |piece| piece.bytes.len());
        self.pending.extend(kept);
        events
    }

    /// The end of the current step's output.
    pub(super) fn tail(&self) -> String {
        let tail = &self.tail[self.tail.len().saturating_sub(MAX_TAIL_BYTES)..];
        to_text(tail).trim().to_owned()
    }
}

fn to_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace('\0', "")
}

/// The length without an incomplete character at the end.
fn complete_len(bytes: &[u8]) -> usize {
    match std::str::from_utf8(&bytes[bytes.len().saturating_sub(4)..]) {
        Err(error) if error.error_len().is_none() => bytes.len().saturating_sub(4) + error.valid_up_to(),
        Ok(_) | Err(_) => bytes.len(),
    }
}

/// Splits output into texts of at most one event, at ends of lines where possible.
fn split_text(mut bytes: &[u8]) -> Vec<String> {
    let mut texts = Vec::new();
    while !bytes.is_empty() {
        let most = bytes.len().min(MAX_EVENT_BYTES);
        let cut = match bytes[..most].iter().rposition(|byte| *byte == b'\n') {
            Some(end) if most < bytes.len() => end + 1,
            _ if most < bytes.len() => complete_len(&bytes[..most]).max(1),
            _ => most,
        };
        let (text, rest) = bytes.split_at(cut);
        texts.push(to_text(text));
        bytes = rest;
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;
    use OutputStream::{Stderr, Stdout};

    fn texts(events: &[SetupOutput]) -> Vec<(OutputStream, &str)> {
        events.iter().map(|event| (event.stream, event.text.as_str())).collect()
    }

    #[test]
    fn joins_pieces_of_a_stream_and_never_splits_a_character() {
        let mut log = OutputLog::new();
        log.begin_step(1);
        log.push(Stdout, b"one ");
        log.push(Stdout, "zw\u{f6}".as_bytes().split_last().unwrap().1);
        assert_eq!(texts(&log.take_events(false)), [(Stdout, "one zw")]);
        log.push(Stdout, b"\xb6lf\n");
        log.push(Stderr, b"oops\0");
        assert_eq!(texts(&log.take_events(false)), [(Stdout, "\u{f6}lf\n"), (Stderr, "oops")]);
        log.push(Stderr, b"\xc3");
        assert_eq!(texts(&log.take_events(false)), []);
        assert_eq!(texts(&log.take_events(true)), [(Stderr, "\u{fffd}")], "the end cuts the character");
        assert_eq!(log.tail(), "one zw\u{f6}lf\noops\u{fffd}");
    }

    #[test]
    fn an_event_is_bounded_and_ends_with_a_line() {
        let mut log = OutputLog::new();
        log.begin_step(1);
        let line = format!("{}\n", "x".repeat(999));
        log.push(Stdout, line.repeat(20).as_bytes());
        assert!(log.is_full());
        let events = log.take_events(false);
        assert_eq!(events.iter().map(|event| event.text.len()).collect::<Vec<_>>(), [16_000, 4_000]);
        assert!(events.iter().all(|event| event.text.ends_with('\n')));
    }

    #[test]
    fn a_flood_keeps_its_beginning_and_its_tail() {
        let mut log = OutputLog::new();
        log.begin_step(1);
        let mut events = Vec::new();
        for number in 0..100_000 {
            log.push(Stdout, format!("line {number}\n").as_bytes());
            if log.is_full() {
                events.extend(log.take_events(false));
            }
        }
        events.extend(log.take_events(true));
        let stored: usize = events.iter().map(|event| event.text.len()).sum();
        assert!(stored <= MAX_STREAMED_BYTES + 2 * MAX_EVENT_BYTES, "{stored}");
        assert!(events[0].text.starts_with("line 0\n"));
        let last = events.last().unwrap();
        assert!(last.text.ends_with("line 99999\n"));
        let omitted: u64 = events.iter().map(|event| event.omitted_bytes).sum();
        assert_eq!(
            omitted as usize + stored,
            (0..100_000).map(|number| format!("line {number}\n").len()).sum::<usize>()
        );
        log.begin_step(2);
        log.push(Stderr, b"next");
        assert_eq!(texts(&log.take_events(false)), []);
        assert_eq!(texts(&log.take_events(true)), [(Stderr, "next")], "each step keeps its tail");
    }
}
