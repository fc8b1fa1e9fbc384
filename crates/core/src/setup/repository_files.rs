//! The files of a repository that set-up reads.

use super::setup_files::is_setup_file;
use crate::sparse_checkout::is_checked_out;
use std::collections::BTreeMap;

/// Maximum number of setup files; files at the root are always accepted.
pub const MAX_SETUP_FILES: usize = 2000;
/// Maximum size of one setup file.
pub const MAX_SETUP_FILE_BYTES: u64 = 16 << 20;
/// Maximum size of all setup files of a repository.
pub const MAX_TOTAL_BYTES: u64 = 64 << 20;

/// The setup files of a commit or a directory, by path relative to its root.
///
/// Readers insert only regular files, never symbolic links.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepositoryFiles {
    contents: BTreeMap<String, Option<Vec<u8>>>,
    total_bytes: u64,
}

impl RepositoryFiles {
    /// True if the path is a setup file and there is room for it.
    pub fn accepts(&self, path: &str) -> bool {
        is_setup_file(path) && (!path.contains('/') || self.contents.len() < MAX_SETUP_FILES)
    }

    /// Adds a file that `accepts` allows; `None` for one that exceeds `MAX_SETUP_FILE_BYTES`.
    pub fn insert(&mut self, path: String, content: Option<Vec<u8>>) {
        if self.accepts(&path) {
            let content = content.filter(|bytes| {
                let size = bytes.len() as u64;
                size <= MAX_SETUP_FILE_BYTES && self.total_bytes + size <= MAX_TOTAL_BYTES
            });
            self.total_bytes += content.as_ref().map_or(0, |bytes| bytes.len() as u64);
            self.contents.insert(path, content);
        }
    }

    /// Removes the files that a sparse checkout lacks.
    pub fn retain_checked_out(&mut self, dirs: &[String]) {
        self.contents.retain(|path, _| is_checked_out(dirs, path));
    }

    /// The paths, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.contents.keys().map(String::as_str)
    }

    pub fn contains(&self, path: &str) -> bool {
        self.contents.contains_key(path)
    }

    /// A file's content; `None` if it is missing or too large.
    pub fn content(&self, path: &str) -> Option<&[u8]> {
        self.contents.get(path)?.as_deref()
    }

    /// A file's content as text; `None` if it is missing, too large or not UTF-8.
    pub fn text(&self, path: &str) -> Option<&str> {
        std::str::from_utf8(self.content(path)?).ok()
    }
}

/// For tests and callers that hold the files already.
impl<P: Into<String>, C: Into<Vec<u8>>> FromIterator<(P, C)> for RepositoryFiles {
    fn from_iter<T: IntoIterator<Item = (P, C)>>(pairs: T) -> Self {
        let mut files = Self::default();
        for (path, content) in pairs {
            files.insert(path.into(), Some(content.into()));
        }
        files
    }
}
