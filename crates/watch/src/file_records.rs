//! Records of all files: their state at the last report or at the start.

use crate::entry::{Digest, EntryKind, FileContent, FileEntry, Stamp};
use crate::relative_path::RelativePath;
use std::collections::BTreeMap;

pub type FileRecords = BTreeMap<RelativePath, FileRecord>;

pub struct FileRecord {
    pub kind: EntryKind,
    pub stamp: Stamp,
    /// The stamp may hide a later write: read the file to be sure.
    pub is_fresh: bool,
    pub has_hard_links: bool,
    pub is_binary: bool,
    pub content: Content,
    /// Number of the last walk that visited it.
    pub walk_number: u32,
}

pub enum Content {
    /// Unchanged since the start and not read; git may have it.
    Unread,
    /// Read; the text store may have the text of this digest.
    Read(Box<Digest>),
    /// Unavailable.
    Unavailable,
}

impl FileRecord {
    pub fn unread(file_entry: FileEntry, walk_number: u32) -> Self {
        let FileEntry { kind, stamp, is_fresh, has_hard_links } = file_entry;
        Self { kind, stamp, is_fresh, has_hard_links, is_binary: false, content: Content::Unread, walk_number }
    }

    pub fn read(reading: &FileContent, pass: u32) -> Self {
        let content = reading.digest.map_or(Content::Unavailable, |digest| Content::Read(Box::new(digest)));
        Self { is_binary: reading.is_binary, content, ..Self::unread(reading.entry, pass) }
    }

    pub fn entry(&self) -> FileEntry {
        FileEntry { kind: self.kind, stamp: self.stamp, is_fresh: self.is_fresh, has_hard_links: self.has_hard_links }
    }

    pub fn digest(&self) -> Option<&Digest> {
        match &self.content {
            Content::Read(digest) => Some(digest),
            Content::Unread | Content::Unavailable => None,
        }
    }

    /// True if the file is certainly unchanged.
    pub fn is_unchanged(&self, file_entry: &FileEntry) -> bool {
        self.kind == file_entry.kind && self.stamp == file_entry.stamp && !self.is_fresh
    }
}
