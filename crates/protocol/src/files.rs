//! One file operation in a sandbox over a connection of its own. Frames are like those of an exec: a length (u32,
//! little-endian, of kind and payload), one byte for the kind, and the payload.
//!
//! The client sends `Job`, then for an upload `Data` … `End`. The worker replies with an optional `Entry`, `Data` … for
//! a download, and finally `Done` or `Failed`. A connection that closes without one of these two has failed.

use crate::exec::FrameError;
use atoll_core::provider::files::{FileError, FileInfo, SkippedEntry};
use serde::{Deserialize, Serialize};

/// Size of a frame's header: length and kind.
pub const HEADER_BYTES: usize = 5;
/// Maximum payload size.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// Maximum size of a chunk of data.
pub const MAX_CHUNK_BYTES: usize = 256 << 10;

/// The operation. Paths are absolute in the sandbox, or relative to its workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum FileRequest {
    Read {
        path: String,
        #[serde(default)]
        offset: u64,
        #[serde(default)]
        length: Option<u64>,
    },
    /// With an offset, overwrites the file from there; otherwise replaces it atomically once complete.
    Write {
        path: String,
        #[serde(default)]
        mode: Option<u32>,
        #[serde(default)]
        make_parents: bool,
        #[serde(default)]
        offset: Option<u64>,
        /// Expected length, if known.
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
    /// Sends the tree as tar.
    Pack {
        path: String,
    },
    /// Extracts a tar into a directory.
    Unpack {
        path: String,
    },
    /// Reads, lists, stats or packs only if the path, with its links resolved, is in the workspace.
    InWorkspace {
        request: Box<FileRequest>,
    },
}

/// Result of the operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileOperationSummary {
    #[serde(default)]
    pub bytes: u64,
    #[serde(default)]
    pub entries: u64,
    #[serde(default)]
    pub skipped: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<SkippedEntry>,
    /// Start of the next page of a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Frame from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileClientFrame {
    Operation,
    Data,
    /// End of the upload.
    EndOfData,
}

impl FileClientFrame {
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Operation => 1,
            Self::Data => 2,
            Self::EndOfData => 3,
        }
    }

    pub const fn from_byte(byte: u8) -> Result<Self, FrameError> {
        match byte {
            1 => Ok(Self::Operation),
            2 => Ok(Self::Data),
            3 => Ok(Self::EndOfData),
            other => Err(FrameError::UnknownKind(other)),
        }
    }
}

/// Frame from the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileWorkerFrame {
    Entry,
    Data,
    Done,
    Failed,
}

impl FileWorkerFrame {
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Entry => 1,
            Self::Data => 2,
            Self::Done => 3,
            Self::Failed => 4,
        }
    }

    pub const fn from_byte(byte: u8) -> Result<Self, FrameError> {
        match byte {
            1 => Ok(Self::Entry),
            2 => Ok(Self::Data),
            3 => Ok(Self::Done),
            4 => Ok(Self::Failed),
            other => Err(FrameError::UnknownKind(other)),
        }
    }
}

/// Builds a frame header. The sender writes the data after it without a copy.
pub fn encode_header(kind: u8, length: usize) -> [u8; HEADER_BYTES] {
    let [a, b, c, d] = u32::try_from(length + 1).unwrap_or(u32::MAX).to_le_bytes();
    [a, b, c, d, kind]
}

/// Parses a header into the kind and the length of the payload.
pub fn decode_header(head: [u8; HEADER_BYTES]) -> Result<(u8, usize), FrameError> {
    let [a, b, c, d, kind] = head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    match length.checked_sub(1) {
        Some(payload) if payload <= MAX_PAYLOAD_BYTES => Ok((kind, payload)),
        Some(_) | None => Err(FrameError::TooLong(length)),
    }
}

fn encode_json_frame(kind: u8, value: &impl Serialize) -> Vec<u8> {
    let payload = serde_json::to_vec(value).unwrap_or_default();
    [&encode_header(kind, payload.len())[..], &payload].concat()
}

