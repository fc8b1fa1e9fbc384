//! Reading a tar: one entry after another, with a bound on all that is kept of it in memory.

use crate::error::Error;
use crate::{BLOCK, LEFT_OUT};
use std::io::{BufRead, ErrorKind, Read};
use tar::{EntryType, Header, PaxExtensions};

/// The longest name, or list of properties, that stands before an entry.
const LONGEST_EXTENSION: u64 = 256 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Link,
    /// Another name of a file that came before.
    Hard,
    /// A device, a fifo, or something unknown.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    /// As it stands in the tar: anything.
    pub path: Vec<u8>,
    /// What a link points to.
    pub target: Vec<u8>,
    pub size: u64,
    pub mode: u32,
    /// Seconds since 1970.
    pub modified: i64,
}

/// What the entries before another say of it.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    modified: Option<i64>,
}

/// The entries of a tar.
pub struct Entries<R> {
    input: R,
    /// What is unread of the last entry's data, and what fills its last block.
    unread: u64,
    padding: u64,
    /// How many entries are not in it, as the tar itself says.
    left_out: u64,
}

impl<R: BufRead> Entries<R> {
    pub fn new(input: R) -> Self {
        Self { input, unread: 0, padding: 0, left_out: 0 }
    }

    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The next one; what was not read of the last one's data is passed over. After the last one the input is read to
    /// its end, so that whoever sends it can end.
    pub fn advance(&mut self) -> Result<Option<Entry>, Error> {
        self.pass_over()?;
        let mut extension = Extension::default();
        loop {
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.entry_size().map_err(|_| Error::Malformed("a size in it makes no sense"))?;
            match header.entry_type() {
                EntryType::GNULongName => extension.path = Some(without_end(self.extension(size)?)),
                EntryType::GNULongLink => extension.target = Some(without_end(self.extension(size)?)),
                EntryType::XHeader => self.properties(size, Some(&mut extension))?,
                EntryType::XGlobalHeader => self.properties(size, None)?,
                EntryType::GNUSparse => return Err(SPARSE),
                kind => return self.entry(&header, kind, size, extension).map(Some),
            }
        }
    }

    fn entry(&mut self, header: &Header, kind: EntryType, size: u64, extension: Extension) -> Result<Entry, Error> {
        let path = extension.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let kind = match kind {
            // In old tars a directory is a file whose name ends so.
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Link,
            EntryType::Link => Kind::Hard,
            _ => Kind::Other,
        };
        // What has none by its kind has none, whatever it says.
        let size = if has_data(header.entry_type()) { extension.size.unwrap_or(size) } else { 0 };
        self.unread = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
        Ok(Entry {
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

    /// The data of the last entry, in pieces.
    pub fn data(&mut self, mut take: impl FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        while self.unread > 0 {
            let buffer = fill(&mut self.input)?;
            if buffer.is_empty() {
                return Err(Error::Malformed("it ends in the middle of a file"));
            }
            let length = usize::try_from(self.unread).unwrap_or(usize::MAX).min(buffer.len());
            take(&buffer[..length])?;
            self.input.consume(length);
            self.unread -= length as u64;
        }
        Ok(())
    }

    fn pass_over(&mut self) -> Result<(), Error> {
        self.data(|_| Ok(()))?;
        self.unread = std::mem::take(&mut self.padding);
        self.data(|_| Ok(()))
    }

    /// Nothing at the tar's end.
    fn header(&mut self) -> Result<Option<Header>, Error> {
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        self.input.read_exact(block).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Error::Malformed("it has no end"),
            _ => Error::Stream(error),
        })?;
        if block.iter().all(|byte| *byte == 0) {
            loop {
                let length = fill(&mut self.input)?.len();
                if length == 0 {
                    return Ok(None);
                }
                self.input.consume(length);
            }
        }
        let (before, after) = (&block[..148], &block[156..]);
        let sum = before.iter().chain(after).map(|byte| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
        if header.cksum().ok() != Some(sum) {
            return Err(Error::Malformed("a check sum in it is wrong"));
        }
        Ok(Some(header))
    }

    /// What stands before an entry and belongs to it.
    fn extension(&mut self, size: u64) -> Result<Vec<u8>, Error> {
        if size > LONGEST_EXTENSION {
            return Err(Error::Malformed("a name in it is too long"));
        }
        (self.unread, self.padding) = (size, size.wrapping_neg() % BLOCK as u64);
        let mut bytes = Vec::new();
        self.data(|piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        self.pass_over()?;
        Ok(bytes)
    }

    fn properties(&mut self, size: u64, mut of_next: Option<&mut Extension>) -> Result<(), Error> {
        let bytes = self.extension(size)?;
        for property in PaxExtensions::new(&bytes) {
            let property = property.map_err(|_| Error::Malformed("the properties of an entry can't be read"))?;
            let value = property.value_bytes();
            let number =
                || std::str::from_utf8(value).ok().and_then(|text| text.split('.').next()?.parse::<i64>().ok());
            match (property.key_bytes(), &mut of_next) {
                (b"path", Some(next)) => next.path = Some(value.to_vec()),
                (b"linkpath", Some(next)) => next.target = Some(value.to_vec()),
                (b"size", Some(next)) => {
                    let size = number().and_then(|size| u64::try_from(size).ok());
                    next.size = Some(size.ok_or(Error::Malformed("a size in it makes no sense"))?);
                }
                (b"mtime", Some(next)) => next.modified = number(),
                (key, _) if key.starts_with(b"GNU.sparse.") => return Err(SPARSE),
                (key, None) if key == LEFT_OUT.as_bytes() => {
                    self.left_out = number().and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

const SPARSE: Error = Error::Unsupported("a file in the tar is stored with holes; make the tar without --sparse");

fn has_data(kind: EntryType) -> bool {
    use EntryType as T;
    !matches!(kind, T::Directory | T::Symlink | T::Link | T::Char | T::Block | T::Fifo)
}

/// As `fill_buf`, but a signal is no reason to end.
fn fill(input: &mut impl BufRead) -> Result<&[u8], Error> {
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

impl<R: Read> std::fmt::Debug for Entries<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entries").field("unread", &self.unread).finish_non_exhaustive()
    }
}
