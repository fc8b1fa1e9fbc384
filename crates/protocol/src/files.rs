//! One thing done to files in a sandbox over a connection of its own, in frames like those of an exec: a length
//! (u32, little-endian, of kind and payload), one byte for the kind, and the payload.
//!
//! `Job`, then for what goes in `Data` … `End`; back come an `Entry` where there is one to tell, `Data` … for what goes
//! out, and at last `Done` or `Failed`. A connection that ends without one of these two has failed.

use crate::exec::BadFrame;
use atoll_core::provider::files::{FileEntry, FileError, SkippedEntry};
use serde::{Deserialize, Serialize};

/// Length and kind.
pub const HEAD: usize = 5;
/// The longest payload.
pub const LONGEST: usize = 1 << 20;
/// What a piece of data has at most.
pub const PIECE: usize = 256 << 10;

/// What to do. Paths are absolute inside the sandbox, or relative to its workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Job {
    Read {
        path: String,
        #[serde(default)]
        offset: u64,
        #[serde(default)]
        length: Option<u64>,
    },
    /// With an offset what is there is overwritten from it on; else the whole is replaced when it is complete.
    Write {
        path: String,
        #[serde(default)]
        mode: Option<u32>,
        #[serde(default)]
        make_parents: bool,
        #[serde(default)]
        offset: Option<u64>,
        /// How much is to come, where it is known.
        #[serde(default)]
        length: Option<u64>,
    },
    List {
        path: String,
        #[serde(default)]
        after: Option<String>,
        limit: u32,
    },
    Stat {
        path: String,
    },
    MakeDirectory {
        path: String,
    },
    Move {
        from: String,
        to: String,
        #[serde(default)]
        replace: bool,
    },
    Delete {
        path: String,
        #[serde(default)]
        recursive: bool,
    },
    /// The tree as tar.
    Pack {
        path: String,
    },
    /// A tar into a directory.
    Unpack {
        path: String,
    },
}

/// How it went.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    #[serde(default)]
    pub bytes: u64,
    #[serde(default)]
    pub entries: u64,
    #[serde(default)]
    pub skipped: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<SkippedEntry>,
    /// Where the rest of a list begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// From the one who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    Job,
    Data,
    /// All of it was sent.
    End,
}

impl Ask {
    pub const fn byte(self) -> u8 {
        match self {
            Self::Job => 1,
            Self::Data => 2,
            Self::End => 3,
        }
    }

    pub const fn from_byte(byte: u8) -> Result<Self, BadFrame> {
        match byte {
            1 => Ok(Self::Job),
            2 => Ok(Self::Data),
            3 => Ok(Self::End),
            other => Err(BadFrame::Kind(other)),
        }
    }
}

/// From the one who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tell {
    Entry,
    Data,
    Done,
    Failed,
}

impl Tell {
    pub const fn byte(self) -> u8 {
        match self {
            Self::Entry => 1,
            Self::Data => 2,
            Self::Done => 3,
            Self::Failed => 4,
        }
    }

    pub const fn from_byte(byte: u8) -> Result<Self, BadFrame> {
        match byte {
            1 => Ok(Self::Entry),
            2 => Ok(Self::Data),
            3 => Ok(Self::Done),
            4 => Ok(Self::Failed),
            other => Err(BadFrame::Kind(other)),
        }
    }
}

/// What stands before a payload. Data is sent behind it without a copy.
pub fn head(kind: u8, length: usize) -> [u8; HEAD] {
    let [a, b, c, d] = u32::try_from(length + 1).unwrap_or(u32::MAX).to_le_bytes();
    [a, b, c, d, kind]
}

/// The kind, and the length of the payload.
pub fn read_head(head: [u8; HEAD]) -> Result<(u8, usize), BadFrame> {
    let [a, b, c, d, kind] = head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    match length.checked_sub(1) {
        Some(payload) if payload <= LONGEST => Ok((kind, payload)),
        Some(_) | None => Err(BadFrame::TooLong(length)),
    }
}

fn json(kind: u8, value: &impl Serialize) -> Vec<u8> {
    let payload = serde_json::to_vec(value).unwrap_or_default();
    [&head(kind, payload.len())[..], &payload].concat()
}

fn read<T: for<'a> Deserialize<'a>>(payload: &[u8]) -> Result<T, BadFrame> {
    serde_json::from_slice(payload).map_err(|error| BadFrame::Payload(error.to_string()))
}

impl Job {
    pub fn frame(&self) -> Vec<u8> {
        json(Ask::Job.byte(), self)
    }

    pub fn read(payload: &[u8]) -> Result<Self, BadFrame> {
        read(payload)
    }
}

impl Done {
    pub fn frame(&self) -> Vec<u8> {
        json(Tell::Done.byte(), self)
    }

    pub fn read(payload: &[u8]) -> Result<Self, BadFrame> {
        read(payload)
    }
}

pub fn entry_frame(entry: &FileEntry) -> Vec<u8> {
    json(Tell::Entry.byte(), entry)
}

pub fn read_entry(payload: &[u8]) -> Result<FileEntry, BadFrame> {
    read(payload)
}

pub fn failed_frame(error: &FileError) -> Vec<u8> {
    json(Tell::Failed.byte(), error)
}

pub fn read_failed(payload: &[u8]) -> Result<FileError, BadFrame> {
    read(payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::provider::files::FileFault;
    use proptest::prelude::*;

    #[test]
    fn frames_come_back_as_they_went() {
        let jobs = [
            Job::Read { path: "a".into(), offset: 3, length: Some(4) },
            Job::Write { path: "a".into(), mode: Some(0o755), make_parents: true, offset: None, length: None },
            Job::List { path: ".".into(), after: Some("x".into()), limit: 5 },
            Job::Move { from: "a".into(), to: "b".into(), replace: true },
        ];
        for job in jobs {
            let frame = job.frame();
            let (kind, length) = read_head(frame[..HEAD].try_into().unwrap()).unwrap();
            assert_eq!((Ask::from_byte(kind).unwrap(), length), (Ask::Job, frame.len() - HEAD));
            assert_eq!(Job::read(&frame[HEAD..]).unwrap(), job);
        }
        let failed = FileError::new(FileFault::NotFound, "there is no `a`");
        assert_eq!(read_failed(&failed_frame(&failed)[HEAD..]).unwrap(), failed);
        let done = Done { bytes: 7, next: Some("b".into()), ..Done::default() };
        assert_eq!(Done::read(&done.frame()[HEAD..]).unwrap(), done);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(read_head([0, 0, 0, 0, 1]).is_err(), "a frame has a kind");
        assert!(read_head([255, 255, 255, 255, 1]).is_err());
        assert!(Ask::from_byte(0).is_err() && Ask::from_byte(4).is_err() && Tell::from_byte(5).is_err());
        assert!(Job::read(b"{\"do\":\"format\"}").is_err());
    }

    proptest! {
        #[test]
        fn a_head_says_what_was_said(kind in any::<u8>(), length in 0..=LONGEST) {
            prop_assert_eq!(read_head(head(kind, length)).unwrap(), (kind, length));
        }

        #[test]
        fn no_bytes_make_a_reader_fall(bytes in proptest::collection::vec(any::<u8>(), 5..200)) {
            if let Ok((_, length)) = read_head(bytes[..HEAD].try_into().unwrap()) {
                prop_assert!(length <= LONGEST);
            }
            drop((Job::read(&bytes), Done::read(&bytes), read_entry(&bytes), read_failed(&bytes)));
        }
    }
}
