//! Stats and reads one entry of the tree. It never follows links and opens only regular files, so that no fifo or
//! device can block the caller.

use crate::relative_path;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

pub type Digest = [u8; 32];

/// Larger files are reported by size only: reading gigabytes would block this process.
const MAX_HASHED_BYTES: u64 = 64 * 1024 * 1024;
/// A NUL byte within this range makes a file binary.
const BINARY_SAMPLE_BYTES: usize = 8 * 1024;
/// Longest tick of the clock for file times. Some file systems use whole seconds.
pub const MAX_CLOCK_STEP_NS: i64 = 11_000_000;
const SECOND_NS: i64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Link,
}

/// Changes whenever the content changes, except within one clock tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub modified: i64,
    pub changed: i64,
    pub size: u64,
    pub inode: u64,
}

/// A regular file or a symbolic link.
#[derive(Clone, Copy, Debug)]
pub struct FileEntry {
    pub kind: EntryKind,
    pub stamp: Stamp,
    /// Written so recently that another write may leave the same stamp.
    pub is_fresh: bool,
    /// The file has other names, through which it can be written.
    pub has_hard_links: bool,
}

pub enum EntryState {
    File(FileEntry),
    Directory,
    /// Missing, or without content.
    Absent,
}

/// The content of an entry. `text` is present for short text files.
pub struct FileContent {
    pub entry: FileEntry,
    pub text: Option<String>,
    pub is_binary: bool,
    /// Absent if the file is unreadable or too large.
    pub digest: Option<Digest>,
}

pub fn hash_bytes(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

pub fn to_hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(BINARY_SAMPLE_BYTES).any(|byte| *byte == 0) || std::str::from_utf8(bytes).is_err()
}

/// Nanoseconds since 1970.
pub fn unix_time_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

pub fn stat_entry(directory: impl AsFd, name: impl rustix::path::Arg) -> EntryState {
    match rustix::fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS) {
        Ok(found) => classify_entry(&found),
        Err(_) => EntryState::Absent,
    }
}

pub fn stat_path(root: &Path, path: &[u8]) -> EntryState {
    stat_entry(CWD, relative_path::to_absolute(root, path))
}

fn classify_entry(found: &Statx) -> EntryState {
    let kind = match rustix::fs::FileType::from_raw_mode(found.stx_mode.into()) {
        rustix::fs::FileType::RegularFile => EntryKind::File,
        rustix::fs::FileType::Symlink => EntryKind::Link,
        rustix::fs::FileType::Directory => return EntryState::Directory,
        _ => return EntryState::Absent,
    };
    let nanoseconds = |seconds: i64, rest: u32| seconds.wrapping_mul(SECOND_NS).wrapping_add(rest.into());
    let stamp = Stamp {
        modified: nanoseconds(found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        changed: nanoseconds(found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
        size: found.stx_size,
        inode: found.stx_ino,
    };
    let step = if found.stx_ctime.tv_nsec == 0 { SECOND_NS } else { MAX_CLOCK_STEP_NS };
    let fresh = unix_time_ns().saturating_sub(stamp.changed) < step;
    EntryState::File(FileEntry {
        kind,
        stamp,
        is_fresh: fresh,
        has_hard_links: kind == EntryKind::File && found.stx_nlink > 1,
    })
}

/// Reads an entry; `None` if it is gone or has another type by now.
pub fn read_entry(root: &Path, path: &[u8], file_entry: FileEntry, largest_text: u64) -> Option<FileContent> {
    match file_entry.kind {
        EntryKind::Link => read_link(root, path, file_entry),
        EntryKind::File => read_file(root, path, file_entry, largest_text),
    }
}

fn read_link(root: &Path, path: &[u8], file_entry: FileEntry) -> Option<FileContent> {
    let target = rustix::fs::readlinkat(CWD, relative_path::to_absolute(root, path), Vec::new()).ok()?;
    Some(classify_content(file_entry, target.into_bytes()))
}

fn read_file(root: &Path, path: &[u8], file_entry: FileEntry, largest_text: u64) -> Option<FileContent> {
    let mut file = match open_regular(root, path) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => return None,
        Err(_) => return Some(content_unread(file_entry)),
    };
    // Stat the open file: another one may have had this name before.
    let file_entry = match stat_open_file(&file) {
        EntryState::File(file_entry) if file_entry.kind == EntryKind::File => file_entry,
        EntryState::File(_) | EntryState::Directory | EntryState::Absent => return None,
    };
    if file_entry.stamp.size > MAX_HASHED_BYTES {
        return Some(content_unread(file_entry));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(file_entry.stamp.size.min(largest_text)).unwrap_or(0));
    if file.by_ref().take(largest_text.saturating_add(1)).read_to_end(&mut bytes).is_err() {
        return Some(content_unread(file_entry));
    }
    let whole = u64::try_from(bytes.len()).is_ok_and(|length| length <= largest_text);
    Some(if whole { classify_content(file_entry, bytes) } else { hash_large_file(file_entry, &bytes, file) })
}

/// Opens a file without blocking. The caller must check that it is a regular file.
fn open_regular(root: &Path, path: &[u8]) -> rustix::io::Result<File> {
    let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, relative_path::to_absolute(root, path), how, Mode::empty()).map(File::from)
}

fn stat_open_file(file: &File) -> EntryState {
    match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS) {
        Ok(found) => classify_entry(&found),
        Err(_) => EntryState::Absent,
    }
}

fn classify_content(file_entry: FileEntry, bytes: Vec<u8>) -> FileContent {
    let digest = Some(hash_bytes(&bytes));
    let text = if is_binary(&bytes) { None } else { String::from_utf8(bytes).ok() };
    FileContent { entry: file_entry, is_binary: text.is_none(), text, digest }
}

fn content_unread(file_entry: FileEntry) -> FileContent {
    FileContent { entry: file_entry, text: None, is_binary: false, digest: None }
}

/// Hashes a file that is too large to compare; `start` is the part that was read already.
fn hash_large_file(file_entry: FileEntry, start: &[u8], file: File) -> FileContent {
    let binary = start.iter().take(BINARY_SAMPLE_BYTES).any(|byte| *byte == 0);
    let mut hash = Sha256::new_with_prefix(start);
    // The file may grow during the read.
    let mut rest = file.take(MAX_HASHED_BYTES);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match rest.read(&mut buffer) {
            Ok(0) => {
                return FileContent {
                    entry: file_entry,
                    text: None,
                    is_binary: binary,
                    digest: Some(hash.finalize().into()),
                };
            }
            Ok(length) => hash.update(&buffer[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return content_unread(file_entry),
        }
    }
}

/// Reads a small configuration file such as `.gitignore`. Ignores links, as git does.
pub fn read_small_file(root: &Path, path: &[u8], longest: u64) -> Option<Vec<u8>> {
    let file = open_regular(root, path).ok()?;
    let EntryState::File(FileEntry { kind: EntryKind::File, .. }) = stat_open_file(&file) else { return None };
    let mut bytes = Vec::new();
    file.take(longest).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
