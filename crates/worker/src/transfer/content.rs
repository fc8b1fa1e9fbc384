//! Content of files and trees. A fifo or device never blocks a transfer, and an incomplete upload leaves the old file
//! unchanged.

use super::jobs::{entry, kind, name_of};
use super::scope::{check_scope, check_words};
use super::wire::{Incoming, Outgoing, send_frame};
use super::{Result, TransferError, fault};
use atoll_core::provider::files::{FileError, FileErrorCode, FileKind, ReadScope, SkippedEntry};
use atoll_protocol::files::{FileOperationSummary, MAX_CHUNK_BYTES, encode_entry};
use atoll_trees::{SymlinkPolicy, UnpackSummary};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead, ErrorKind, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Mode of a new file if the request has none.
const DEFAULT_FILE_MODE: u32 = 0o644;
const OPEN_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens a regular file for reading, or also a directory if `allow_directory` is set.
fn open_readable(path: &str, allow_directory: bool, scope: ReadScope) -> Result<(File, Stat)> {
    check_words(path, scope)?;
    let file = rustix::fs::open(path, OPEN_FLAGS, Mode::empty()).map_err(|error| fault::of(path, error))?;
    check_scope(path, &file, scope)?;
    let found = rustix::fs::fstat(&file).map_err(|error| fault::of(path, error))?;
    match kind(&found) {
        FileKind::File => {}
        FileKind::Directory if allow_directory => {}
        FileKind::Directory => return Err(fault::of(path, Errno::ISDIR).into()),
        FileKind::Fifo => return Err(fault::unsupported(path, "a fifo").into()),
        FileKind::Socket => return Err(fault::unsupported(path, "a socket").into()),
        FileKind::Link | FileKind::Device => return Err(fault::unsupported(path, "a device").into()),
    }
    Ok((File::from(file), found))
}

pub(super) fn read(
    path: &str,
    offset: u64,
    length: Option<u64>,
    scope: ReadScope,
    socket: &UnixStream,
) -> Result<FileOperationSummary> {
    let (file, found) = open_readable(path, false, scope)?;
    let info = entry(name_of(path), &found, None);
    send_frame(socket, &encode_entry(&info))?;
    let mut at = offset.min(info.size);
    let end = length.map_or(info.size, |length| info.size.min(offset.saturating_add(length)));
    let mut out = Outgoing(socket);
    let mut buffer = vec![0; MAX_CHUNK_BYTES];
    let mut bytes = 0;
    while at < end {
        let most = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        match file.read_at(&mut buffer[..most], at) {
            Ok(0) => {
                let detail = format!("`{path}` shrank while it was read");
                return Err(FileError::new(FileErrorCode::Changed, detail).into());
            }
            Ok(length) => {
                out.write_all(&buffer[..length]).map_err(|_| TransferError::Lost)?;
                at += length as u64;
                bytes += length as u64;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(fault::of(path, error).into()),
        }
    }
    Ok(FileOperationSummary { bytes, entries: 1, ..FileOperationSummary::default() })
}

pub(super) fn pack(path: &str, scope: ReadScope, socket: &UnixStream) -> Result<FileOperationSummary> {
    let (file, found) = open_readable(path, true, scope)?;
    send_frame(socket, &encode_entry(&entry(name_of(path), &found, None)))?;
    let out = Outgoing(socket);
    let packed = match kind(&found) {
        FileKind::Directory => atoll_trees::pack_tree(&OwnedFd::from(file), out, |_, _| {}, |_| {}),
        _ => atoll_trees::pack_file(file, name_of(path), out, |_| {}),
    };
    let packed = packed.map_err(fault::of_tree)?;
    Ok(FileOperationSummary {
        bytes: packed.bytes,
        entries: packed.entries,
        skipped: packed.omitted,
        ..FileOperationSummary::default()
    })
}

pub(super) fn unpack(path: &str, incoming: &mut Incoming<'_>) -> Result<FileOperationSummary> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    std::fs::create_dir_all(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => fault::of(path, Errno::NOTDIR),
        _ => fault::of(path, error),
    })?;
    let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| fault::of(path, error))?;
    // A symlink may point anywhere: it resolves inside the sandbox.
    let UnpackSummary { entries, bytes, skipped, named, .. } =
        atoll_trees::unpack_tree(incoming, root, SymlinkPolicy::Any, |_| {}).map_err(fault::of_tree)?;
    let named = named.into_iter().map(|it| SkippedEntry { path: it.path, why: it.reason }).collect();
    Ok(FileOperationSummary { bytes, entries, skipped, named, next: None })
}

pub(super) struct Write {
    pub(super) mode: Option<u32>,
    pub(super) make_parents: bool,
    pub(super) offset: Option<u64>,
    pub(super) length: Option<u64>,
}

pub(super) fn write(path: &str, how: Write, incoming: &mut Incoming<'_>) -> Result<FileOperationSummary> {
    let (parent, name) = open_parent(path, how.make_parents)?;
    let before = match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Some(found),
        Err(Errno::NOENT) => None,
        Err(error) => return Err(fault::of(path, error).into()),
    };
    match before.as_ref().map(kind) {
        None | Some(FileKind::File) => {}
        Some(FileKind::Directory) => return Err(fault::of(path, Errno::ISDIR).into()),
        Some(FileKind::Link) => {
            let detail = format!("`{path}` is a symbolic link: write to its target, or delete it first");
            return Err(FileError::new(FileErrorCode::UnsupportedKind, detail).into());
        }
        Some(FileKind::Fifo) => return Err(fault::unsupported(path, "a fifo").into()),
        Some(FileKind::Socket) => return Err(fault::unsupported(path, "a socket").into()),
        Some(FileKind::Device) => return Err(fault::unsupported(path, "a device").into()),
    }
    let bytes = match how.offset {
        Some(offset) => write_at_offset(path, &parent, name, offset, &how, incoming)?,
        None => replace_file(path, &parent, name, before.as_ref(), &how, incoming)?,
    };
    Ok(FileOperationSummary { bytes, entries: 1, ..FileOperationSummary::default() })
}

