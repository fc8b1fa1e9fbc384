//! How much of the disk a tree takes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// In bytes. What can't be looked at is left out, as is what lies deeper than a path can name.
pub(crate) fn of(path: &Path) -> u64 {
    let mut left: Vec<PathBuf> = vec![path.to_path_buf()];
    let mut blocks = 0;
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            // Of links themselves, not of what they lead to.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                left.push(entry.path());
            }
            // A file with several names counts in parts.
            blocks += metadata.blocks() / if metadata.is_dir() { 1 } else { metadata.nlink().max(1) };
        }
    }
    blocks * 512
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_is_on_disk_and_follows_no_link() {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir_all(base.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("/", base.path().join("a/out")).unwrap();
        let empty = of(base.path());
        fs::write(base.path().join("a/b/file"), vec![1; 1 << 20]).unwrap();
        let full = of(base.path());
        assert!((1 << 20..2 << 20).contains(&(full - empty)), "{empty} {full}");
    }
}
