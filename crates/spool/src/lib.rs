//! The spool: a worker's on-disk queue of events that the server has not acknowledged, and its delivery journal.
//!
//! A spool is one directory per sandbox:
//!
//! | file | contents |
//! |---|---|
//! | `lock` | the process that uses the spool; locked with flock |
//! | `sandbox` | the sandbox that the spool belongs to |
//! | `boot` | the number of workers that started on this spool |
//! | `<boot>-<stream>.<first key>.log` | a segment: the records of a stream, starting at that key |
//! | `<boot>-<stream>.<key>.<sha256>.blob` | a content that the event with this key names (`blob_file`) |
//! | `<boot>-<stream>.ack` | the last key of that stream that the server has stored |
//! | `handed.log` | the delivery journal (`journal`) |
//!
//! The `SpoolWriter` appends events and belongs to the disk thread. The `SpoolReader` reads events back, deletes acknowledged
//! ones and belongs to the uplink, so that the uplink can free a full disk while the writer waits. They share only the
//! directory and the last durable key. `drain` sends what a dead worker left; the server runs it. The fake provider's
//! workers use a `MemoryQueue` in place of a spool.

use atoll_core::id::SandboxId;
use rustix::fs::{FlockOperation, flock};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use uuid::Uuid;

mod blob_file;
pub mod drain;
pub mod journal;
mod memory;
mod reader;
mod record;
mod segment;
mod sweep;
#[cfg(test)]
mod tests;
mod writer;

pub use blob_file::SpooledBlob;
pub use memory::MemoryQueue;
pub use reader::{BatchLimits, EventQueue, SpoolProgress, SpoolReader, SpooledBatch};
pub use writer::SpoolWriter;

/// Rotation size: a segment that reaches it is closed.
pub const MAX_SEGMENT_BYTES: u64 = 8 * 1024 * 1024;

/// Approximate limit of a sandbox's spool.
///
/// The spool is on the host's disk, and the agent decides how many events there are. A spool at its limit behaves like
/// a full disk: the worker accepts no more input until the server has stored some events.
pub const MAX_SANDBOX_SPOOL_BYTES: u64 = 1 << 30;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("the spool {} is in use by {holder}; give each worker its own spool", path.display())]
    Locked { path: PathBuf, holder: String },
    #[error("the spool {} belongs to sandbox {owner}; use another directory for {sandbox}", path.display())]
    OtherSandbox { path: PathBuf, owner: String, sandbox: SandboxId },
    #[error("{} is not a number; it counts the workers that started on this spool", path.display())]
    InvalidBootCount { path: PathBuf },
}

pub(crate) trait Context<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, Error>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, action: &'static str, path: &Path) -> Result<T, Error> {
        self.map_err(|source| Error::Io { action, path: path.to_owned(), source })
    }
}

/// One run of a worker on this spool. Its text form sorts by boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SpoolStream {
    pub boot: i64,
    pub id: Uuid,
}

impl fmt::Display for SpoolStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}-{}", self.boot, self.id)
    }
}

impl SpoolStream {
    fn parse(text: &str) -> Option<Self> {
        let (boot, id) = text.split_once('-')?;
        Some(Self { boot: boot.parse().ok().filter(|boot| *boot >= 0)?, id: id.parse().ok()? })
    }
}

/// An open, locked spool with a new stream.
#[derive(Debug)]
pub struct Spool {
    dir: PathBuf,
    stream: SpoolStream,
    lock: File,
}

impl Spool {
    /// Locks the directory, creating it if needed, and begins a new stream.
    pub fn open(dir: &Path, sandbox: SandboxId) -> Result<Self, Error> {
        fs::create_dir_all(dir).context("create", dir)?;
        Self::open_existing(dir, sandbox)
    }

    /// Opens a spool that exists. Fails if it was removed.
    pub fn open_existing(dir: &Path, sandbox: SandboxId) -> Result<Self, Error> {
        let lock = lock_directory(dir)?;
        check_owner(dir, sandbox)?;
        let stream = SpoolStream { boot: increment_boot(dir)?, id: Uuid::now_v7() };
        Ok(Self { dir: dir.to_owned(), stream, lock })
    }

    /// Opens the spool of a dead worker, in a process that does not trust that worker.
    ///
    /// First removes everything except regular files of a spool.
    pub fn open_abandoned(dir: &Path, sandbox: SandboxId) -> Result<Self, Error> {
        sweep::remove_foreign_entries(dir)?;
        Self::open_existing(dir, sandbox)
    }

    pub const fn stream(&self) -> SpoolStream {
        self.stream
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Splits the spool into its two ends, and the lock to hold while either is in use.
    pub fn split(self) -> Result<(SpoolWriter, SpoolReader, File), Error> {
        self.split_with(MAX_SEGMENT_BYTES)
    }

    fn split_with(self, segment_bytes: u64) -> Result<(SpoolWriter, SpoolReader, File), Error> {
        let reader = SpoolReader::open(&self.dir, self.stream)?;
        Ok((SpoolWriter::new(self.dir, self.stream, segment_bytes), reader, self.lock))
    }
}

fn lock_directory(dir: &Path) -> Result<File, Error> {
    let path = dir.join("lock");
    // Not truncated on open: until this process has the lock, the file names the process that has it.
    let mut options = File::options();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).context("open", &path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let holder = fs::read_to_string(&path).unwrap_or_default();
            let holder = if holder.trim().is_empty() { "another worker" } else { holder.trim() };
            return Err(Error::Locked { path: dir.to_owned(), holder: holder.to_owned() });
        }
        Err(error) => return Err(io::Error::from(error)).context("lock", &path),
    }
    file.set_len(0).context("write", &path)?;
    writeln!(file, "the worker with process id {}", std::process::id()).context("write", &path)?;
    Ok(file)
}

fn check_owner(dir: &Path, sandbox: SandboxId) -> Result<(), Error> {
    let path = dir.join("sandbox");
    match fs::read_to_string(&path) {
        Ok(owner) if owner.trim() == sandbox.to_string() => Ok(()),
        Ok(owner) => Err(Error::OtherSandbox { path: dir.to_owned(), owner: owner.trim().to_owned(), sandbox }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            replace_durably(&path, format!("{sandbox}\n").as_bytes())
        }
        Err(error) => Err(error).context("read", &path),
    }
}

fn increment_boot(dir: &Path) -> Result<i64, Error> {
    let path = dir.join("boot");
    let counted = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| Error::InvalidBootCount { path: path.clone() })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error).context("read", &path),
    };
    let newest = segment::list_streams(dir)?.last().map_or(0, |stream| stream.boot);
    let boot = i64::max(counted, newest).saturating_add(1);
    replace_durably(&path, format!("{boot}\n").as_bytes())?;
    Ok(boot)
}

/// Replaces a file atomically and returns when the new one is on disk.
pub(crate) fn replace_durably(path: &Path, contents: &[u8]) -> Result<(), Error> {
    let new = path.with_extension("new");
    let mut file = File::create(&new).context("create", &new)?;
    file.write_all(contents).and_then(|()| file.sync_all()).context("write", &new)?;
    fs::rename(&new, path).context("rename", &new)?;
    sync_parent(path)
}

pub(crate) fn sync_parent(path: &Path) -> Result<(), Error> {
    let parent = path.parent().unwrap_or(path);
    File::open(parent).and_then(|dir| dir.sync_all()).context("sync", parent)
}
