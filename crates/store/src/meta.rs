//! Metadata of the deployment, and the lock of its data directory.

use crate::error::{Error, Result};
use crate::sql::{Tx, first_row};
use std::io::{Read, Seek, Write};
use std::path::Path;

pub async fn find_meta_value(tx: &mut dyn Tx, key: &str) -> Result<Option<String>> {
    let rows = tx.query("SELECT value FROM meta WHERE key = ?1", &[key.into()]).await?;
    first_row(rows).map(|row| row.text("value")).transpose()
}

pub async fn set_meta_value(tx: &mut dyn Tx, key: &str, value: &str) -> Result<()> {
    tx.execute(
        "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        &[key.into(), value.into()],
    )
    .await?;
    Ok(())
}

/// Exclusive lock of a data directory, released on drop.
#[derive(Debug)]
pub struct DataDirLock {
    file: std::fs::File,
}

impl Drop for DataDirLock {
    /// Unlocks explicitly: closing is not enough while a child that is being spawned has inherited the file.
    fn drop(&mut self) {
        let _unlocked: Result<(), _> = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
    }
}

impl DataDirLock {
    /// Takes the lock. A second server's error message shows `holder`.
    pub fn acquire(dir: &Path, holder: &str) -> Result<Self> {
        let path = dir.join("lock");
        let open = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = open.map_err(|error| Error::unavailable(format!("cannot open {}: {error}", path.display())))?;
        if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut who = String::new();
            drop(file.read_to_string(&mut who));
            let who = if who.trim().is_empty() { "another process" } else { who.trim() };
            return Err(Error::Locked(format!(
                "the data directory {} is held by {who}; stop it, or name another one with --data-dir",
                dir.display()
            )));
        }
        let write = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(holder.as_bytes()));
        write.map_err(|error| Error::unavailable(format!("cannot write {}: {error}", path.display())))?;
        Ok(Self { file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_server_learns_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DataDirLock::acquire(dir.path(), "atoll serve (pid 7)").unwrap();
        let refused = DataDirLock::acquire(dir.path(), "x").unwrap_err().to_string();
        assert!(refused.contains("held by atoll serve (pid 7)"), "{refused}");
        // A forked child has a copy of the open file.
        let copy = lock.file.try_clone().unwrap();
        drop(lock);
        assert!(DataDirLock::acquire(dir.path(), "x").is_ok());
        drop(copy);
    }
}
