//! Putting a tar below a directory, which nothing of it can leave.
//!
//! Each part of each path is opened from the directory before it and must be a directory, never a link, so that no
//! link in the way is followed: neither one of the tar's own, nor one that was there, nor one that somebody plants
//! meanwhile. Files are made anew and never opened when they exist, so that nothing is written through another name.

use crate::entries::{Entries, Entry, Kind};
use crate::error::Error;
use crate::path::{below, join, shown, split, stays_inside};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How many of those that were passed over are named.
const NAMED: usize = 20;
/// How many directories get a mode that would close them only when everything is in them; further ones stay open.
const CLOSED_LATER: usize = 10_000;
/// Neither set-uid nor set-gid nor sticky.
const MODE: u32 = 0o777;

/// Which symbolic links are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// All of them, wherever they point to.
    Any,
    /// Only those that lead to somewhere below the destination.
    Inside,
}

/// An entry that was passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub path: String,
    pub why: String,
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Files, directories and links.
    pub entries: u64,
    pub bytes: u64,
    pub skipped: u64,
    /// The first of them.
    pub named: Vec<Skipped>,
    /// What the tar itself says that it lacks.
    pub left_out: u64,
}

impl Tally {
    fn skip(&mut self, path: &[u8], why: &str) {
        self.skipped += 1;
        if self.named.len() < NAMED {
            self.named.push(Skipped { path: shown(path), why: why.to_owned() });
        }
    }
}

/// Unpacks below `root`; `progress` hears how many bytes each piece has.
pub fn unpack(input: impl BufRead, root: OwnedFd, links: Links, mut progress: impl FnMut(u64)) -> Result<Tally, Error> {
    let mut entries = Entries::new(input);
    let mut place = Place { root, current: None, tally: Tally::default(), closed_later: Vec::new(), links };
    while let Some(entry) = entries.advance()? {
        let path = match below(&entry.path) {
            Ok(path) => path,
            Err(why) => {
                place.tally.skip(&entry.path, why);
                continue;
            }
        };
        match place.put(&path, &entry, &mut entries, &mut progress) {
            Ok(()) => place.tally.entries += 1,
            Err(Stop::Skip(why)) => place.tally.skip(&path, why),
            Err(Stop::End(error)) => return Err(error),
        }
    }
    place.close();
    place.tally.left_out = entries.left_out();
    Ok(place.tally)
}

/// Why an entry was not put.
enum Stop {
    /// The others can be.
    Skip(&'static str),
    End(Error),
}

struct Place {
    root: OwnedFd,
    /// The directory that was used last: most entries come beside the one before.
    current: Option<(Vec<u8>, OwnedFd)>,
    tally: Tally,
    closed_later: Vec<(Vec<u8>, u32)>,
    links: Links,
}

impl Place {
    fn put<R: BufRead>(
        &mut self,
        path: &[u8],
        entry: &Entry,
        entries: &mut Entries<R>,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), Stop> {
        if path.is_empty() {
            // The destination itself: it is there, and stays as it is.
            return if entry.kind == Kind::Directory { Ok(()) } else { Err(Stop::Skip("it has no name")) };
        }
        match entry.kind {
            Kind::File => self.file(path, entry, entries, progress),
            Kind::Directory => self.directory(path, entry.mode & MODE),
            Kind::Link => {
                if self.links == Links::Inside && !stays_inside(path, &entry.target) {
                    return Err(Stop::Skip("it is a link that leads elsewhere"));
                }
                if entry.target.is_empty() || entry.target.contains(&0) {
                    return Err(Stop::Skip("it is a link to nothing"));
                }
                let (parent, name) = self.parent(path)?;
                replacing(path, parent, name, || rustix::fs::symlinkat(&entry.target[..], parent, name))
            }
            Kind::Hard => self.hard_link(path, &entry.target),
            Kind::Other => Err(Stop::Skip("it is neither a file nor a directory nor a link")),
        }
    }

    fn file<R: BufRead>(
        &mut self,
        path: &[u8],
        entry: &Entry,
        entries: &mut Entries<R>,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), Stop> {
        let (parent, name) = self.parent(path)?;
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(entry.mode & MODE);
        let file = replacing(path, parent, name, || rustix::fs::openat(parent, name, how, mode))?;
        let mut file = File::from(file);
        let mut written = 0;
        let copied = entries.data(|piece| {
            file.write_all(piece).map_err(|source| Error::file(path, source))?;
            written += piece.len() as u64;
            progress(piece.len() as u64);
            Ok(())
        });
        copied.map_err(Stop::End)?;
        self.tally.bytes += written;
        let omitted = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ };
        let modified = Timespec { tv_sec: entry.modified, tv_nsec: 0 };
        // A time that the file system can't hold is no reason to lose the file.
        let _ = rustix::fs::futimens(&file, &Timestamps { last_access: omitted, last_modification: modified });
        Ok(())
    }

