//! What the figures share: where things are, how large they are, and the server with a full log.

use crate::figures::million::Million;
use crate::plan::Plan;
use crate::server::Server;
use anyhow::Result;
use std::io::Write;
use std::path::PathBuf;
use tempfile::TempDir;

pub struct Bench {
    pub plan: Plan,
    program: PathBuf,
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
