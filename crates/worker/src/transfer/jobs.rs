//! Looking, making, moving and deleting.

use super::wire::send;
use super::{Result, fault};
use atoll_core::provider::files::{FileEntry, FileError, FileFault, FileKind};
use atoll_protocol::files::{Done, entry_frame};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use std::collections::BinaryHeap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

const LONGEST_LIST: u32 = 1000;

pub(super) fn kind(found: &Stat) -> FileKind {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Link,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        _ => FileKind::Device,
    }
}

pub(super) fn entry(name: &[u8], found: &Stat, target: Option<&[u8]>) -> FileEntry {
    FileEntry {
        name: atoll_trees::shown(name),
        name_hex: std::str::from_utf8(name).is_err().then(|| hexadecimal(name)),
        kind: kind(found),
        size: u64::try_from(found.st_size).unwrap_or(0),
        mode: found.st_mode & 0o7777,
        modified: found.st_mtime.saturating_mul(1_000_000_000).saturating_add_unsigned(found.st_mtime_nsec),
        target: target.map(atoll_trees::shown),
        inode: found.st_ino,
    }
}

/// The last part of a path, as its name.
pub(super) fn name_of(path: &str) -> &[u8] {
    Path::new(path).file_name().map_or(path.as_bytes(), |name| name.as_encoded_bytes())
}

fn look(at: impl AsFd + Copy, name: &[u8], shown: &[u8]) -> std::result::Result<FileEntry, Errno> {
    let found = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let target = match kind(&found) {
        FileKind::Link => rustix::fs::readlinkat(at, name, Vec::new()).ok(),
        FileKind::File | FileKind::Directory | FileKind::Fifo | FileKind::Socket | FileKind::Device => None,
    };
    Ok(entry(shown, &found, target.as_ref().map(|target| target.as_bytes())))
}

pub(super) fn stat(path: &str, socket: &UnixStream) -> Result<Done> {
    let seen = look(CWD, path.as_bytes(), name_of(path)).map_err(|error| fault::of(path, error))?;
    send(socket, &entry_frame(&seen))?;
    Ok(Done::default())
}

/// Sorted by the bytes of the names. However large the directory is, no more than a page of it is kept.
pub(super) fn list(path: &str, after: Option<&str>, limit: u32, socket: &UnixStream) -> Result<Done> {
    let bad = || FileError::new(FileFault::BadContent, "the place to go on from is not one of this list");
    let after = after.map(|after| bytes_of(after).ok_or_else(bad)).transpose()?;
    let limit = usize::try_from(limit.clamp(1, LONGEST_LIST)).unwrap_or(1);
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let failed = |error: Errno| fault::of(path, error);
    let directory = rustix::fs::open(path, how, Mode::empty()).map_err(failed)?;
    let mut first = BinaryHeap::new();
    for found in Dir::read_from(&directory).map_err(failed)? {
        let found = found.map_err(failed)?;
        let name = found.file_name().to_bytes();
        if name == b"." || name == b".." || after.as_ref().is_some_and(|after| name <= &after[..]) {
            continue;
        }
        first.push(name.to_vec());
        if first.len() > limit + 1 {
            first.pop();
        }
    }
    let mut names = first.into_sorted_vec();
    let more = names.len() > limit;
    names.truncate(limit);
    let mut done = Done { next: names.last().filter(|_| more).map(|name| hexadecimal(name)), ..Done::default() };
    for name in names {
        // What has gone meanwhile is not listed.
        if let Ok(seen) = look(directory.as_fd(), &name, &name) {
            send(socket, &entry_frame(&seen))?;
            done.entries += 1;
        }
    }
    Ok(done)
}

pub(super) fn make_directory(path: &str) -> Result<Done> {
    std::fs::create_dir_all(path).map_err(|error| fault::of(path, error))?;
    Ok(Done { entries: 1, ..Done::default() })
}

pub(super) fn rename(from: &str, to: &str, replace: bool) -> Result<Done> {
    let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    match rustix::fs::renameat_with(CWD, from, CWD, to, flags) {
        Ok(()) => Ok(Done { entries: 1, ..Done::default() }),
        Err(Errno::INVAL) => {
            let detail = format!("`{from}` can't be moved to `{to}`, which is inside of it");
            Err(FileError::new(FileFault::UnsupportedKind, detail).into())
        }
        Err(Errno::NOENT) if rustix::fs::statat(CWD, from, AtFlags::SYMLINK_NOFOLLOW).is_ok() => {
            let detail = format!("there is no directory for `{to}` to stand in");
            Err(FileError::new(FileFault::NotFound, detail).into())
        }
        Err(error @ (Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR)) => Err(fault::of(to, error).into()),
        Err(error) => Err(fault::of(from, error).into()),
    }
}

pub(super) fn delete(path: &str, recursive: bool) -> Result<Done> {
    let failed = |error: std::io::Error| fault::of(path, error);
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    if !found.is_dir() {
        std::fs::remove_file(path).map_err(failed)?;
        return Ok(Done { entries: 1, ..Done::default() });
    }
    // Its content would go, and it would stay: nobody means that.
    let same = |other: &str| {
        std::fs::metadata(other).is_ok_and(|other| (other.dev(), other.ino()) == (found.dev(), found.ino()))
    };
    if same(".") || same("/") {
        let detail = format!("`{path}` is the workspace itself, or the root: delete what is in it by name");
        return Err(FileError::new(FileFault::Denied, detail).into());
    }
    if recursive { std::fs::remove_dir_all(path) } else { std::fs::remove_dir(path) }.map_err(failed)?;
    Ok(Done { entries: 1, ..Done::default() })
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let digits = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    text.len().is_multiple_of(2).then(|| (0..text.len()).step_by(2).map(digits).collect())?
}
