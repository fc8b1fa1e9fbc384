//! Unpacks a tar below a directory that no entry can leave.
//!
//! Each path component is opened from its parent directory and must be a directory, so that no link is followed: neither
//! one from the tar, nor an existing one, nor one that another process creates meanwhile. Files are always created and
//! never opened if they exist, so that nothing is written through a hard link.

use crate::entries::{EntryKind, TarEntry, TarReader};
use crate::error::Error;
use crate::path::{display_path, join_path, link_stays_inside, normalize_path, split_path};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Number of skipped entries that the summary names.
const MAX_NAMED_SKIPS: usize = 20;
/// Number of directories whose restrictive mode is set after their contents; further ones keep an open mode.
const MAX_DEFERRED_MODES: usize = 10_000;
/// Drops the set-uid, set-gid and sticky bits.
const MODE_MASK: u32 = 0o777;

/// Selects the symbolic links to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymlinkPolicy {
    /// All links.
    Any,
    /// Only links that stay inside the destination.
    Inside,
}

/// A skipped entry with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedEntry {
    pub path: String,
    pub reason: String,
}

/// The result of unpacking.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnpackSummary {
    /// Files, directories and links.
    pub entries: u64,
    pub bytes: u64,
    pub skipped: u64,
    /// The first skipped entries.
    pub named: Vec<SkippedEntry>,
    /// Number of omitted entries according to the tar itself.
    pub left_out: u64,
}

impl UnpackSummary {
    fn record_skip(&mut self, path: &[u8], why: &str) {
        self.skipped += 1;
        if self.named.len() < MAX_NAMED_SKIPS {
            self.named.push(SkippedEntry { path: display_path(path), reason: why.to_owned() });
        }
    }
}

/// Unpacks a tar below `root` and calls `progress` with the size of each chunk.
pub fn unpack_tree(
    input: impl BufRead,
    root: OwnedFd,
    links: SymlinkPolicy,
    mut progress: impl FnMut(u64),
) -> Result<UnpackSummary, Error> {
    let mut entries = TarReader::new(input);
    let mut unpacker =
        Unpacker { root, current: None, tally: UnpackSummary::default(), closed_later: Vec::new(), links };
    while let Some(entry) = entries.next_entry()? {
        let path = match normalize_path(&entry.path) {
            Ok(path) => path,
            Err(why) => {
                unpacker.tally.record_skip(&entry.path, why);
                continue;
            }
        };
        match unpacker.unpack_entry(&path, &entry, &mut entries, &mut progress) {
            Ok(()) => unpacker.tally.entries += 1,
            Err(EntryFailure::Skip(why)) => unpacker.tally.record_skip(&path, why),
            Err(EntryFailure::End(error)) => return Err(error),
        }
    }
    unpacker.apply_deferred_modes();
    unpacker.tally.left_out = entries.omitted_count();
    Ok(unpacker.tally)
}

/// Explains why an entry could not be unpacked.
enum EntryFailure {
    /// Skip this entry and continue.
    Skip(&'static str),
    End(Error),
}

struct Unpacker {
    root: OwnedFd,
    /// The last used directory: most entries share it with their predecessor.
    current: Option<(Vec<u8>, OwnedFd)>,
    tally: UnpackSummary,
    closed_later: Vec<(Vec<u8>, u32)>,
    links: SymlinkPolicy,
}

impl Unpacker {
    fn unpack_entry<R: BufRead>(
        &mut self,
        path: &[u8],
        entry: &TarEntry,
        entries: &mut TarReader<R>,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), EntryFailure> {
        if path.is_empty() {
            // The destination itself exists and stays unchanged.
            return if entry.kind == EntryKind::Directory { Ok(()) } else { Err(EntryFailure::Skip("it has no name")) };
        }
        match entry.kind {
            EntryKind::File => self.unpack_file(path, entry, entries, progress),
            EntryKind::Directory => self.create_directory(path, entry.mode & MODE_MASK),
            EntryKind::Link => {
                if self.links == SymlinkPolicy::Inside && !link_stays_inside(path, &entry.target) {
                    return Err(EntryFailure::Skip("it is a link out of the destination"));
                }
                if entry.target.is_empty() || entry.target.contains(&0) {
                    return Err(EntryFailure::Skip("it is a link to nothing"));
                }
                let (parent, name) = self.open_parent(path)?;
                create_or_replace(path, parent, name, || rustix::fs::symlinkat(&entry.target[..], parent, name))
            }
            EntryKind::HardLink => self.create_hard_link(path, &entry.target),
            EntryKind::Other => Err(EntryFailure::Skip("it is not a file, directory or link")),
        }
    }

    fn unpack_file<R: BufRead>(
        &mut self,
        path: &[u8],
        entry: &TarEntry,
        entries: &mut TarReader<R>,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), EntryFailure> {
        let (parent, name) = self.open_parent(path)?;
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(entry.mode & MODE_MASK);
        let file = create_or_replace(path, parent, name, || rustix::fs::openat(parent, name, how, mode))?;
        let mut file = File::from(file);
        let mut written = 0;
        let copied = entries.read_data(|piece| {
            file.write_all(piece).map_err(|source| Error::at_path(path, source))?;
            written += piece.len() as u64;
            progress(piece.len() as u64);
            Ok(())
        });
        copied.map_err(EntryFailure::End)?;
        self.tally.bytes += written;
        let omitted = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ };
        let modified = Timespec { tv_sec: entry.modified, tv_nsec: 0 };
        // Keep the file even if the file system cannot store the time.
        let _ = rustix::fs::futimens(&file, &Timestamps { last_access: omitted, last_modification: modified });
        Ok(())
    }

