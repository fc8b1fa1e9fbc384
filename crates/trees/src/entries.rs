//! Reads a tar entry by entry with bounded memory.

use crate::error::Error;
use crate::{BLOCK_BYTES, OMITTED_COUNT_KEY};
use std::io::{BufRead, ErrorKind, Read};
use tar::{EntryType, Header, PaxExtensions};

/// Maximum size of an extended name or pax header.
const MAX_EXTENSION_BYTES: u64 = 256 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Directory,
    Link,
    /// A hard link to an earlier file.
    HardLink,
    /// A device, a fifo or an unknown type.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarEntry {
    pub kind: EntryKind,
    /// The raw path from the tar; untrusted.
    pub path: Vec<u8>,
    /// The target of a link.
    pub target: Vec<u8>,
    pub size: u64,
    pub mode: u32,
    /// Seconds since 1970.
    pub modified: i64,
}

/// Fields from extension headers that override those of the next entry.
#[derive(Default)]
struct EntryExtension {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    modified: Option<i64>,
}

/// Reads the entries of a tar.
pub struct TarReader<R> {
    input: R,
    /// Unread bytes of the current entry's data, and the padding of its last block.
    unread: u64,
    padding: u64,
    /// Number of omitted entries according to the tar itself.
    left_out: u64,
}

impl<R: BufRead> TarReader<R> {
    pub fn new(input: R) -> Self {
        Self { input, unread: 0, padding: 0, left_out: 0 }
    }

    pub const fn omitted_count(&self) -> u64 {
        self.left_out
    }

    /// Returns the next entry and skips unread data of the previous one. After the last entry, reads the input to its
    /// end, so that the sender can finish.
    pub fn next_entry(&mut self) -> Result<Option<TarEntry>, Error> {
        self.skip_data()?;
        let mut extension = EntryExtension::default();
        loop {
            let Some(header) = self.read_header()? else { return Ok(None) };
            let size = header.entry_size().map_err(|_| Error::Malformed("invalid size"))?;
            match header.entry_type() {
                EntryType::GNULongName => extension.path = Some(without_end(self.read_extension(size)?)),
                EntryType::GNULongLink => extension.target = Some(without_end(self.read_extension(size)?)),
                EntryType::XHeader => self.read_pax_records(size, Some(&mut extension))?,
                EntryType::XGlobalHeader => self.read_pax_records(size, None)?,
                EntryType::GNUSparse => return Err(SPARSE_FILE_ERROR),
                kind => return self.build_entry(&header, kind, size, extension).map(Some),
            }
        }
    }

    fn build_entry(
        &mut self,
        header: &Header,
        kind: EntryType,
        size: u64,
        extension: EntryExtension,
    ) -> Result<TarEntry, Error> {
        let path = extension.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let kind = match kind {
            // In old tars, a directory is a file whose name ends with a slash.
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") => EntryKind::Directory,
            EntryType::Regular | EntryType::Continuous => EntryKind::File,
            EntryType::Directory => EntryKind::Directory,
            EntryType::Symlink => EntryKind::Link,
            EntryType::Link => EntryKind::HardLink,
            _ => EntryKind::Other,
        };
        // Ignore the size of entry types that have no data.
        let size = if has_data(header.entry_type()) { extension.size.unwrap_or(size) } else { 0 };
        self.unread = size;
        self.padding = size.wrapping_neg() % BLOCK_BYTES as u64;
        Ok(TarEntry {
            kind,
            path,
            target: extension
                .target
                .unwrap_or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default()),
            size,
            mode: header.mode().unwrap_or(0o644),
            modified: extension.modified.or_else(|| i64::try_from(header.mtime().ok()?).ok()).unwrap_or(0),
        })
    }

    /// Passes the data of the current entry to `take` in chunks.
    pub fn read_data(&mut self, mut take: impl FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        while self.unread > 0 {
            let buffer = fill_buffer(&mut self.input)?;
            if buffer.is_empty() {
                return Err(Error::Malformed("unexpected end in a file"));
            }
            let length = usize::try_from(self.unread).unwrap_or(usize::MAX).min(buffer.len());
            take(&buffer[..length])?;
            self.input.consume(length);
            self.unread -= length as u64;
        }
        Ok(())
    }

    fn skip_data(&mut self) -> Result<(), Error> {
        self.read_data(|_| Ok(()))?;
        self.unread = std::mem::take(&mut self.padding);
        self.read_data(|_| Ok(()))
    }

    /// Reads a header; `None` at the end of the tar.
    fn read_header(&mut self) -> Result<Option<Header>, Error> {
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        self.input.read_exact(block).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Error::Malformed("missing end marker"),
            _ => Error::Stream(error),
        })?;
        if block.iter().all(|byte| *byte == 0) {
            loop {
                let length = fill_buffer(&mut self.input)?.len();
                if length == 0 {
                    return Ok(None);
                }
                self.input.consume(length);
            }
        }
        let (before, after) = (&block[..148], &block[156..]);
        let sum = before.iter().chain(after).map(|byte| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
        if header.cksum().ok() != Some(sum) {
            return Err(Error::Malformed("wrong checksum"));
        }
        Ok(Some(header))
    }

    /// Reads the content of an extension header.
    fn read_extension(&mut self, size: u64) -> Result<Vec<u8>, Error> {
        if size > MAX_EXTENSION_BYTES {
            return Err(Error::Malformed("a name is too long"));
        }
        (self.unread, self.padding) = (size, size.wrapping_neg() % BLOCK_BYTES as u64);
        let mut bytes = Vec::new();
        self.read_data(|piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        self.skip_data()?;
        Ok(bytes)
    }

    fn read_pax_records(&mut self, size: u64, mut of_next: Option<&mut EntryExtension>) -> Result<(), Error> {
        let bytes = self.read_extension(size)?;
        for property in PaxExtensions::new(&bytes) {
            let property = property.map_err(|_| Error::Malformed("invalid pax header"))?;
            let value = property.value_bytes();
            let number =
                || std::str::from_utf8(value).ok().and_then(|text| text.split('.').next()?.parse::<i64>().ok());
            match (property.key_bytes(), &mut of_next) {
                (b"path", Some(next)) => next.path = Some(value.to_vec()),
                (b"linkpath", Some(next)) => next.target = Some(value.to_vec()),
                (b"size", Some(next)) => {
                    let size = number().and_then(|size| u64::try_from(size).ok());
                    next.size = Some(size.ok_or(Error::Malformed("invalid size"))?);
                }
                (b"mtime", Some(next)) => next.modified = number(),
                (key, _) if key.starts_with(b"GNU.sparse.") => return Err(SPARSE_FILE_ERROR),
                (key, None) if key == OMITTED_COUNT_KEY.as_bytes() => {
                    self.left_out = number().and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

const SPARSE_FILE_ERROR: Error = Error::Unsupported("sparse files are not supported; create the tar without --sparse");

fn has_data(kind: EntryType) -> bool {
    use EntryType as T;
    !matches!(kind, T::Directory | T::Symlink | T::Link | T::Char | T::Block | T::Fifo)
}

/// Like `fill_buf`, but retries after a signal.
fn fill_buffer(input: &mut impl BufRead) -> Result<&[u8], Error> {
    loop {
        match input.fill_buf() {
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(input.fill_buf()?)
}

fn without_end(mut name: Vec<u8>) -> Vec<u8> {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    name.truncate(end);
    name
}

impl<R: Read> std::fmt::Debug for TarReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entries").field("unread", &self.unread).finish_non_exhaustive()
    }
}
