//! Packs a directory tree as tar. The tree may change meanwhile: entries that disappear are omitted, and a file that
//! shrinks is padded with zeros, because its header already contains the size.

use crate::error::Error;
use crate::path::join_path;
use crate::{BLOCK_BYTES, CHUNK_BYTES, OMITTED_COUNT_KEY};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use tar::{EntryType, Header};

const LONG_NAME_HEADER: &[u8] = b"././@LongLink";
/// Drops the set-uid, set-gid and sticky bits.
const MODE_MASK: u32 = 0o777;

/// The result of packing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackSummary {
    pub entries: u64,
    pub bytes: u64,
    /// Number of omitted entries: sockets, fifos, devices and unreadable files.
    pub omitted: u64,
}

/// Packs everything below `root`. Calls `left_out` for each omitted entry with the reason, and `progress` with byte counts.
pub fn pack_tree(
    root: &OwnedFd,
    out: impl Write,
    mut left_out: impl FnMut(&[u8], &str),
    progress: impl FnMut(u64),
) -> Result<PackSummary, Error> {
    let mut packer = Packer::new(out, progress);
    let mut directories = vec![Vec::new()];
    while let Some(path) = directories.pop() {
        let names = match open_directory(root, &path) {
            Ok(directory) => list_names(&directory).map(|names| (directory, names)),
            Err(error) => Err(error),
        };
        let (directory, names) = match names {
            Ok(found) => found,
            Err(error) if path.is_empty() => return Err(Error::at_path(b".", error)),
            Err(error) => {
                packer.packed.omitted += 1;
                left_out(&path, describe_read_error(error));
                continue;
            }
        };
        let mut below = Vec::new();
        for name in names {
            let at = join_path(&path, &name);
            match packer.pack_entry(&directory, &name, &at)? {
                EntryOutcome::Done => {}
                EntryOutcome::Directory => below.push(at),
                EntryOutcome::LeftOut(why) => {
                    packer.packed.omitted += 1;
                    left_out(&at, why);
                }
            }
        }
        directories.extend(below.into_iter().rev());
    }
    packer.finish_archive()
}

/// Packs the listed files, links and directories below `root`, without the contents of directories. An entry that cannot
/// be read is omitted.
pub fn pack_paths<'a>(
    root: &OwnedFd,
    paths: impl Iterator<Item = &'a [u8]>,
    out: impl Write,
) -> Result<PackSummary, Error> {
    let mut packer = Packer::new(out, |_| {});
    // Paths of one directory follow each other.
    let mut last: Option<(&[u8], OwnedFd)> = None;
    for path in paths {
        let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&path[..0], path),
        };
        if last.as_ref().is_none_or(|(known, _)| *known != parent) {
            last = open_directory(root, parent).ok().map(|directory| (parent, directory));
        }
        let Some((_, directory)) = &last else { continue };
        match packer.pack_entry(directory, name, path)? {
            EntryOutcome::Done | EntryOutcome::Directory => {}
            EntryOutcome::LeftOut(_) => packer.packed.omitted += 1,
        }
    }
    packer.finish_archive()
}

/// Packs one open file under `name`.
pub fn pack_file(file: File, name: &[u8], out: impl Write, progress: impl FnMut(u64)) -> Result<PackSummary, Error> {
    let mut packer = Packer::new(out, progress);
    packer.pack_open_file(file, name)?;
    packer.finish_archive()
}

enum EntryOutcome {
    Done,
    /// A directory whose contents must be packed too.
    Directory,
    LeftOut(&'static str),
}

struct Packer<W: Write, P> {
    out: std::io::BufWriter<W>,
    progress: P,
    buffer: Vec<u8>,
    /// The first path of each file with several hard links.
    first_names: HashMap<(u64, u64), Vec<u8>>,
    packed: PackSummary,
}

impl<W: Write, P: FnMut(u64)> Packer<W, P> {
    fn new(out: W, progress: P) -> Self {
        let out = std::io::BufWriter::with_capacity(CHUNK_BYTES, out);
        Self {
            out,
            progress,
            buffer: vec![0; CHUNK_BYTES],
            first_names: HashMap::new(),
            packed: PackSummary::default(),
        }
    }

    fn pack_entry(&mut self, directory: &OwnedFd, name: &[u8], path: &[u8]) -> Result<EntryOutcome, Error> {
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let found = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            // It disappeared.
            Err(Errno::NOENT) => return Ok(EntryOutcome::Done),
            Err(error) => return Ok(EntryOutcome::LeftOut(describe_read_error(error))),
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => match rustix::fs::openat(directory, name, how, Mode::empty()) {
                Ok(file) => self.pack_open_file(File::from(file), path),
                Err(Errno::NOENT) => Ok(EntryOutcome::Done),
                Err(error) => Ok(EntryOutcome::LeftOut(describe_read_error(error))),
            },
            FileType::Directory => {
                self.write_header(&found, EntryType::Directory, 0, &[path, b"/"].concat(), b"")?;
                Ok(EntryOutcome::Directory)
            }
            FileType::Symlink => match rustix::fs::readlinkat(directory, name, Vec::new()) {
                Ok(target) => {
                    self.write_header(&found, EntryType::Symlink, 0, path, target.as_bytes())?;
                    Ok(EntryOutcome::Done)
                }
                Err(Errno::NOENT) => Ok(EntryOutcome::Done),
                Err(error) => Ok(EntryOutcome::LeftOut(describe_read_error(error))),
            },
            _ => Ok(EntryOutcome::LeftOut("it is neither a file nor a directory nor a link")),
        }
    }

