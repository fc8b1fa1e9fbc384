//! Cutting bytes into lines, with a bound on what is remembered.

use super::{EXCERPT, MAX_LINE};

/// One line without its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    Whole(&'a [u8]),
    /// Longer than `MAX_LINE`: its beginning, and how long it was.
    TooLong {
        head: &'a [u8],
        bytes: usize,
    },
}

/// Takes bytes as they come and gives lines.
#[derive(Debug, Default)]
pub struct Lines {
    /// The beginning of a line whose end has not come: all of it, or the head of one that is too long.
    begun: Vec<u8>,
    /// How long the begun line is, when it is too long.
    too_long: Option<usize>,
}

impl Lines {
    pub const fn new() -> Self {
        Self { begun: Vec::new(), too_long: None }
    }

    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(Line<'_>)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.begun.is_empty() && self.too_long.is_none() && line.len() <= MAX_LINE {
                each(Line::Whole(line));
            } else {
                self.keep(line);
                self.finish(&mut each);
            }
            bytes = rest;
        }
        self.keep(bytes);
    }

    /// The input has ended: what has begun is a line too.
    pub fn end(&mut self, mut each: impl FnMut(Line<'_>)) {
        if !self.begun.is_empty() {
            self.finish(&mut each);
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if let Some(length) = &mut self.too_long {
            *length = length.saturating_add(bytes.len());
        } else if self.begun.len() + bytes.len() > MAX_LINE {
            self.too_long = Some(self.begun.len() + bytes.len());
            let missing = EXCERPT.saturating_sub(self.begun.len()).min(bytes.len());
            self.begun.extend_from_slice(&bytes[..missing]);
            self.begun.truncate(EXCERPT);
            self.begun.shrink_to_fit();
        } else {
            self.begun.extend_from_slice(bytes);
        }
    }

    fn finish(&mut self, each: &mut impl FnMut(Line<'_>)) {
        match self.too_long.take() {
            Some(bytes) => each(Line::TooLong { head: &self.begun, bytes }),
            None => each(Line::Whole(&self.begun)),
        }
        self.begun.clear();
    }
}
