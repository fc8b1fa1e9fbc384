//! Shared state of the figures: paths, sizes, and the server with a full log.

use crate::figures::loaded_server::LoadedServer;
use crate::plan::Plan;
use crate::server::BenchServer;
use anyhow::{Result, ensure};
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Enough for four copies of the largest tree.
const MIN_FREE_MEMORY_BYTES: u64 = 4 << 30;

pub struct Bench {
    pub plan: Plan,
    pub program: PathBuf,
    dir: PathBuf,
    /// Started by the first figure that needs it.
    pub loaded_server: Option<LoadedServer>,
}

/// A server and its temporary directory.
pub struct ScratchServer {
    pub server: BenchServer,
    pub dir: TempDir,
}

impl Bench {
    pub fn new(program: PathBuf, dir: PathBuf, plan: Plan) -> Self {
        Self { plan, program, dir, loaded_server: None }
    }

    /// Creates an empty directory on the file system under test.
    pub fn scratch_dir(&self) -> Result<TempDir> {
        Ok(tempfile::Builder::new().prefix("bench-").tempdir_in(&self.dir)?)
    }

    /// The static worker that `make worker` builds.
    pub fn worker_program(&self) -> Result<PathBuf> {
        let named = std::env::var_os("EMBED_WORKER").filter(|path| !path.is_empty()).map(PathBuf::from);
        let worker = named.unwrap_or_else(|| PathBuf::from("target/worker/atoll-worker"));
        ensure!(worker.is_file(), "{} does not exist: build it with `make worker`", worker.display());
        Ok(worker.canonicalize()?)
    }

    /// The worker program that the server with this data directory installs in its sandboxes.
    pub fn installed_worker(&self, data: &Path) -> Result<PathBuf> {
        let entries = std::fs::read_dir(data)?.flatten();
        let mut workers = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("worker-"));
        match workers.next() {
            Some(entry) => Ok(entry.path()),
            None => Ok(self.program.with_file_name("atoll-worker")),
        }
    }

    /// Creates an empty directory in memory if there is room. On a disk, recent deletions slow down the writing of a tree,
    /// so that figure and floor would differ by their order alone.
    fn scratch_dir_in_memory(&self) -> Result<TempDir> {
        let memory = Path::new("/dev/shm");
        let free = rustix::fs::statvfs(memory).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
        if free < MIN_FREE_MEMORY_BYTES {
            return self.scratch_dir();
        }
        Ok(tempfile::Builder::new().prefix("bench-").tempdir_in(memory)?)
    }

    pub fn start_server_in_memory(&self) -> Result<ScratchServer> {
        let dir = self.scratch_dir_in_memory()?;
        let server = BenchServer::start(&self.program, &dir.path().join("data"), None)?;
        Ok(ScratchServer { server, dir })
    }

    /// Starts a server on the given database, by default SQLite.
    pub fn start_server(&self, database: Option<&str>) -> Result<ScratchServer> {
        let dir = self.scratch_dir()?;
        let server = BenchServer::start(&self.program, &dir.path().join("data"), database)?;
        Ok(ScratchServer { server, dir })
    }
}

/// Prints progress to stderr.
pub fn print_progress(text: &str) {
    let mut out = std::io::stderr().lock();
    drop(writeln!(out, "{text}"));
}
