//! The content of files and trees. Nothing here can be made to wait by a fifo or a device, and half an upload leaves
//! what was there as it was.

use super::jobs::{entry, kind, name_of};
use super::wire::{Incoming, Outgoing, send};
use super::{Result, Stop, fault};
use atoll_core::provider::files::{FileError, FileFault, FileKind, SkippedEntry};
use atoll_protocol::files::{Done, PIECE, entry_frame};
use atoll_trees::{Links, Tally};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead, ErrorKind, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// What a new file gets that nobody said a mode for.
const NEW_FILE: u32 = 0o644;
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Something that has content: a file, or where `directories` are welcome, one of these.
fn open(path: &str, directories: bool) -> Result<(File, Stat)> {
    let file = rustix::fs::open(path, OPEN, Mode::empty()).map_err(|error| fault::of(path, error))?;
    let found = rustix::fs::fstat(&file).map_err(|error| fault::of(path, error))?;
    match kind(&found) {
        FileKind::File => {}
        FileKind::Directory if directories => {}
        FileKind::Directory => return Err(fault::of(path, Errno::ISDIR).into()),
        FileKind::Fifo => return Err(fault::unsupported(path, "a fifo").into()),
        FileKind::Socket => return Err(fault::unsupported(path, "a socket").into()),
        FileKind::Link | FileKind::Device => return Err(fault::unsupported(path, "a device").into()),
    }
    Ok((File::from(file), found))
}

pub(super) fn read(path: &str, offset: u64, length: Option<u64>, socket: &UnixStream) -> Result<Done> {
    let (file, found) = open(path, false)?;
    let seen = entry(name_of(path), &found, None);
    send(socket, &entry_frame(&seen))?;
    let mut at = offset.min(seen.size);
    let end = length.map_or(seen.size, |length| seen.size.min(offset.saturating_add(length)));
    let mut out = Outgoing(socket);
    let mut buffer = vec![0; PIECE];
    let mut bytes = 0;
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        match file.read_at(&mut buffer[..most], at) {
            Ok(0) => {
                let detail = format!("`{path}` became shorter while it was read");
                return Err(FileError::new(FileFault::Changed, detail).into());
            }
            Ok(length) => {
                out.write_all(&buffer[..length]).map_err(|_| Stop::Lost)?;
                at += length as u64;
                bytes += length as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(fault::of(path, error).into()),
        }
    }
    Ok(Done { bytes, entries: 1, ..Done::default() })
}

pub(super) fn pack(path: &str, socket: &UnixStream) -> Result<Done> {
    let (file, found) = open(path, true)?;
    send(socket, &entry_frame(&entry(name_of(path), &found, None)))?;
    let out = Outgoing(socket);
    let packed = match kind(&found) {
        FileKind::Directory => atoll_trees::pack(&OwnedFd::from(file), out, |_, _| {}, |_| {}),
        _ => atoll_trees::pack_file(file, name_of(path), out, |_| {}),
    };
    let packed = packed.map_err(fault::of_tree)?;
    Ok(Done { bytes: packed.bytes, entries: packed.entries, skipped: packed.left_out, ..Done::default() })
}

pub(super) fn unpack(path: &str, incoming: &mut Incoming<'_>) -> Result<Done> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    std::fs::create_dir_all(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => fault::of(path, Errno::NOTDIR),
        _ => fault::of(path, error),
    })?;
    let root = rustix::fs::open(path, how, Mode::empty()).map_err(|error| fault::of(path, error))?;
    // Inside the sandbox a link may point anywhere: it is the agent's own place.
    let Tally { entries, bytes, skipped, named, .. } =
        atoll_trees::unpack(incoming, root, Links::Any, |_| {}).map_err(fault::of_tree)?;
    let named = named.into_iter().map(|it| SkippedEntry { path: it.path, why: it.why }).collect();
    Ok(Done { bytes, entries, skipped, named, next: None })
}

pub(super) struct Write {
    pub(super) mode: Option<u32>,
    pub(super) make_parents: bool,
    pub(super) offset: Option<u64>,
    pub(super) length: Option<u64>,
}

pub(super) fn write(path: &str, how: Write, incoming: &mut Incoming<'_>) -> Result<Done> {
    let (parent, name) = place(path, how.make_parents)?;
    let before = match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Some(found),
        Err(Errno::NOENT) => None,
        Err(error) => return Err(fault::of(path, error).into()),
    };
    match before.as_ref().map(kind) {
        None | Some(FileKind::File) => {}
        Some(FileKind::Directory) => return Err(fault::of(path, Errno::ISDIR).into()),
        Some(FileKind::Link) => {
            let detail = format!("`{path}` is a symbolic link: name what it points to, or delete it first");
            return Err(FileError::new(FileFault::UnsupportedKind, detail).into());
        }
        Some(FileKind::Fifo) => return Err(fault::unsupported(path, "a fifo").into()),
        Some(FileKind::Socket) => return Err(fault::unsupported(path, "a socket").into()),
        Some(FileKind::Device) => return Err(fault::unsupported(path, "a device").into()),
    }
    let bytes = match how.offset {
        Some(offset) => write_into(path, &parent, name, offset, &how, incoming)?,
        None => replace(path, &parent, name, before.as_ref(), &how, incoming)?,
    };
    Ok(Done { bytes, entries: 1, ..Done::default() })
}