    fn create_directory(&mut self, path: &[u8], mode: u32) -> Result<(), EntryFailure> {
        let (parent, name) = self.open_parent(path)?;
        let is_new = make_directory(parent, name, mode).map_err(|error| classify_error(path, error))?;
        if is_new && mode & 0o700 != 0o700 && self.closed_later.len() < MAX_DEFERRED_MODES {
            self.closed_later.push((path.to_vec(), mode));
        }
        Ok(())
    }

    fn create_hard_link(&mut self, path: &[u8], target: &[u8]) -> Result<(), EntryFailure> {
        let target =
            normalize_path(target).map_err(|_| EntryFailure::Skip("it is a hard link out of the destination"))?;
        if target == path {
            return Err(EntryFailure::Skip("it is a hard link to itself"));
        }
        let (directory, file) = split_path(&target);
        let missing_target = |_| EntryFailure::Skip("the target of the hard link does not exist");
        let of = self.open_path(directory, false).map_err(missing_target)?;
        let found = rustix::fs::statat(&of, file, AtFlags::SYMLINK_NOFOLLOW).map_err(missing_target)?;
        // A hard link to a symbolic link would bypass the check of the symbolic link's target.
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(EntryFailure::Skip("it is a hard link to something other than a file"));
        }
        let (parent, name) = self.open_parent(path)?;
        create_or_replace(path, parent, name, || rustix::fs::linkat(&of, file, parent, name, AtFlags::empty()))
    }

    /// Opens or creates the parent directory of an entry. Returns it with the entry's name.
    fn open_parent<'a>(&mut self, path: &'a [u8]) -> Result<(BorrowedFd<'_>, &'a [u8]), EntryFailure> {
        let (directory, name) = split_path(path);
        if directory.is_empty() {
            return Ok((self.root.as_fd(), name));
        }
        if self.current.as_ref().is_none_or(|(current, _)| current != directory) {
            let opened = self.open_path(directory, true).map_err(|error| classify_error(path, error))?;
            self.current = Some((directory.to_vec(), opened));
        }
        match &self.current {
            Some((_, opened)) => Ok((opened.as_fd(), name)),
            None => Ok((self.root.as_fd(), name)),
        }
    }

    /// Opens a directory below the root, component by component.
    fn open_path(&self, directory: &[u8], make: bool) -> Result<OwnedFd, Errno> {
        let below_current = self
            .current
            .as_ref()
            .and_then(|(current, opened)| Some((directory.strip_prefix(&current[..])?.strip_prefix(b"/")?, opened)));
        let (rest, from) = below_current.unwrap_or((directory, &self.root));
        let mut at: Option<OwnedFd> = None;
        for part in rest.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            let here = at.as_ref().unwrap_or(from);
            let next = match open_directory(here, part) {
                Err(Errno::NOENT) if make => {
                    make_directory(here.as_fd(), part, 0o755)?;
                    open_directory(here, part)?
                }
                opened => opened?,
            };
            at = Some(next);
        }
        match at {
            Some(opened) => Ok(opened),
            None => rustix::io::fcntl_dupfd_cloexec(from, 0),
        }
    }

    /// Sets the deferred directory modes, innermost first.
    fn apply_deferred_modes(&mut self) {
        self.current = None;
        for (path, mode) in std::mem::take(&mut self.closed_later).into_iter().rev() {
            let (directory, name) = split_path(&path);
            let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened =
                self.open_path(directory, false).and_then(|at| rustix::fs::openat(at, name, how, Mode::empty()));
            if opened.and_then(|at| rustix::fs::fchmod(at, Mode::from_raw_mode(mode))).is_err() {
                self.tally.record_skip(&join_path(directory, name), "setting its mode failed");
            }
        }
    }
}

fn open_directory(at: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, how, Mode::empty())
}

/// Creates a directory. Returns false if it already exists.
fn make_directory(at: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<bool, Errno> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(mode | 0o700)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => open_directory(at, name).map(|_| false),
        Err(error) => Err(error),
    }
}

/// Creates an entry and replaces an existing one, except a directory.
fn create_or_replace<T>(
    path: &[u8],
    parent: BorrowedFd<'_>,
    name: &[u8],
    make: impl Fn() -> Result<T, Errno>,
) -> Result<T, EntryFailure> {
    match make() {
        Err(Errno::EXIST) => {}
        result => return result.map_err(|error| classify_error(path, error)),
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => make().map_err(|error| classify_error(path, error)),
        Err(Errno::ISDIR | Errno::PERM) => Err(EntryFailure::Skip("a directory exists at its path")),
        Err(error) => Err(classify_error(path, error)),
    }
}

fn classify_error(path: &[u8], error: Errno) -> EntryFailure {
    match error {
        Errno::NOTDIR | Errno::LOOP => EntryFailure::Skip("a component of its path is not a directory"),
        Errno::NAMETOOLONG => EntryFailure::Skip("its name is too long"),
        Errno::MLINK => EntryFailure::Skip("the file has too many hard links"),
        error => EntryFailure::End(Error::at_path(path, error)),
    }
}
