//! A disk of a few megabytes that can be filled: a tmpfs, mounted for as long as this lives.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// `None`, and a line that names the test, for whoever may not mount.
    pub fn mount(test: &str, megabytes: usize) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            let line = format!("{test}: SKIPPED, only root can mount the small disk that it fills\n");
            drop(std::io::stderr().lock().write_all(line.as_bytes()));
            return None;
        }
        let dir = tempfile::Builder::new().prefix("atoll-disk-").tempdir().unwrap();
        let size = format!("size={megabytes}m,mode=0700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "atoll-test"]).arg(dir.path()).status();
        assert!(mounted.unwrap().success(), "mounting a tmpfs failed");
        Some(Self { dir })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    fn ballast(&self) -> PathBuf {
        self.dir.path().join("ballast")
    }

    /// Takes room away.
    pub fn load(&self, megabytes: usize) {
        std::fs::write(self.ballast(), vec![1; megabytes * 1024 * 1024]).unwrap();
    }

    /// Gives it back.
    pub fn unload(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: also when a process that is about to end still has a file open there.
        drop(Command::new("umount").arg("-l").arg(self.dir.path()).status());
    }
}
