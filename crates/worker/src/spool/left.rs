//! What a dead worker may have put into its spool. It was let speak for its sandbox, not into the files of whoever reads
//! the spool now: a link would lead there, and a pipe would be waited for.

use super::{Context, Error, Stream};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Files that are read whole are far smaller; segments are read record by record.
const LONGEST: u64 = 64 * 1024 * 1024;

/// Removes everything that no spool has.
pub(super) fn sweep(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir).context("list", dir)? {
        let entry = entry.context("list", dir)?;
        let path = entry.path();
        // Of the entry itself, wherever a link leads.
        let found = entry.metadata().context("look at", &path)?;
        let is_plain = found.is_file() && found.nlink() == 1;
        if is_plain && (found.len() <= LONGEST || entry.file_name().to_str().is_some_and(is_segment)) {
            continue;
        }
        tracing::warn!(path = %path.display(), "a dead worker's spool had something that is no file of a spool; it is removed");
        if found.is_dir() { fs::remove_dir(&path) } else { fs::remove_file(&path) }.context("remove", &path)?;
    }
    Ok(())
}

fn is_segment(name: &str) -> bool {
    name.ends_with(".log") && name.split_once('.').is_some_and(|(stream, _)| Stream::parse(stream).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spool::Spool;
    use atoll_core::id::SandboxId;
    use rustix::fs::{CWD, FileType, Mode};
    use std::os::unix::fs::symlink;

    #[test]
    fn nothing_in_it_leads_elsewhere_or_is_waited_for() {
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
        fs::File::create(dir.join("large")).unwrap().set_len(LONGEST + 1).unwrap();
        let segment = format!("0000000001-{}.000000000001.log", uuid::Uuid::now_v7());
        fs::File::create(dir.join(&segment)).unwrap().set_len(LONGEST + 1).unwrap();
        let spool = Spool::open_left(&dir, sandbox).unwrap();
        assert_eq!(spool.stream().boot, 2, "what was its own is kept");
        crate::journal::load(spool.dir()).unwrap();
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "kept");
        let mut left: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [segment.as_str(), "boot", "handed.log", "lock", "sandbox"]);
    }
}
