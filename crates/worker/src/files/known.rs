//! What is known of each file: as it was last told, or as it was at the beginning.

use super::look::{Digest, Kind, Reading, Seen, Stamp};
use super::path::Relative;
use std::collections::BTreeMap;

pub type Files = BTreeMap<Relative, Known>;

pub struct Known {
    pub kind: Kind,
    pub stamp: Stamp,
    /// The stamp may hide a later write: only reading tells.
    pub fresh: bool,
    pub linked: bool,
    pub binary: bool,
    pub content: Content,
    /// The last walk that came by.
    pub pass: u32,
}

pub enum Content {
    /// As at the beginning and not read; git may have it.
    Unread,
    /// Read; the text may be in memory under this digest.
    Read(Box<Digest>),
    /// Nobody has it.
    Unknown,
}

impl Known {
    pub fn unread(seen: Seen, pass: u32) -> Self {
        let Seen { kind, stamp, fresh, linked } = seen;
        Self { kind, stamp, fresh, linked, binary: false, content: Content::Unread, pass }
    }

    pub fn read(reading: &Reading, pass: u32) -> Self {
        let content = reading.digest.map_or(Content::Unknown, |digest| Content::Read(Box::new(digest)));
        Self { binary: reading.binary, content, ..Self::unread(reading.seen, pass) }
    }

    pub fn seen(&self) -> Seen {
        Seen { kind: self.kind, stamp: self.stamp, fresh: self.fresh, linked: self.linked }
    }

    pub fn digest(&self) -> Option<&Digest> {
        match &self.content {
            Content::Read(digest) => Some(digest),
            Content::Unread | Content::Unknown => None,
        }
    }

    /// Whether the file certainly is as it was.
    pub fn is_still(&self, seen: &Seen) -> bool {
        self.kind == seen.kind && self.stamp == seen.stamp && !self.fresh
    }
}