/// Opens the parent directory of a path, and returns it with the last component.
fn open_parent(path: &str, make_parents: bool) -> Result<(OwnedFd, &[u8])> {
    let split = Path::new(path);
    let (Some(parent), Some(name)) = (split.parent(), split.file_name()) else {
        return Err(fault::of(path, Errno::ISDIR).into());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(parent, flags, Mode::empty()) {
        Err(Errno::NOENT) if make_parents => {
            std::fs::create_dir_all(parent).map_err(|error| fault::of(path, error))?;
            rustix::fs::open(parent, flags, Mode::empty())
        }
        opened => opened,
    };
    let opened = opened.map_err(|error| match error {
        Errno::NOENT => {
            FileError::new(FileErrorCode::NotFound, format!("the parent directory of `{path}` does not exist"))
        }
        error => fault::of(path, error),
    })?;
    Ok((opened, name.as_encoded_bytes()))
}

/// Passes each received chunk to `store`, checks the announced length, and returns the number of bytes.
fn receive_data(
    path: &str,
    length: Option<u64>,
    incoming: &mut Incoming<'_>,
    mut store: impl FnMut(&[u8], u64) -> std::io::Result<()>,
) -> Result<u64> {
    let mut bytes = 0;
    loop {
        let piece = incoming.fill_buf().map_err(|_| TransferError::Lost)?;
        if piece.is_empty() {
            break;
        }
        let count = piece.len();
        store(piece, bytes).map_err(|error| fault::of(path, error))?;
        incoming.consume(count);
        bytes += count as u64;
    }
    match length {
        Some(length) if length != bytes => {
            let detail = format!("received {bytes} bytes, expected {length}");
            Err(FileError::new(FileErrorCode::BadContent, detail).into())
        }
        _ => Ok(bytes),
    }
}

/// Overwrites an existing file from an offset on.
fn write_at_offset(
    path: &str,
    parent: &OwnedFd,
    name: &[u8],
    offset: u64,
    how: &Write,
    incoming: &mut Incoming<'_>,
) -> Result<u64> {
    let create = if offset == 0 { OFlags::CREATE } else { OFlags::empty() };
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | create;
    let mode = Mode::from_raw_mode(how.mode.unwrap_or(DEFAULT_FILE_MODE) & 0o777);
    let file = rustix::fs::openat(parent, name, flags, mode).map_err(|error| fault::of(path, error))?;
    let found = rustix::fs::fstat(&file).map_err(|error| fault::of(path, error))?;
    if kind(&found) != FileKind::File {
        return Err(fault::unsupported(path, "no longer a regular file").into());
    }
    if u64::try_from(found.st_size).unwrap_or(0) < offset {
        let detail = format!("offset {offset} is past the end of `{path}`, which has {} bytes", found.st_size);
        return Err(FileError::new(FileErrorCode::BadContent, detail).into());
    }
    let file = File::from(file);
    receive_data(path, how.length, incoming, |piece, at| file.write_all_at(piece, offset + at))
}

/// Writes a new file and replaces the old one once it is complete.
fn replace_file(
    path: &str,
    parent: &OwnedFd,
    name: &[u8],
    before: Option<&Stat>,
    how: &Write,
    incoming: &mut Incoming<'_>,
) -> Result<u64> {
    let failed = |error: Errno| fault::of(path, error);
    let new = PendingFile::create(parent).map_err(failed)?;
    let mut file = &new.file;
    let bytes = receive_data(path, how.length, incoming, |piece, _| file.write_all(piece))?;
    let requested = how.mode.map(|mode| mode & 0o777);
    let mode = requested.or_else(|| before.map(|before| before.st_mode & 0o7777)).unwrap_or(DEFAULT_FILE_MODE);
    rustix::fs::fchmod(&new.file, Mode::from_raw_mode(mode)).map_err(failed)?;
    new.publish(name, before.is_some()).map_err(failed)?;
    Ok(bytes)
}

/// An incomplete file. It has no name where the file system supports that (`O_TMPFILE`), otherwise a temporary name that
/// the drop removes.
struct PendingFile<'a> {
    parent: &'a OwnedFd,
    file: File,
    name: Option<PathBuf>,
}

impl<'a> PendingFile<'a> {
    fn create(parent: &'a OwnedFd) -> std::result::Result<Self, Errno> {
        let unnamed = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        match rustix::fs::openat(parent, ".", unnamed, mode) {
            Ok(file) => return Ok(Self { parent, file: File::from(file), name: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let named = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = temporary_name();
        let file = File::from(rustix::fs::openat(parent, &name, named, mode)?);
        Ok(Self { parent, file, name: Some(name) })
    }

    /// Gives the complete file its final name.
    fn publish(mut self, name: &[u8], exists: bool) -> std::result::Result<(), Errno> {
        if self.name.is_none() {
            if !exists {
                match self.link(name) {
                    Err(Errno::EXIST) => {}
                    linked => return linked,
                }
            }
            let temporary = temporary_name();
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

impl Drop for PendingFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = rustix::fs::unlinkat(self.parent, name, AtFlags::empty());
        }
    }
}

fn temporary_name() -> PathBuf {
    PathBuf::from(format!(".atoll-{}", uuid::Uuid::now_v7().simple()))
}
