//! The record format of a segment: length, checksum and key, then the event's JSON.
//!
//! Reading stops at the first truncated or damaged record.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub(super) const HEADER_BYTES: usize = 4 + 4 + 8;
/// Longer than any event: a larger length means damage.
const MAX_RECORD_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub key: i64,
    pub json: Vec<u8>,
}

impl Record {
    pub(super) fn stored_bytes(&self) -> u64 {
        (HEADER_BYTES + self.json.len()) as u64
    }
}

/// Appends a record to `buffer`; `write` appends its JSON.
pub(super) fn append_record(buffer: &mut Vec<u8>, key: i64, write: impl FnOnce(&mut Vec<u8>)) {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; 8]);
    buffer.extend_from_slice(&key.to_le_bytes());
    write(buffer);
    let length = u32::try_from(buffer.len() - start - HEADER_BYTES).unwrap_or(u32::MAX);
    let checksum = crc32fast::hash(&buffer[start + 8..]);
    buffer[start..start + 4].copy_from_slice(&length.to_le_bytes());
    buffer[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
}

/// Reads the record at `offset`; `None` if there is no complete one.
pub(super) fn read_record(file: &File, offset: u64) -> io::Result<Option<Record>> {
    let mut header = [0; HEADER_BYTES];
    if !is_complete(file.read_exact_at(&mut header, offset))? {
        return Ok(None);
    }
    let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let length = number(0) as usize;
    if length > MAX_RECORD_BYTES {
        return Ok(None);
    }
    let mut json = vec![0; length];
    if !is_complete(file.read_exact_at(&mut json, offset + HEADER_BYTES as u64))? {
        return Ok(None);
    }
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&header[8..]);
    checksum.update(&json);
    if checksum.finalize() != number(4) {
        return Ok(None);
    }
    let mut key = [0; 8];
    key.copy_from_slice(&header[8..]);
    Ok(Some(Record { key: i64::from_le_bytes(key), json }))
}

fn is_complete(read: io::Result<()>) -> io::Result<bool> {
    match read {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
