//! One command at a time works on a worktree. The lock's file names the holder.

use crate::error::Error;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::Duration;

const LOCKING: &str = "locking the worktree";
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const MAX_HOLDER_BYTES: u64 = 500;

/// Held until it is dropped; the kernel releases it with the process.
#[derive(Debug)]
pub struct WorktreeLock {
    file: File,
}

impl WorktreeLock {
    pub(super) fn acquire(dir: &Path, holder: &str, wait: bool) -> Result<Self, Error> {
        let failed = |source| Error::Io { what: LOCKING, source };
        let path = dir.join("lock");
        let mut file =
            File::options().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if wait => std::thread::sleep(POLL_INTERVAL),
                Err(Errno::WOULDBLOCK) => return Err(Error::WorktreeBusy { holder: read_holder(&mut file) }),
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        let mut lock = Self { file };
        lock.write_holder(holder).map_err(failed)?;
        Ok(lock)
    }

    fn write_holder(&mut self, holder: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(holder.as_bytes())
    }
}

fn read_holder(file: &mut File) -> String {
    let mut bytes = Vec::new();
    drop(file.take(MAX_HOLDER_BYTES).read_to_end(&mut bytes));
    let text: String = String::from_utf8_lossy(&bytes).chars().filter(|c| !c.is_control()).collect();
    if text.is_empty() { "a command that has just started".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let first = WorktreeLock::acquire(dir.path(), "process 7: make it faster", false).unwrap();
        let error = WorktreeLock::acquire(dir.path(), "process 8", false).unwrap_err();
        assert!(error.to_string().contains("process 7: make it faster"), "{error}");
        let path = dir.path().to_owned();
        let waiting = std::thread::spawn(move || WorktreeLock::acquire(&path, "process 9", true));
        drop(first);
        waiting.join().unwrap().unwrap();
    }
}
