//! Removes what a dead worker may have planted in its spool.
//!
//! The reader does not trust the worker: a link would make it read or write its own files, and opening a fifo would
//! block it.

use crate::{Context, Error, SpoolStream};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Size limit of files that the reader loads whole. Segments may be larger: it reads them record by record.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Removes every entry that is not a regular file of a spool.
pub(crate) fn remove_foreign_entries(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir).context("list", dir)? {
        let entry = entry.context("list", dir)?;
        let path = entry.path();
        // Does not follow links.
        let metadata = entry.metadata().context("stat", &path)?;
        let is_plain = metadata.is_file() && metadata.nlink() == 1;
        if is_plain && (metadata.len() <= MAX_FILE_BYTES || entry.file_name().to_str().is_some_and(is_segment)) {
            continue;
        }
        tracing::warn!(path = %path.display(), "removing a foreign entry from a dead worker's spool");
        if metadata.is_dir() { fs::remove_dir(&path) } else { fs::remove_file(&path) }.context("remove", &path)?;
    }
    Ok(())
}

fn is_segment(name: &str) -> bool {
    name.ends_with(".log") && name.split_once('.').is_some_and(|(stream, _)| SpoolStream::parse(stream).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spool;
    use atoll_core::id::SandboxId;
    use rustix::fs::{CWD, FileType, Mode};
    use std::os::unix::fs::symlink;

    #[test]
    fn removes_links_fifos_directories_and_oversized_files() {
        let base = tempfile::tempdir().unwrap();
        let (dir, elsewhere, sandbox) = (base.path().join("spool"), base.path().join("elsewhere"), SandboxId::new());
        drop(Spool::open(&dir, sandbox).unwrap());
        fs::write(&elsewhere, "kept").unwrap();
        fs::remove_file(dir.join("lock")).unwrap();
        for name in ["lock", "boot.new", "sandbox.new", "handed.new"] {
            symlink(&elsewhere, dir.join(name)).unwrap();
        }
        fs::hard_link(&elsewhere, dir.join("other")).unwrap();
        let fifo = |name: &str| rustix::fs::mknodat(CWD, dir.join(name), FileType::Fifo, Mode::RWXU, 0).unwrap();
        fifo("handed.log");
        fs::create_dir(dir.join("directory")).unwrap();
        fs::File::create(dir.join("large")).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        let segment = format!("0000000001-{}.000000000001.log", uuid::Uuid::now_v7());
        fs::File::create(dir.join(&segment)).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        let spool = Spool::open_abandoned(&dir, sandbox).unwrap();
        assert_eq!(spool.stream().boot, 2, "regular files stay");
        crate::journal::load_journal(spool.dir()).unwrap();
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "kept");
        let mut left: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [segment.as_str(), "boot", "handed.log", "lock", "sandbox"]);
    }
}
