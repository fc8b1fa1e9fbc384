//! What the figures share: where things are, how large they are, and the server with a full log.

use crate::figures::million::Million;
use crate::plan::Plan;
use crate::server::Server;
use anyhow::{Result, ensure};
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// For the largest tree, four times, and everything beside it.
const ROOM_IN_MEMORY: u64 = 4 << 30;

pub struct Bench {
    pub plan: Plan,
    pub program: PathBuf,
    dir: PathBuf,
    /// Made by the first figure that needs it.
    pub million: Option<Million>,
}

/// A server, and the directory that goes with it.
pub struct Scratch {
    pub server: Server,
    pub dir: TempDir,
}

impl Bench {
    pub fn new(program: PathBuf, dir: PathBuf, plan: Plan) -> Self {
        Self { plan, program, dir, million: None }
    }

    /// An empty directory on the file system that is measured.
    pub fn scratch(&self) -> Result<TempDir> {
        Ok(tempfile::Builder::new().prefix("bench-").tempdir_in(&self.dir)?)
    }

    /// The static worker that `make worker` builds.
    pub fn worker(&self) -> Result<PathBuf> {
        let named = std::env::var_os("EMBED_WORKER").filter(|path| !path.is_empty()).map(PathBuf::from);
        let worker = named.unwrap_or_else(|| PathBuf::from("target/worker/atoll-worker"));
        ensure!(worker.is_file(), "{} is not there: build it with `make worker`", worker.display());
        Ok(worker.canonicalize()?)
    }

    /// The worker that a server with this data directory gives to its sandboxes.
    pub fn worker_of(&self, data: &Path) -> Result<PathBuf> {
        let entries = std::fs::read_dir(data)?.flatten();
        let mut workers = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("worker-"));
        match workers.next() {
            Some(entry) => Ok(entry.path()),
            None => Ok(self.program.with_file_name("atoll-worker")),
        }
    }

    /// The same in memory, where there is room: on a disk, what was removed a moment ago decides how fast a tree of files
    /// can be written, and figure and floor differ by their turn alone.
    fn scratch_in_memory(&self) -> Result<TempDir> {
        let memory = Path::new("/dev/shm");
        let free = rustix::fs::statvfs(memory).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
        if free < ROOM_IN_MEMORY {
            return self.scratch();
        }
        Ok(tempfile::Builder::new().prefix("bench-").tempdir_in(memory)?)
    }

    pub fn server_in_memory(&self) -> Result<Scratch> {
        let dir = self.scratch_in_memory()?;
        let server = Server::start(&self.program, &dir.path().join("data"), None)?;
        Ok(Scratch { server, dir })
    }

    /// A new server on SQLite, or on the database that is named.
    pub fn server(&self, database: Option<&str>) -> Result<Scratch> {
        let dir = self.scratch()?;
        let server = Server::start(&self.program, &dir.path().join("data"), database)?;
        Ok(Scratch { server, dir })
    }
}

/// How far it is, for whoever waits.
pub fn note(text: &str) {
    let mut out = std::io::stderr().lock();
    drop(writeln!(out, "{text}"));
}