    fn directory(&mut self, path: &[u8], mode: u32) -> Result<(), Stop> {
        let (parent, name) = self.parent(path)?;
        let made = make_directory(parent, name, mode).map_err(|error| stop(path, error))?;
        if made && mode & 0o700 != 0o700 && self.closed_later.len() < CLOSED_LATER {
            self.closed_later.push((path.to_vec(), mode));
        }
        Ok(())
    }

    fn hard_link(&mut self, path: &[u8], target: &[u8]) -> Result<(), Stop> {
        let target = below(target).map_err(|_| Stop::Skip("it is a hard link to something elsewhere"))?;
        if target == path {
            return Err(Stop::Skip("it is a hard link to itself"));
        }
        let (directory, file) = split(&target);
        let gone = |_| Stop::Skip("what it is another name of is not there");
        let of = self.walk(directory, false).map_err(gone)?;
        let found = rustix::fs::statat(&of, file, AtFlags::SYMLINK_NOFOLLOW).map_err(gone)?;
        // A link of a link would be one that was checked for another place.
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(Stop::Skip("it is a hard link to something that is no file"));
        }
        let (parent, name) = self.parent(path)?;
        replacing(path, parent, name, || rustix::fs::linkat(&of, file, parent, name, AtFlags::empty()))
    }

    /// The directory that an entry stands in, made if it is not there, and the entry's name.
    fn parent<'a>(&mut self, path: &'a [u8]) -> Result<(BorrowedFd<'_>, &'a [u8]), Stop> {
        let (directory, name) = split(path);
        if directory.is_empty() {
            return Ok((self.root.as_fd(), name));
        }
        if self.current.as_ref().is_none_or(|(current, _)| current != directory) {
            let opened = self.walk(directory, true).map_err(|error| stop(path, error))?;
            self.current = Some((directory.to_vec(), opened));
        }
        match &self.current {
            Some((_, opened)) => Ok((opened.as_fd(), name)),
            None => Ok((self.root.as_fd(), name)),
        }
    }

    /// Opens a directory below the root, part by part.
    fn walk(&self, directory: &[u8], make: bool) -> Result<OwnedFd, Errno> {
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

    /// Gives the directories that were kept open their own modes, the innermost first.
    fn close(&mut self) {
        self.current = None;
        for (path, mode) in std::mem::take(&mut self.closed_later).into_iter().rev() {
            let (directory, name) = split(&path);
            let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = self.walk(directory, false).and_then(|at| rustix::fs::openat(at, name, how, Mode::empty()));
            if opened.and_then(|at| rustix::fs::fchmod(at, Mode::from_raw_mode(mode))).is_err() {
                self.tally.skip(&join(directory, name), "its mode could not be set");
            }
        }
    }
}

fn open_directory(at: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, how, Mode::empty())
}

/// Says whether it was made; one that is there already is as good.
fn make_directory(at: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<bool, Errno> {
    match rustix::fs::mkdirat(at, name, Mode::from_raw_mode(mode | 0o700)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => open_directory(at, name).map(|_| false),
        Err(error) => Err(error),
    }
}

/// Makes something where perhaps something else is, which goes first; a directory does not.
fn replacing<T>(
    path: &[u8],
    parent: BorrowedFd<'_>,
    name: &[u8],
    make: impl Fn() -> Result<T, Errno>,
) -> Result<T, Stop> {
    match make() {
        Err(Errno::EXIST) => {}
        made => return made.map_err(|error| stop(path, error)),
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => make().map_err(|error| stop(path, error)),
        Err(Errno::ISDIR | Errno::PERM) => Err(Stop::Skip("a directory is in its place")),
        Err(error) => Err(stop(path, error)),
    }
}

fn stop(path: &[u8], error: Errno) -> Stop {
    match error {
        Errno::NOTDIR | Errno::LOOP => Stop::Skip("its path leads through something that is no directory"),
        Errno::NAMETOOLONG => Stop::Skip("its name is too long"),
        Errno::MLINK => Stop::Skip("the file has too many names"),
        error => Stop::End(Error::file(path, error)),
    }
}