fn decode_payload<T: for<'a> Deserialize<'a>>(payload: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(payload).map_err(|error| FrameError::InvalidPayload(error.to_string()))
}

impl FileRequest {
    pub fn to_frame(&self) -> Vec<u8> {
        encode_json_frame(FileClientFrame::Operation.to_byte(), self)
    }

    pub fn from_payload(payload: &[u8]) -> Result<Self, FrameError> {
        decode_payload(payload)
    }
}

impl FileOperationSummary {
    pub fn to_frame(&self) -> Vec<u8> {
        encode_json_frame(FileWorkerFrame::Done.to_byte(), self)
    }

    pub fn from_payload(payload: &[u8]) -> Result<Self, FrameError> {
        decode_payload(payload)
    }
}

pub fn encode_entry(entry: &FileInfo) -> Vec<u8> {
    encode_json_frame(FileWorkerFrame::Entry.to_byte(), entry)
}

pub fn decode_entry(payload: &[u8]) -> Result<FileInfo, FrameError> {
    decode_payload(payload)
}

pub fn encode_failure(error: &FileError) -> Vec<u8> {
    encode_json_frame(FileWorkerFrame::Failed.to_byte(), error)
}

pub fn decode_failure(payload: &[u8]) -> Result<FileError, FrameError> {
    decode_payload(payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::provider::files::FileErrorCode;
    use proptest::prelude::*;

    #[test]
    fn frames_round_trip() {
        let jobs = [
            FileRequest::Read { path: "a".into(), offset: 3, length: Some(4) },
            FileRequest::Write { path: "a".into(), mode: Some(0o755), make_parents: true, offset: None, length: None },
            FileRequest::List { path: ".".into(), after: Some("x".into()), limit: 5 },
            FileRequest::Move { from: "a".into(), to: "b".into(), replace: true },
            FileRequest::InWorkspace { request: Box::new(FileRequest::Stat { path: "a".into() }) },
        ];
        for job in jobs {
            let frame = job.to_frame();
            let (kind, length) = decode_header(frame[..HEADER_BYTES].try_into().unwrap()).unwrap();
            assert_eq!(
                (FileClientFrame::from_byte(kind).unwrap(), length),
                (FileClientFrame::Operation, frame.len() - HEADER_BYTES)
            );
            assert_eq!(FileRequest::from_payload(&frame[HEADER_BYTES..]).unwrap(), job);
        }
        let failed = FileError::new(FileErrorCode::NotFound, "there is no `a`");
        assert_eq!(decode_failure(&encode_failure(&failed)[HEADER_BYTES..]).unwrap(), failed);
        let done = FileOperationSummary { bytes: 7, next: Some("b".into()), ..FileOperationSummary::default() };
        assert_eq!(FileOperationSummary::from_payload(&done.to_frame()[HEADER_BYTES..]).unwrap(), done);
    }

    #[test]
    fn rejects_invalid_frames() {
        assert!(decode_header([0, 0, 0, 0, 1]).is_err(), "a frame has a kind");
        assert!(decode_header([255, 255, 255, 255, 1]).is_err());
        assert!(
            FileClientFrame::from_byte(0).is_err()
                && FileClientFrame::from_byte(4).is_err()
                && FileWorkerFrame::from_byte(5).is_err()
        );
        assert!(FileRequest::from_payload(b"{\"do\":\"format\"}").is_err());
    }

    proptest! {
        #[test]
        fn a_header_round_trips(kind in any::<u8>(), length in 0..=MAX_PAYLOAD_BYTES) {
            prop_assert_eq!(decode_header(encode_header(kind, length)).unwrap(), (kind, length));
        }

        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 5..200)) {
            if let Ok((_, length)) = decode_header(bytes[..HEADER_BYTES].try_into().unwrap()) {
                prop_assert!(length <= MAX_PAYLOAD_BYTES);
            }
            drop((FileRequest::from_payload(&bytes), FileOperationSummary::from_payload(&bytes), decode_entry(&bytes), decode_failure(&bytes)));
        }
    }
}