    fn pack_open_file(&mut self, mut file: File, path: &[u8]) -> Result<EntryOutcome, Error> {
        // Use the opened file, which may differ from the one seen before.
        let found = rustix::fs::fstat(&file).map_err(|error| Error::at_path(path, error))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Ok(EntryOutcome::LeftOut("it was replaced"));
        }
        if found.st_nlink > 1 {
            let which = (found.st_dev, found.st_ino);
            if let Some(first) = self.first_names.get(&which) {
                let first = first.clone();
                self.write_header(&found, EntryType::Link, 0, path, &first)?;
                return Ok(EntryOutcome::Done);
            }
            self.first_names.insert(which, path.to_vec());
        }
        let size = u64::try_from(found.st_size).unwrap_or(0);
        self.write_header(&found, EntryType::Regular, size, path, b"")?;
        let mut left = size;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
            let length = match file.read(&mut self.buffer[..most]) {
                Ok(0) => {
                    self.buffer.fill(0);
                    most
                }
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Error::at_path(path, error)),
            };
            self.out.write_all(&self.buffer[..length])?;
            left -= length as u64;
            (self.progress)(length as u64);
        }
        self.write_padding(size)?;
        self.packed.bytes += size;
        Ok(EntryOutcome::Done)
    }

    fn write_header(
        &mut self,
        found: &Stat,
        kind: EntryType,
        size: u64,
        path: &[u8],
        target: &[u8],
    ) -> Result<(), Error> {
        if path.len() > 100 {
            self.write_long_name(EntryType::GNULongName, path)?;
        }
        if target.len() > 100 {
            self.write_long_name(EntryType::GNULongLink, target)?;
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(found.st_mode & MODE_MASK);
        header.set_mtime(u64::try_from(found.st_mtime).unwrap_or(0));
        // The user who unpacks it owns it.
        header.set_uid(0);
        header.set_gid(0);
        copy_into_field(&mut header.as_old_mut().name, path);
        copy_into_field(&mut header.as_old_mut().linkname, target);
        header.set_cksum();
        self.out.write_all(header.as_bytes())?;
        self.packed.entries += 1;
        Ok(())
    }

    /// Writes a name that does not fit into a header as an extension before it.
    fn write_long_name(&mut self, kind: EntryType, name: &[u8]) -> Result<(), Error> {
        self.write_extension(kind, LONG_NAME_HEADER, &[name, b"\0"].concat())
    }

    fn write_extension(&mut self, kind: EntryType, name: &[u8], data: &[u8]) -> Result<(), Error> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        copy_into_field(&mut header.as_old_mut().name, name);
        header.set_cksum();
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(data)?;
        self.write_padding(data.len() as u64)
    }

    fn write_padding(&mut self, size: u64) -> Result<(), Error> {
        let padding = usize::try_from(size.wrapping_neg() % BLOCK_BYTES as u64).unwrap_or(0);
        Ok(self.out.write_all(&[0; BLOCK_BYTES][..padding])?)
    }

    fn finish_archive(mut self) -> Result<PackSummary, Error> {
        if self.packed.omitted > 0 {
            let property = format_pax_record(OMITTED_COUNT_KEY, &self.packed.omitted.to_string());
            self.write_extension(EntryType::XGlobalHeader, b"pax_global_header", property.as_bytes())?;
        }
        self.out.write_all(&[0; 2 * BLOCK_BYTES])?;
        self.out.flush()?;
        Ok(self.packed)
    }
}

/// Formats a pax record, which starts with its own length.
fn format_pax_record(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    while length < rest.len() + length.to_string().len() {
        length += 1;
    }
    format!("{length}{rest}")
}

fn copy_into_field(field: &mut [u8], value: &[u8]) {
    let length = value.len().min(field.len());
    field[..length].copy_from_slice(&value[..length]);
}

fn open_directory(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if path.is_empty() {
        return rustix::fs::openat(root.as_fd(), ".", how, Mode::empty());
    }
    rustix::fs::openat(root.as_fd(), path, how, Mode::empty())
}

fn list_names(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

const fn describe_read_error(error: Errno) -> &'static str {
    match error {
        Errno::ACCESS | Errno::PERM => "permission denied",
        Errno::NAMETOOLONG => "its path is too long",
        _ => "it cannot be read",
    }
}
