//! A consistent copy of the SQLite database while a server runs on it.

use crate::error::{Error, Result};
use crate::sqlite::classify;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// Copies the database at `from` into the new file `to`. Readers and the writer go on meanwhile.
pub fn sqlite(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        return Err(Error::unavailable(format!("{} exists already; name a new file", to.display())));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let source = Connection::open_with_flags(from, flags).map_err(|error| classify(&error))?;
    source.busy_timeout(std::time::Duration::from_secs(30)).map_err(|error| classify(&error))?;
    let path = to.to_str().ok_or_else(|| Error::unavailable("the path is not UTF-8"))?;
    source.execute("VACUUM INTO ?1", [path]).map_err(|error| classify(&error))?;
    let sync = std::fs::File::open(to).and_then(|file| file.sync_all());
    sync.map_err(|error| Error::unavailable(format!("can't sync {}: {error}", to.display())))
}

/// Asks SQLite itself whether a copy is whole.
pub fn check(path: &Path) -> Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let copy = Connection::open_with_flags(path, flags).map_err(|error| classify(&error))?;
    let verdict: String =
        copy.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(|error| classify(&error))?;
    if verdict == "ok" { Ok(()) } else { Err(Error::internal(verdict)) }
}
