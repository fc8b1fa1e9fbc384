//! A consistent copy of the SQLite database while a server runs on it.

use crate::error::{Error, Result};
use crate::sqlite::classify_error;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// Copies the database at `from` to the new file `to`. Readers and the writer continue meanwhile.
pub fn backup_sqlite(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        return Err(Error::unavailable(format!("{} already exists; name a new file", to.display())));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let source = Connection::open_with_flags(from, flags).map_err(|error| classify_error(&error))?;
    source.busy_timeout(std::time::Duration::from_secs(30)).map_err(|error| classify_error(&error))?;
    let path = to.to_str().ok_or_else(|| Error::unavailable("the path is not UTF-8"))?;
    source.execute("VACUUM INTO ?1", [path]).map_err(|error| classify_error(&error))?;
    let sync = std::fs::File::open(to).and_then(|file| file.sync_all());
    sync.map_err(|error| Error::unavailable(format!("cannot sync {}: {error}", to.display())))
}

/// Runs SQLite's integrity check on a copy.
pub fn check_backup(path: &Path) -> Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let copy = Connection::open_with_flags(path, flags).map_err(|error| classify_error(&error))?;
    let verdict: String =
        copy.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(|error| classify_error(&error))?;
    if verdict == "ok" { Ok(()) } else { Err(Error::internal(verdict)) }
}