/// The directory that a file is to stand in, and its name.
fn place(path: &str, make_parents: bool) -> Result<(OwnedFd, &[u8])> {
    let split = Path::new(path);
    let (Some(parent), Some(name)) = (split.parent(), split.file_name()) else {
        return Err(fault::of(path, Errno::ISDIR).into());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(parent, how, Mode::empty()) {
        Err(Errno::NOENT) if make_parents => {
            std::fs::create_dir_all(parent).map_err(|error| fault::of(path, error))?;
            rustix::fs::open(parent, how, Mode::empty())
        }
        opened => opened,
    };
    let opened = opened.map_err(|error| match error {
        Errno::NOENT => FileError::new(FileFault::NotFound, format!("there is no directory for `{path}` to stand in")),
        error => fault::of(path, error),
    })?;
    Ok((opened, name.as_encoded_bytes()))
}

/// Hands every piece that comes on; gives how much it was.
fn take(
    path: &str,
    length: Option<u64>,
    incoming: &mut Incoming<'_>,
    mut put: impl FnMut(&[u8], u64) -> std::io::Result<()>,
) -> Result<u64> {
    let mut bytes = 0;
    loop {
        let piece = incoming.fill_buf().map_err(|_| Stop::Lost)?;
        if piece.is_empty() {
            break;
        }
        let count = piece.len();
        put(piece, bytes).map_err(|error| fault::of(path, error))?;
        incoming.consume(count);
        bytes += count as u64;
    }
    match length {
        Some(length) if length != bytes => {
            let detail = format!("{bytes} bytes came where {length} were announced");
            Err(FileError::new(FileFault::BadContent, detail).into())
        }
        _ => Ok(bytes),
    }
}

/// Over what is there, from an offset on.
fn write_into(
    path: &str,
    parent: &OwnedFd,
    name: &[u8],
    offset: u64,
    how: &Write,
    incoming: &mut Incoming<'_>,
) -> Result<u64> {
    let create = if offset == 0 { OFlags::CREATE } else { OFlags::empty() };
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | create;
    let mode = Mode::from_raw_mode(how.mode.unwrap_or(NEW_FILE) & 0o777);
    let file = rustix::fs::openat(parent, name, flags, mode).map_err(|error| fault::of(path, error))?;
    let found = rustix::fs::fstat(&file).map_err(|error| fault::of(path, error))?;
    if kind(&found) != FileKind::File {
        return Err(fault::unsupported(path, "something else by now").into());
    }
    if u64::try_from(found.st_size).unwrap_or(0) < offset {
        let detail = format!("offset {offset} is behind the end of `{path}`, which has {} bytes", found.st_size);
        return Err(FileError::new(FileFault::BadContent, detail).into());
    }
    let file = File::from(file);
    take(path, how.length, incoming, |piece, at| file.write_all_at(piece, offset + at))
}

/// In the place of what is there, when it is whole.
fn replace(
    path: &str,
    parent: &OwnedFd,
    name: &[u8],
    before: Option<&Stat>,
    how: &Write,
    incoming: &mut Incoming<'_>,
) -> Result<u64> {
    let failed = |error: Errno| fault::of(path, error);
    let new = New::make(parent).map_err(failed)?;
    let mut file = &new.file;
    let bytes = take(path, how.length, incoming, |piece, _| file.write_all(piece))?;
    let asked = how.mode.map(|mode| mode & 0o777);
    let mode = asked.or_else(|| before.map(|before| before.st_mode & 0o7777)).unwrap_or(NEW_FILE);
    rustix::fs::fchmod(&new.file, Mode::from_raw_mode(mode)).map_err(failed)?;
    new.put(name, before.is_some()).map_err(failed)?;
    Ok(bytes)
}

/// A file on its way to its place. It has no name until it is whole, where the file system can do that; else one of
/// its own, which goes with it.
struct New<'a> {
    parent: &'a OwnedFd,
    file: File,
    name: Option<PathBuf>,
}

impl<'a> New<'a> {
    fn make(parent: &'a OwnedFd) -> std::result::Result<Self, Errno> {
        let unnamed = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        match rustix::fs::openat(parent, ".", unnamed, mode) {
            Ok(file) => return Ok(Self { parent, file: File::from(file), name: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let named = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = temporary();
        let file = File::from(rustix::fs::openat(parent, &name, named, mode)?);
        Ok(Self { parent, file, name: Some(name) })
    }

    fn put(mut self, name: &[u8], exists: bool) -> std::result::Result<(), Errno> {
        if self.name.is_none() {
            if !exists {
                match self.link(name) {
                    Err(Errno::EXIST) => {}
                    linked => return linked,
                }
            }
            let temporary = temporary();
            self.link(temporary.as_os_str().as_encoded_bytes())?;
            self.name = Some(temporary);
        }
        if let Some(temporary) = &self.name {
            rustix::fs::renameat(self.parent, temporary, self.parent, name)?;
            self.name = None;
        }
        Ok(())
    }

    fn link(&self, name: &[u8]) -> std::result::Result<(), Errno> {
        let this = format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd());
        rustix::fs::linkat(CWD, this, self.parent, name, AtFlags::SYMLINK_FOLLOW)
    }
}

impl Drop for New<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = rustix::fs::unlinkat(self.parent, name, AtFlags::empty());
        }
    }
}

fn temporary() -> PathBuf {
    PathBuf::from(format!(".atoll-{}", uuid::Uuid::now_v7().simple()))
}
