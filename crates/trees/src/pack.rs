//! A tree as tar. It may change meanwhile: what goes away is left out, and a file that shrinks is filled up with zeros,
//! since its size was said before.

use crate::error::Error;
use crate::path::join;
use crate::{BLOCK, CHUNK, LEFT_OUT};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use tar::{EntryType, Header};

const LONG_NAME: &[u8] = b"././@LongLink";
/// Neither set-uid nor set-gid nor sticky.
const MODE: u32 = 0o777;

/// What was packed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Packed {
    pub entries: u64,
    pub bytes: u64,
    /// Sockets, fifos, devices, and what may not be read.
    pub left_out: u64,
}

/// Packs everything below `root`. `left_out` hears of what is not packed, and why; `progress` how many bytes are.
pub fn pack(
    root: &OwnedFd,
    out: impl Write,
    mut left_out: impl FnMut(&[u8], &str),
    progress: impl FnMut(u64),
) -> Result<Packed, Error> {
    let mut packer = Packer::new(out, progress);
    let mut directories = vec![Vec::new()];
    while let Some(path) = directories.pop() {
        let names = match open_directory(root, &path) {
            Ok(directory) => names(&directory).map(|names| (directory, names)),
            Err(error) => Err(error),
        };
        let (directory, names) = match names {
            Ok(found) => found,
            Err(error) if path.is_empty() => return Err(Error::file(b".", error)),
            Err(error) => {
                packer.packed.left_out += 1;
                left_out(&path, said(error));
                continue;
            }
        };
        let mut below = Vec::new();
        for name in names {
            let at = join(&path, &name);
            match packer.entry(&directory, &name, &at)? {
                Put::Done => {}
                Put::Directory => below.push(at),
                Put::LeftOut(why) => {
                    packer.packed.left_out += 1;
                    left_out(&at, why);
                }
            }
        }
        directories.extend(below.into_iter().rev());
    }
    packer.finish()
}

/// Packs one open file under `name`.
pub fn pack_file(file: File, name: &[u8], out: impl Write, progress: impl FnMut(u64)) -> Result<Packed, Error> {
    let mut packer = Packer::new(out, progress);
    packer.open_file(file, name)?;
    packer.finish()
}

enum Put {
    Done,
    /// What is in it is to be packed too.
    Directory,
    LeftOut(&'static str),
}

struct Packer<W: Write, P> {
    out: std::io::BufWriter<W>,
    progress: P,
    buffer: Vec<u8>,
    /// The first name of files that have several.
    first_names: HashMap<(u64, u64), Vec<u8>>,
    packed: Packed,
}

impl<W: Write, P: FnMut(u64)> Packer<W, P> {
    fn new(out: W, progress: P) -> Self {
        let out = std::io::BufWriter::with_capacity(CHUNK, out);
        Self { out, progress, buffer: vec![0; CHUNK], first_names: HashMap::new(), packed: Packed::default() }
    }

    fn entry(&mut self, directory: &OwnedFd, name: &[u8], path: &[u8]) -> Result<Put, Error> {
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let found = match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            // It went away.
            Err(Errno::NOENT) => return Ok(Put::Done),
            Err(error) => return Ok(Put::LeftOut(said(error))),
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => match rustix::fs::openat(directory, name, how, Mode::empty()) {
                Ok(file) => self.open_file(File::from(file), path),
                Err(Errno::NOENT) => Ok(Put::Done),
                Err(error) => Ok(Put::LeftOut(said(error))),
            },
            FileType::Directory => {
                self.header(&found, EntryType::Directory, 0, &[path, b"/"].concat(), b"")?;
                Ok(Put::Directory)
            }
            FileType::Symlink => match rustix::fs::readlinkat(directory, name, Vec::new()) {
                Ok(target) => {
                    self.header(&found, EntryType::Symlink, 0, path, target.as_bytes())?;
                    Ok(Put::Done)
                }
                Err(Errno::NOENT) => Ok(Put::Done),
                Err(error) => Ok(Put::LeftOut(said(error))),
            },
            _ => Ok(Put::LeftOut("it is neither a file nor a directory nor a link")),
        }
    }

    fn open_file(&mut self, mut file: File, path: &[u8]) -> Result<Put, Error> {
        // What was opened counts, not what had its name a moment before.
        let found = rustix::fs::fstat(&file).map_err(|error| Error::file(path, error))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Ok(Put::LeftOut("it became something else"));
        }
        if found.st_nlink > 1 {
            let which = (found.st_dev, found.st_ino);
            if let Some(first) = self.first_names.get(&which) {
                let first = first.clone();
                self.header(&found, EntryType::Link, 0, path, &first)?;
                return Ok(Put::Done);
            }
            self.first_names.insert(which, path.to_vec());
        }
        let size = u64::try_from(found.st_size).unwrap_or(0);
        self.header(&found, EntryType::Regular, size, path, b"")?;
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
                Err(error) => return Err(Error::file(path, error)),
            };
            self.out.write_all(&self.buffer[..length])?;
            left -= length as u64;
            (self.progress)(length as u64);
        }
        self.pad(size)?;
        self.packed.bytes += size;
        Ok(Put::Done)
    }

    fn header(&mut self, found: &Stat, kind: EntryType, size: u64, path: &[u8], target: &[u8]) -> Result<(), Error> {
        if path.len() > 100 {
            self.long(EntryType::GNULongName, path)?;
        }
        if target.len() > 100 {
            self.long(EntryType::GNULongLink, target)?;
        }
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(found.st_mode & MODE);
        header.set_mtime(u64::try_from(found.st_mtime).unwrap_or(0));
        // Whoever unpacks it owns it.
        header.set_uid(0);
        header.set_gid(0);
        copy(&mut header.as_old_mut().name, path);
        copy(&mut header.as_old_mut().linkname, target);
        header.set_cksum();
        self.out.write_all(header.as_bytes())?;
        self.packed.entries += 1;
        Ok(())
    }

    /// A name that has no room in a header stands before it.
    fn long(&mut self, kind: EntryType, name: &[u8]) -> Result<(), Error> {
        self.extension(kind, LONG_NAME, &[name, b"\0"].concat())
    }

    fn extension(&mut self, kind: EntryType, name: &[u8], data: &[u8]) -> Result<(), Error> {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        copy(&mut header.as_old_mut().name, name);
        header.set_cksum();
        self.out.write_all(header.as_bytes())?;
        self.out.write_all(data)?;
        self.pad(data.len() as u64)
    }

    fn pad(&mut self, size: u64) -> Result<(), Error> {
        let padding = usize::try_from(size.wrapping_neg() % BLOCK as u64).unwrap_or(0);
        Ok(self.out.write_all(&[0; BLOCK][..padding])?)
    }

    fn finish(mut self) -> Result<Packed, Error> {
        if self.packed.left_out > 0 {
            let property = property(LEFT_OUT, &self.packed.left_out.to_string());
            self.extension(EntryType::XGlobalHeader, b"pax_global_header", property.as_bytes())?;
        }
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.packed)
    }
}

/// A record that begins with its own length.
fn property(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    while length < rest.len() + length.to_string().len() {
        length += 1;
    }
    format!("{length}{rest}")
}

fn copy(field: &mut [u8], value: &[u8]) {
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

fn names(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
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

const fn said(error: Errno) -> &'static str {
    match error {
        Errno::ACCESS | Errno::PERM => "it may not be read",
        Errno::NAMETOOLONG => "its path is too long",
        _ => "it can't be read",
    }
}
