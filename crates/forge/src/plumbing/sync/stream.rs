//! The stream that carries a worktree into a sandbox: a line of JSON, then sections of chunks.
//!
//! A first sync has the sections files (tar), pack, pack index, own index and staged index. A later one has a thin pack.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};

pub const MAX_HEADER_BYTES: u64 = 4 << 20;
const MAX_CHUNK_BYTES: usize = 1 << 20;

/// The first line of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncHeader {
    /// Name of the object format.
    pub format: String,
    /// The sync commit of the worktree.
    pub commit: String,
    /// The sync commit that the sandbox has; `None` for a first sync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The checked-out commit of the worktree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The staged tree, if it changed and has no conflicts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged: Option<String>,
    /// Settings of conversions, such as `core.autocrlf`.
    #[serde(default)]
    pub config: BTreeMap<String, String>,
    /// Patterns of files that the worktree ignores, beyond its own `.gitignore` files.
    #[serde(default)]
    pub excludes: String,
    /// Commits where the history of a shallow repository ends.
    #[serde(default)]
    pub shallow: Vec<String>,
    pub author_name: String,
    pub author_email: String,
    /// Modification times of the own and the staged index, in nanoseconds: git compares file times with them.
    #[serde(default)]
    pub index_times: [i64; 2],
}

#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("the stream is damaged: {0}")]
    Malformed(&'static str),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl SyncHeader {
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut line = serde_json::to_vec(self).map_err(io::Error::from)?;
        line.push(b'\n');
        to.write_all(&line)
    }

    pub fn read(from: &mut impl BufRead) -> Result<Self, StreamError> {
        let mut line = Vec::new();
        from.take(MAX_HEADER_BYTES).read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Err(StreamError::Malformed("its first line has no end"));
        }
        serde_json::from_slice(&line).map_err(|_| StreamError::Malformed("its first line is not valid"))
    }
}

/// Writes one section: each chunk with its length, then a length of zero.
pub struct SectionWriter<W: Write> {
    to: W,
}

impl<W: Write> SectionWriter<W> {
    pub const fn new(to: W) -> Self {
        Self { to }
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.to.write_all(&0_u32.to_be_bytes())
    }
}

impl<W: Write> Write for SectionWriter<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let part = &data[..data.len().min(MAX_CHUNK_BYTES)];
        if !part.is_empty() {
            let length = u32::try_from(part.len()).unwrap_or(0);
            self.to.write_all(&length.to_be_bytes())?;
            self.to.write_all(part)?;
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Reads one section to its end.
pub struct SectionReader<'a, R: Read> {
    from: &'a mut R,
    left: usize,
    has_ended: bool,
}

impl<'a, R: Read> SectionReader<'a, R> {
    pub const fn new(from: &'a mut R) -> Self {
        Self { from, left: 0, has_ended: false }
    }

    /// Skips the rest of the section.
    pub fn finish(mut self) -> io::Result<()> {
        io::copy(&mut self, &mut io::sink()).map(drop)
    }
}

impl<R: Read> Read for SectionReader<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.has_ended {
            let mut length = [0; 4];
            self.from.read_exact(&mut length)?;
            self.left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            if self.left > MAX_CHUNK_BYTES {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a chunk of the stream is too long"));
            }
            self.has_ended = self.left == 0;
        }
        if self.has_ended || into.is_empty() {
            return Ok(0);
        }
        let most = into.len().min(self.left);
        let length = self.from.read(&mut into[..most])?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SyncHeader {
        SyncHeader {
            format: "sha1".to_owned(),
            commit: "a".repeat(40),
            base: None,
            head: None,
            branch: Some("main".to_owned()),
            staged: None,
            config: BTreeMap::from([("core.eol".to_owned(), "lf".to_owned())]),
            excludes: "*.o\n".to_owned(),
            shallow: Vec::new(),
            author_name: "A".to_owned(),
            author_email: "a@example.org".to_owned(),
            index_times: [1, 2],
        }
    }

    #[test]
    fn a_written_stream_can_be_read() {
        let mut bytes = Vec::new();
        header().write(&mut bytes).unwrap();
        let large = vec![7; MAX_CHUNK_BYTES + 5];
        for part in [b"".as_slice(), b"pack", &large] {
            let mut section = SectionWriter::new(&mut bytes);
            section.write_all(part).unwrap();
            section.finish().unwrap();
        }
        let mut from = bytes.as_slice();
        assert_eq!(SyncHeader::read(&mut from).unwrap(), header());
        let mut sections = [Vec::new(), Vec::new(), Vec::new()];
        for section in &mut sections {
            SectionReader::new(&mut from).read_to_end(section).unwrap();
        }
        assert_eq!(sections, [Vec::new(), b"pack".to_vec(), large]);
        assert!(from.is_empty());
    }

    #[test]
    fn rejects_a_damaged_stream() {
        for bad in [b"".as_slice(), b"{}", b"{}\n", b"nonsense\n"] {
            assert!(SyncHeader::read(&mut &*bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        let mut sink = Vec::new();
        for bad in [[0xff, 0xff, 0xff, 0xff].as_slice(), &[0, 0, 0, 5, 1], &[0, 0]] {
            assert!(SectionReader::new(&mut &*bad).read_to_end(&mut sink).is_err(), "{bad:?}");
        }
    }
}
