//! Metadata, lists, new directories, renames and deletions.

use super::scope::{check_scope, check_words};
use super::wire::send_frame;
use super::{Result, fault};
use atoll_core::provider::files::{FileError, FileErrorCode, FileInfo, FileKind, ReadScope};
use atoll_protocol::files::{FileOperationSummary, encode_entry};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use std::collections::BinaryHeap;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

const MAX_LIST_ENTRIES: u32 = 1000;

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

pub(super) fn entry(name: &[u8], found: &Stat, target: Option<&[u8]>) -> FileInfo {
    FileInfo {
        name: atoll_trees::display_path(name),
        name_hex: std::str::from_utf8(name).is_err().then(|| encode_hex(name)),
        kind: kind(found),
        size: u64::try_from(found.st_size).unwrap_or(0),
        mode: found.st_mode & 0o7777,
        modified: found.st_mtime.saturating_mul(1_000_000_000).saturating_add_unsigned(found.st_mtime_nsec),
        target: target.map(atoll_trees::display_path),
        inode: found.st_ino,
    }
}

/// The last component of a path.
pub(super) fn name_of(path: &str) -> &[u8] {
    Path::new(path).file_name().map_or(path.as_bytes(), |name| name.as_encoded_bytes())
}

fn stat_entry(at: impl AsFd + Copy, name: &[u8]) -> std::result::Result<FileInfo, Errno> {
    let found = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let target = match kind(&found) {
        FileKind::Link => rustix::fs::readlinkat(at, name, Vec::new()).ok(),
        FileKind::File | FileKind::Directory | FileKind::Fifo | FileKind::Socket | FileKind::Device => None,
    };
    Ok(entry(name, &found, target.as_ref().map(|target| target.as_bytes())))
}

pub(super) fn stat(path: &str, scope: ReadScope, socket: &UnixStream) -> Result<FileOperationSummary> {
    let failed = |error: Errno| fault::of(path, error);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    check_words(path, scope)?;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    check_scope(path, &opened, scope)?;
    let found = rustix::fs::fstat(&opened).map_err(failed)?;
    let target = match kind(&found) {
        FileKind::Link => rustix::fs::readlinkat(&opened, c"", Vec::new()).ok(),
        FileKind::File | FileKind::Directory | FileKind::Fifo | FileKind::Socket | FileKind::Device => None,
    };
    let info = entry(name_of(path), &found, target.as_ref().map(|target| target.as_bytes()));
    send_frame(socket, &encode_entry(&info))?;
    Ok(FileOperationSummary::default())
}

/// Lists a page of a directory, sorted by the bytes of the names. Memory use is bounded by the page size.
pub(super) fn list(
    path: &str,
    after: Option<&str>,
    limit: u32,
    scope: ReadScope,
    socket: &UnixStream,
) -> Result<FileOperationSummary> {
    let invalid_cursor = || FileError::new(FileErrorCode::BadContent, "invalid cursor");
    let after = after.map(|after| decode_hex(after).ok_or_else(invalid_cursor)).transpose()?;
    let limit = usize::try_from(limit.clamp(1, MAX_LIST_ENTRIES)).unwrap_or(1);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let failed = |error: Errno| fault::of(path, error);
    check_words(path, scope)?;
    let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    check_scope(path, &directory, scope)?;
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
    let mut done = FileOperationSummary {
        next: names.last().filter(|_| more).map(|name| encode_hex(name)),
        ..FileOperationSummary::default()
    };
    for name in names {
        // Skip entries that have disappeared.
        if let Ok(info) = stat_entry(directory.as_fd(), &name) {
            send_frame(socket, &encode_entry(&info))?;
            done.entries += 1;
        }
    }
    Ok(done)
}

pub(super) fn make_directory(path: &str) -> Result<FileOperationSummary> {
    std::fs::create_dir_all(path).map_err(|error| fault::of(path, error))?;
    Ok(FileOperationSummary { entries: 1, ..FileOperationSummary::default() })
}

pub(super) fn rename(from: &str, to: &str, replace: bool) -> Result<FileOperationSummary> {
    let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    match rustix::fs::renameat_with(CWD, from, CWD, to, flags) {
        Ok(()) => Ok(FileOperationSummary { entries: 1, ..FileOperationSummary::default() }),
        Err(Errno::INVAL) => {
            let detail = format!("cannot move `{from}` into itself (`{to}`)");
            Err(FileError::new(FileErrorCode::UnsupportedKind, detail).into())
        }
        Err(Errno::NOENT) if rustix::fs::statat(CWD, from, AtFlags::SYMLINK_NOFOLLOW).is_ok() => {
            let detail = format!("the parent directory of `{to}` does not exist");
            Err(FileError::new(FileErrorCode::NotFound, detail).into())
        }
        Err(error @ (Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR)) => Err(fault::of(to, error).into()),
        Err(error) => Err(fault::of(from, error).into()),
    }
}

pub(super) fn delete(path: &str, recursive: bool) -> Result<FileOperationSummary> {
    let failed = |error: std::io::Error| fault::of(path, error);
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    if !found.is_dir() {
        std::fs::remove_file(path).map_err(failed)?;
        return Ok(FileOperationSummary { entries: 1, ..FileOperationSummary::default() });
    }
    // The root and the workspace cannot be deleted: only their content would go.
    let is_same = |other: &str| {
        std::fs::metadata(other).is_ok_and(|other| (other.dev(), other.ino()) == (found.dev(), found.ino()))
    };
    if is_same(".") || is_same("/") {
        let detail = format!("cannot delete the workspace or the root (`{path}`): delete their entries by name");
        return Err(FileError::new(FileErrorCode::Denied, detail).into());
    }
    if recursive { std::fs::remove_dir_all(path) } else { std::fs::remove_dir(path) }.map_err(failed)?;
    Ok(FileOperationSummary { entries: 1, ..FileOperationSummary::default() })
}

pub(super) fn encode_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digits = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    text.len().is_multiple_of(2).then(|| (0..text.len()).step_by(2).map(digits).collect())?
}
