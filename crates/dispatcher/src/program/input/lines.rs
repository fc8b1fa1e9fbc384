//! Splits bytes into lines with bounded memory.

use super::{MAX_EXCERPT_BYTES, MAX_LINE_BYTES};

/// One line without its newline.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    Whole(&'a [u8]),
    /// Longer than the limit: its start and its length.
    TooLong {
        head: &'a [u8],
        bytes: usize,
    },
}

/// Splits a stream of bytes into lines.
#[derive(Debug)]
pub struct LineSplitter {
    max_bytes: usize,
    /// The incomplete line, or the head of one that is too long.
    partial: Vec<u8>,
    /// Length of the incomplete line if it is too long.
    too_long: Option<usize>,
}

impl Default for LineSplitter {
    fn default() -> Self {
        Self::with_limit(MAX_LINE_BYTES)
    }
}

impl LineSplitter {
    pub const fn with_limit(max_bytes: usize) -> Self {
        Self { max_bytes, partial: Vec::new(), too_long: None }
    }

    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(Line<'_>)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.partial.is_empty() && self.too_long.is_none() && line.len() <= self.max_bytes {
                each(Line::Whole(line));
            } else {
                self.append(line);
                self.end_line(&mut each);
            }
            bytes = rest;
        }
        self.append(bytes);
    }

    /// Ends the input: an incomplete line counts as a line.
    pub fn finish(&mut self, mut each: impl FnMut(Line<'_>)) {
        if !self.partial.is_empty() {
            self.end_line(&mut each);
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        if let Some(length) = &mut self.too_long {
            *length = length.saturating_add(bytes.len());
        } else if self.partial.len() + bytes.len() > self.max_bytes {
            self.too_long = Some(self.partial.len() + bytes.len());
            let missing = MAX_EXCERPT_BYTES.saturating_sub(self.partial.len()).min(bytes.len());
            self.partial.extend_from_slice(&bytes[..missing]);
            self.partial.truncate(MAX_EXCERPT_BYTES);
            self.partial.shrink_to_fit();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self, each: &mut impl FnMut(Line<'_>)) {
        match self.too_long.take() {
            Some(bytes) => each(Line::TooLong { head: &self.partial, bytes }),
            None => each(Line::Whole(&self.partial)),
        }
        self.partial.clear();
    }
}
