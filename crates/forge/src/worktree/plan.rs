//! The changes that turn one tree of the worktree into another. Pure.

use crate::error::Error;
use crate::plumbing::sync::{marked_directory, split_records};
use std::collections::BTreeSet;

const LINK_MODE: &str = "160000";

/// The number of files that sync-out changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    pub changed: u64,
    pub deleted: u64,
}

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenFile {
    pub path: Vec<u8>,
    pub mode: String,
    pub id: String,
    /// It replaces a file.
    pub is_replaced: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ApplyPlan {
    pub deleted: Vec<Vec<u8>>,
    pub written: Vec<WrittenFile>,
    /// Directories that must exist without files.
    pub made_directories: Vec<Vec<u8>>,
    /// Directories that existed without files and should no longer exist.
    pub removed_directories: Vec<Vec<u8>>,
}

impl ApplyPlan {
    /// Parses `git diff-tree -r -z --raw --no-renames`. Submodules are left out: their commits are elsewhere.
    pub fn parse(listing: &[u8]) -> Result<Self, Error> {
        let unread =
            || Error::Git { what: "comparing trees", detail: "cannot parse git's list of changed files".to_owned() };
        let mut plan = Self::default();
        let mut fields = split_records(listing);
        while let Some(record) = fields.next() {
            let raw = record.strip_prefix(b":").ok_or_else(unread)?;
            let raw = String::from_utf8_lossy(raw).into_owned();
            let [old_mode, mode, _, id, status] =
                raw.split(' ').collect::<Vec<_>>().try_into().map_err(|_| unread())?;
            let path = fields.next().ok_or_else(unread)?.to_vec();
            check_path(&path)?;
            match (marked_directory(&path), status.as_bytes().first()) {
                (Some(directory), Some(b'D')) => plan.removed_directories.push(directory.to_vec()),
                (Some(directory), _) => plan.made_directories.push(directory.to_vec()),
                (None, _) if [old_mode, mode].contains(&LINK_MODE) => {}
                (None, Some(b'D')) => plan.deleted.push(path),
                (None, Some(b'A' | b'M' | b'T')) => {
                    let (mode, id) = (mode.to_owned(), id.to_owned());
                    plan.written.push(WrittenFile { path, mode, id, is_replaced: status != "A" });
                }
                (None, _) => return Err(unread()),
            }
        }
        // A child comes before its parent.
        plan.removed_directories.sort_unstable_by(|one, other| other.cmp(one));
        Ok(plan)
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub const fn counts(&self) -> ChangeCounts {
        ChangeCounts { changed: self.written.len() as u64, deleted: self.deleted.len() as u64 }
    }

    /// The parents of deleted files, children first: they are removed if they are empty afterwards.
    pub fn emptied_candidates(&self) -> Vec<Vec<u8>> {
        let mut parents = BTreeSet::new();
        for path in self.deleted.iter().chain(&self.removed_directories) {
            let mut rest = path.as_slice();
            while let Some(slash) = rest.iter().rposition(|byte| *byte == b'/') {
                rest = &rest[..slash];
                if !parents.insert(rest.to_vec()) {
                    break;
                }
            }
        }
        parents.into_iter().rev().collect()
    }
}

/// Rejects a path that is not plainly below the worktree.
pub(super) fn check_path(path: &[u8]) -> Result<(), Error> {
    let is_plain = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.eq_ignore_ascii_case(b".git");
    if path.split(|byte| *byte == b'/').all(is_plain) && !path.contains(&0) {
        Ok(())
    } else {
        Err(Error::PathRefused { path: String::from_utf8_lossy(path).into_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_kind_of_change() {
        let listing = b":000000 100755 0 1 A\0new\0:100644 000000 1 0 D\0d/-gone\0:100644 120000 1 2 T\0link\0\
            :160000 160000 1 2 M\0module\0:000000 100644 0 e A\0kept/.atoll-empty-directory\0\
            :100644 000000 e 0 D\0a/b/.atoll-empty-directory\0";
        let plan = ApplyPlan::parse(listing).unwrap();
        assert_eq!(plan.deleted, [b"d/-gone".to_vec()]);
        let written: Vec<_> = plan.written.iter().map(|file| (&*file.path, &*file.mode, file.is_replaced)).collect();
        assert_eq!(written, [(b"new".as_slice(), "100755", false), (b"link", "120000", true)]);
        assert_eq!((plan.made_directories.len(), plan.removed_directories.len()), (1, 1));
        assert_eq!(plan.emptied_candidates(), [b"d".to_vec(), b"a".to_vec()]);
        assert_eq!(plan.counts(), ChangeCounts { changed: 2, deleted: 1 });
        assert!(ApplyPlan::parse(b"").unwrap().is_empty());
        assert!(ApplyPlan::parse(b"nonsense\0").is_err());
    }

    #[test]
    fn rejects_paths_that_leave_the_worktree() {
        for bad in ["../x", "a/../b", "/etc/passwd", ".git/config", "a/.GIT/hooks", "a//b", "."] {
            let listing = format!(":000000 100644 0 1 A\0{bad}\0");
            assert!(matches!(ApplyPlan::parse(listing.as_bytes()), Err(Error::PathRefused { .. })), "{bad}");
        }
    }
}
