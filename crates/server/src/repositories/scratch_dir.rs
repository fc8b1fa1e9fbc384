//! Temporary files of git operations.

use crate::state::App;
use atoll_core::id::SandboxId;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A temporary directory, removed on drop.
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    pub fn new(app: &App, sandbox: SandboxId) -> io::Result<Self> {
        let dir = app.config.data_dir.join("scratch").join(sandbox.to_string());
        // Left over by a killed server.
        drop(std::fs::remove_dir_all(&dir));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Self(dir))
    }

    /// The directory itself.
    pub(super) fn directory(&self) -> &Path {
        &self.0
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a file again, empty.
    pub fn recreate(&self, name: &str) -> io::Result<File> {
        std::fs::remove_file(self.path(name))?;
        self.create(name)
    }

    pub fn create(&self, name: &str) -> io::Result<File> {
        File::options().read(true).write(true).create_new(true).mode(0o600).open(self.path(name))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::debug!(%error, "failed to remove a scratch directory");
        }
    }
}
