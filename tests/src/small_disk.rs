//! A small tmpfs that tests can fill up.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

pub struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// Mounts the disk. Without root, prints that the test is skipped and returns `None`.
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

    fn ballast_path(&self) -> PathBuf {
        self.dir.path().join("ballast")
    }

    /// Writes a file of this size.
    pub fn fill_space(&self, megabytes: usize) {
        std::fs::write(self.ballast_path(), vec![1; megabytes * 1024 * 1024]).unwrap();
    }

    /// Removes the file that [`Self::fill_space`] wrote.
    pub fn free_space(&self) {
        std::fs::remove_file(self.ballast_path()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount, because a process that is about to end may still have a file open.
        drop(Command::new("umount").arg("-l").arg(self.dir.path()).status());
    }
}
