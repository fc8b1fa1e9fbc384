//! Looking at one entry of the tree: what it is, and what it holds. Links are never followed, and nothing but regular
//! files is ever opened, so that no fifo or device can hold up the caller.

use super::path;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags};
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

pub type Digest = [u8; 32];

/// Files above this are told by size alone: reading gigabytes would stop everything else that this process does.
const LARGEST_HASHED: u64 = 64 * 1024 * 1024;
/// How far into a file a NUL byte makes it binary.
const SAMPLE: usize = 8 * 1024;
/// The clock that stamps files moves in steps of up to 10 ms, on some file systems of whole seconds.
pub const CLOCK_STEP: i64 = 11_000_000;
const SECOND: i64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Link,
}

/// Differs whenever the content does, except within one step of the file system's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub modified: i64,
    pub changed: i64,
    pub size: u64,
    pub inode: u64,
}

/// A regular file or a symbolic link, as it was found.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub kind: Kind,
    pub stamp: Stamp,
    /// Written so lately that a further write may leave the same stamp.
    pub fresh: bool,
    /// It has other names, through which it can be written.
    pub linked: bool,
}

pub enum Entry {
    Seen(Seen),
    Directory,
    /// Nothing there, or nothing that has content.
    Nothing,
}

/// What an entry holds. `text` is there when it is short enough and is text.
pub struct Reading {
    pub seen: Seen,
    pub text: Option<String>,
    pub binary: bool,
    /// Absent when the file could not be read, or is too large to be.
    pub digest: Option<Digest>,
}

pub fn digest(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

pub fn hexadecimal(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(SAMPLE).any(|byte| *byte == 0) || std::str::from_utf8(bytes).is_err()
}

/// Nanoseconds since 1970, as file systems count.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

pub fn entry(directory: impl AsFd, name: impl rustix::path::Arg) -> Entry {
    match rustix::fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS) {
        Ok(found) => sorted(&found),
        Err(_) => Entry::Nothing,
    }
}

pub fn entry_at(root: &Path, path: &[u8]) -> Entry {
    entry(CWD, path::absolute(root, path))
}

fn sorted(found: &Statx) -> Entry {
    let kind = match rustix::fs::FileType::from_raw_mode(found.stx_mode.into()) {
        rustix::fs::FileType::RegularFile => Kind::File,
        rustix::fs::FileType::Symlink => Kind::Link,
        rustix::fs::FileType::Directory => return Entry::Directory,
        _ => return Entry::Nothing,
    };
    let nanoseconds = |seconds: i64, rest: u32| seconds.wrapping_mul(SECOND).wrapping_add(rest.into());
    let stamp = Stamp {
        modified: nanoseconds(found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        changed: nanoseconds(found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
        size: found.stx_size,
        inode: found.stx_ino,
    };
    let step = if found.stx_ctime.tv_nsec == 0 { SECOND } else { CLOCK_STEP };
    let fresh = now().saturating_sub(stamp.changed) < step;
    Entry::Seen(Seen { kind, stamp, fresh, linked: kind == Kind::File && found.stx_nlink > 1 })
}

/// Reads an entry just seen. Nothing comes back when it is gone, or has become something else meanwhile.
pub fn read(root: &Path, path: &[u8], seen: Seen, largest_text: u64) -> Option<Reading> {
    match seen.kind {
        Kind::Link => read_link(root, path, seen),
        Kind::File => read_file(root, path, seen, largest_text),
    }
}

fn read_link(root: &Path, path: &[u8], seen: Seen) -> Option<Reading> {
    let target = rustix::fs::readlinkat(CWD, path::absolute(root, path), Vec::new()).ok()?;
    Some(classified(seen, target.into_bytes()))
}

fn read_file(root: &Path, path: &[u8], seen: Seen, largest_text: u64) -> Option<Reading> {
    let mut file = match open(root, path) {
        Ok(file) => file,
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => return None,
        Err(_) => return Some(unread(seen)),
    };
    // The file that was opened counts, not the one that had this name a moment before.
    let seen = match entry_of(&file) {
        Entry::Seen(seen) if seen.kind == Kind::File => seen,
        Entry::Seen(_) | Entry::Directory | Entry::Nothing => return None,
    };
    if seen.stamp.size > LARGEST_HASHED {
        return Some(unread(seen));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(seen.stamp.size.min(largest_text)).unwrap_or(0));
    if file.by_ref().take(largest_text.saturating_add(1)).read_to_end(&mut bytes).is_err() {
        return Some(unread(seen));
    }
    let whole = u64::try_from(bytes.len()).is_ok_and(|length| length <= largest_text);
    Some(if whole { classified(seen, bytes) } else { hashed(seen, &bytes, file) })
}

/// A regular file, opened so that nothing can make it wait. What was opened must still be checked.
fn open(root: &Path, path: &[u8]) -> rustix::io::Result<File> {
    let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path::absolute(root, path), how, Mode::empty()).map(File::from)
}

fn entry_of(file: &File) -> Entry {
    match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS) {
        Ok(found) => sorted(&found),
        Err(_) => Entry::Nothing,
    }
}

fn classified(seen: Seen, bytes: Vec<u8>) -> Reading {
    let digest = Some(digest(&bytes));
    let text = if is_binary(&bytes) { None } else { String::from_utf8(bytes).ok() };
    Reading { seen, binary: text.is_none(), text, digest }
}

fn unread(seen: Seen) -> Reading {
    Reading { seen, text: None, binary: false, digest: None }
}

/// A file too large to be compared: its hash, made in passing. `start` is what was read of it so far.
fn hashed(seen: Seen, start: &[u8], file: File) -> Reading {
    let binary = start.iter().take(SAMPLE).any(|byte| *byte == 0);
    let mut hash = Sha256::new_with_prefix(start);
    // It may grow while it is read.
    let mut rest = file.take(LARGEST_HASHED);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match rest.read(&mut buffer) {
            Ok(0) => return Reading { seen, text: None, binary, digest: Some(hash.finalize().into()) },
            Ok(length) => hash.update(&buffer[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return unread(seen),
        }
    }
}

/// A small file of settings, such as `.gitignore`. Like git, a link in its place does not count.
pub fn read_small(root: &Path, path: &[u8], longest: u64) -> Option<Vec<u8>> {
    let file = open(root, path).ok()?;
    let Entry::Seen(Seen { kind: Kind::File, .. }) = entry_of(&file) else { return None };
    let mut bytes = Vec::new();
    file.take(longest).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
