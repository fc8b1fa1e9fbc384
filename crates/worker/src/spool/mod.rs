//! Events on disk, from the moment they are taken in until the server has stored them.
//!
//! A directory for one sandbox:
//!
//! | file | holds |
//! |---|---|
//! | `lock` | who works on it; held with flock |
//! | `sandbox` | whose it is |
//! | `boot` | how often a worker started on it |
//! | `<boot>-<stream>.<first key>.log` | a segment: the records of a stream from that key on |
//! | `<boot>-<stream>.ack` | the last key of that stream that the server has stored |
//! | `handed.log` | see `journal` |
//!
//! The `Writer` appends and belongs to the disk's thread; the `Outbox` reads back, deletes what is
//! acknowledged and belongs to the up-link, so that a full disk can be emptied while the writer waits.
//! All that they share is the directory and the last durable key.

use atoll_core::id::SandboxId;
use rustix::fs::{FlockOperation, flock};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use uuid::Uuid;

mod left;
mod outbox;
mod record;
mod segment;
#[cfg(test)]
mod tests;
mod writer;

pub use outbox::{Limits, Outbox, Progress, Taken};
pub use writer::Writer;

/// A segment that is larger is closed, and the next event begins another one.
pub const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;

/// What the spool of a sandbox holds at most, about: it lies on the disk of the machine, and the agent decides how much is to
/// be told. As with a disk that is full, nothing more is taken in before the server has taken some.
pub const MOST_OF_A_SANDBOX: u64 = 1 << 30;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("the spool {} is in use by {holder}; each worker needs a spool of its own", path.display())]
    Held { path: PathBuf, holder: String },
    #[error("the spool {} belongs to sandbox {owner}; use another directory for {asked}", path.display())]
    OtherSandbox { path: PathBuf, owner: String, asked: SandboxId },
    #[error("{} does not hold a number; it counts the starts of workers on this spool", path.display())]
    BadBoot { path: PathBuf },
}

pub(crate) trait Context<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, Error>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::Io { action, path: path.to_owned(), source })
    }
}

/// A worker's run on this spool. Written so that names sort by boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream {
    pub boot: i64,
    pub id: Uuid,
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}-{}", self.boot, self.id)
    }
}

impl Stream {
    fn parse(text: &str) -> Option<Self> {
        let (boot, id) = text.split_once('-')?;
        Some(Self { boot: boot.parse().ok().filter(|boot| *boot >= 0)?, id: id.parse().ok()? })
    }
}

/// An open spool, with a new stream begun on it.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    stream: Stream,
    /// Held as long as the spool is.
    lock: File,
}

impl Spool {
    /// Locks the directory, making it if needed, and begins a new stream.
    pub fn open(dir: &Path, sandbox: SandboxId) -> Result<Self, Error> {
        fs::create_dir_all(dir).context("make", dir)?;
        Self::open_existing(dir, sandbox)
    }

    /// One that is there. Where it has been removed nothing is made in its place.
    pub fn open_existing(dir: &Path, sandbox: SandboxId) -> Result<Self, Error> {
        let lock = lock(dir)?;
        belongs_to(dir, sandbox)?;
        let stream = Stream { boot: raise_boot(dir)?, id: Uuid::now_v7() };
        Ok(Self { dir: dir.to_owned(), stream, lock })
    }

    /// One whose worker is dead, for somebody who trusted it with nothing else: only plain files of its own are left in it
    /// before any is opened. Nobody writes there any more.
    pub fn open_left(dir: &Path, sandbox: SandboxId) -> Result<Self, Error> {
        left::sweep(dir)?;
        Self::open_existing(dir, sandbox)
    }

    pub const fn stream(&self) -> Stream {
        self.stream
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The two ends, and the lock to hold while either is used.
    pub fn split(self) -> Result<(Writer, Outbox, File), Error> {
        self.split_with(SEGMENT_BYTES)
    }

    fn split_with(self, segment_bytes: u64) -> Result<(Writer, Outbox, File), Error> {
        let outbox = Outbox::open(&self.dir, self.stream)?;
        Ok((Writer::new(self.dir, self.stream, segment_bytes), outbox, self.lock))
    }
}

fn lock(dir: &Path) -> Result<File, Error> {
    let path = dir.join("lock");
    // Not emptied on opening: until the lock is ours, it says who has it.
    let mut options = File::options();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).context("open", &path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let holder = fs::read_to_string(&path).unwrap_or_default();
            let holder = if holder.trim().is_empty() { "another worker" } else { holder.trim() };
            return Err(Error::Held { path: dir.to_owned(), holder: holder.to_owned() });
        }
        Err(error) => return Err(io::Error::from(error)).context("lock", &path),
    }
    file.set_len(0).context("write", &path)?;
    writeln!(file, "the worker with process id {}", std::process::id()).context("write", &path)?;
    Ok(file)
}

fn belongs_to(dir: &Path, sandbox: SandboxId) -> Result<(), Error> {
    let path = dir.join("sandbox");
    match fs::read_to_string(&path) {
        Ok(owner) if owner.trim() == sandbox.to_string() => Ok(()),
        Ok(owner) => Err(Error::OtherSandbox { path: dir.to_owned(), owner: owner.trim().to_owned(), asked: sandbox }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            replace_durably(&path, format!("{sandbox}\n").as_bytes())
        }
        Err(error) => Err(error).context("read", &path),
    }
}

fn raise_boot(dir: &Path) -> Result<i64, Error> {
    let path = dir.join("boot");
    let counted = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| Error::BadBoot { path: path.clone() })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error).context("read", &path),
    };
    let left = segment::streams(dir)?.last().map_or(0, |stream| stream.boot);
    let boot = i64::max(counted, left).saturating_add(1);
    replace_durably(&path, format!("{boot}\n").as_bytes())?;
    Ok(boot)
}

/// Puts a file in the place of another, all or nothing, and returns when it is on disk.
pub(crate) fn replace_durably(path: &Path, contents: &[u8]) -> Result<(), Error> {
    let new = path.with_extension("new");
    let mut file = File::create(&new).context("make", &new)?;
    file.write_all(contents).and_then(|()| file.sync_all()).context("write", &new)?;
    fs::rename(&new, path).context("rename", &new)?;
    sync_parent(path)
}

pub(crate) fn sync_parent(path: &Path) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(path);
    File::open(parent).and_then(|dir| dir.sync_all()).context("sync", parent)
}
